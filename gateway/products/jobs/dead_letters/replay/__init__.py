"""Replays of dead letters, as jobs of their own."""
