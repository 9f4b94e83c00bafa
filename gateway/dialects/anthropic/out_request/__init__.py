"""Chat completions as requests of Messages."""
