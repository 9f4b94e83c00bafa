"""Admission: a call reserves room at a target, waits for it, or is refused."""
