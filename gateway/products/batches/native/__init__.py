"""Parts of batches at a provider's own Batch API: sent, watched, fetched, taken back.

Parts of batches at a provider's own Batch API, as decisions: what may go there, how far it has come, what it brought.

Providers' own Batch APIs, each as its vendor has made it."""
