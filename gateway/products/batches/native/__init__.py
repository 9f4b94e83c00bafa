"""Chunks of batches at a provider's own Batch API."""
