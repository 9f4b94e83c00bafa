"""The routes of jobs, batches and files."""
