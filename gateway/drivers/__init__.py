"""SQLite in one thread, the link to Redis, memory with eviction, blobs; and the stores of state made of them."""
