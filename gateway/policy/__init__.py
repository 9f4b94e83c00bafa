"""Decisions: pure and synchronous. `now` and random draws come in as arguments; nothing here does I/O or logs."""
