"""Capabilities with state and routes of their own; each is one package."""
