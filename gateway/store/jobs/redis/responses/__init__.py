"""The logs of responses and the kept responses in the Redis."""
