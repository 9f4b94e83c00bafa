"""Runs and their steps in the jobs file."""
