"""Records of idempotency keys in Redis, and in memory while Redis is gone."""
