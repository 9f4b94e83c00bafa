"""Dead letters: run again, looked at, and cleared away."""
