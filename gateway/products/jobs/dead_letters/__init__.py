"""Work that failed for good: listed, replayed, deleted."""
