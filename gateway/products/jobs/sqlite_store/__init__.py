"""The store of jobs in one SQLite file."""
