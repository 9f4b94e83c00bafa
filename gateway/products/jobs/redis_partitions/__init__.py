"""The partitions of jobs in Redis, and how safe a write is there."""
