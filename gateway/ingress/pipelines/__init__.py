"""Calls to declared pipelines at the edge."""
