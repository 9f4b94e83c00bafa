"""Calls that go to their provider together: several inputs in one request."""
