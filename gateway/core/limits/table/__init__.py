"""Which limits a target or key has, and how large each is."""
