"""Loads all config files into a snapshot, and again when one of them changes."""
