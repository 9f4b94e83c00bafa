"""Who stores a response, and what it looks like before it has an answer."""
