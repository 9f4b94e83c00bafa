"""What the official SDKs say a request and an answer of each language may have, and what is done with that."""
