"""SQLite in one thread, the link to Redis, memory with eviction, blobs, JSON Schemas, turns; and the stores made of some."""
