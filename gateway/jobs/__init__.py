"""Durable work: the worker that runs jobs, and what routes may ask of them. Read `worker.py` first."""
