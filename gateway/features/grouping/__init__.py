"""Several callers' inputs in one request to the provider, and its answer divided again."""
