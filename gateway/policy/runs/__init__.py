"""Runs: end-to-end passes of workflows, of which the calls are the parts. Pure."""
