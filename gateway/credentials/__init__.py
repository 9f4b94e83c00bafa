"""Credentials of clouds: found, renewed before they end, and put on requests."""
