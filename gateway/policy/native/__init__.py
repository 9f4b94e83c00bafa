"""Parts of batches at a provider's own Batch API, as decisions: what may go there, how far it has come, what it brought."""
