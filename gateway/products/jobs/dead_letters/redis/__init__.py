"""Dead letters in Redis."""
