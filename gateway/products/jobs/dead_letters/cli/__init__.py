"""The commands `gateway dlq`: dead letters listed, replayed and deleted."""
