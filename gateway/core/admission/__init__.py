"""Admission: a call reserves room at a target, waits for it in the queue, or is refused."""
