"""Batches of calls: their files, their chunks, their results."""
