"""Parts of batches at a provider's own Batch API: sent, watched, fetched, taken back."""
