"""Storage engines: SQLite in one thread, the link to Redis, memory with eviction, blobs."""
