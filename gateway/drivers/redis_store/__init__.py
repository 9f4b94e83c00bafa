"""The store of shared state in Redis."""
