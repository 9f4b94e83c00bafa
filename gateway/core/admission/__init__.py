"""Admission: a call reserves room at a target, waits for it, or is refused.

What is decided when a call comes in: whether it waits, and whose turn it is."""
