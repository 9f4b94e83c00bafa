"""Runs at the edge: which part of one a request is, and what callers may read and say of them."""
