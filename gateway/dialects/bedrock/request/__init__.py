"""Chat completions as requests of Converse."""
