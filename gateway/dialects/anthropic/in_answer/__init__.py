"""Chat completions as the answers that callers of Messages get."""
