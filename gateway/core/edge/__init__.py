"""One request to one reply: its body under a cap, its key, its answer or error."""
