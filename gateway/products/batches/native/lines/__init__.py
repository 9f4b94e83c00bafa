"""The lines of a provider's batch: sent in its format, and read from its results."""
