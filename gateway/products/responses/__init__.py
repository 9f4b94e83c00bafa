"""Responses that the gateway stores or runs in the background."""
