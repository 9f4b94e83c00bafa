"""Jobs in the Redis that replicas share: Streams with a consumer group, one slot per partition."""
