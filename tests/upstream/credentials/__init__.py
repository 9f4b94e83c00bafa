"""Credentials of clouds."""
