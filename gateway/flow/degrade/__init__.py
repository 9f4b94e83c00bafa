"""Knows when models are slow, and has their calls ask for less."""
