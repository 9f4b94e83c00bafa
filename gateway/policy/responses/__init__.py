"""Responses that the gateway keeps: pure rules and data."""
