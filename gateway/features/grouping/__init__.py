"""Calls that go to their provider together: several inputs in one request.

How inputs of several callers become one request, and its answer theirs again."""
