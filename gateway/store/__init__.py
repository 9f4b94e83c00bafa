"""State behind ports: what outlives a call, in memory or in a file."""
