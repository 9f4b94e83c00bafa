"""Durable work: the worker that runs jobs through the pipeline, and what routes may ask of jobs. `worker.py` is the file to read first."""
