"""Limits: what may go to a target now, and what its answers teach about what it allows."""
