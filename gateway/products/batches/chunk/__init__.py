"""One chunk of a batch: its lines are read, called and committed."""
