"""Requests of Messages as chat completions, and what is answered to them as messages."""
