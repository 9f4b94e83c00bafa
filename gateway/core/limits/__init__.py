"""Limits of targets and keys: buckets, reservations, token estimates, and limits learned from providers."""
