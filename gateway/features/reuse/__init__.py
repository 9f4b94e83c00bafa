"""Reuse: idempotency, single flight and caches answer a call without its provider."""
