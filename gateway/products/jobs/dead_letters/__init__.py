"""Work that failed for good: listed, redriven, deleted."""
