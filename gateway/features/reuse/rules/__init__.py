"""Reuse: what may be kept of an answer, and under which key."""
