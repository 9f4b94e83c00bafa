"""Orchestration: async, thin, hot. `pipeline.py` is the file to read first."""
