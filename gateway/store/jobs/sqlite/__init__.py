"""Jobs in a file of their own, durable before they are answered: for a gateway alone."""
