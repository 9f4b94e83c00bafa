"""The commands of those whose jobs and batches a running gateway keeps: they speak its `/v1`, with a caller's key."""
