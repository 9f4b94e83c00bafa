"""Dead letters in the jobs file."""
