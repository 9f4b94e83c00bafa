"""Answers without the provider: idempotency keys, single flight, the exact cache, and the order of all layers."""
