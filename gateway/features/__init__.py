"""The store in the Redis that replicas share."""
