"""Errors: what a provider's error answer means."""
