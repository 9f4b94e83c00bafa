"""Stores of jobs: memory as the reference, SQLite as the embedded engine."""
