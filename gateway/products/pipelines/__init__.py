"""Declared pipelines: several steps of calls, run as one job."""
