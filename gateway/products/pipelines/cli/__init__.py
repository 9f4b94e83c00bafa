"""`gateway pipelines`."""
