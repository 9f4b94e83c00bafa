"""Which objects a request names, and which of them an answer creates."""
