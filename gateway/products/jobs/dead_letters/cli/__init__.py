"""`gateway dlq`."""
