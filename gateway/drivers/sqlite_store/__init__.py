"""The store of state in one SQLite file: opening, migration, eviction."""
