"""Answers without the provider: idempotency keys, single flight, exact and semantic caches."""
