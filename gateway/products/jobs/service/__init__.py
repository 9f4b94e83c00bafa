"""What callers may ask of jobs, and what routes do for them."""
