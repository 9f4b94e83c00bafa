"""Runs: end-to-end passes of workflows, of which the calls are the parts. Pure.

The runs in stores of jobs: their steps with the answers, and their records."""
