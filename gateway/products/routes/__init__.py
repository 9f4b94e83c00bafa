"""The routes of jobs, batches and files, some of them shared with a provider."""
