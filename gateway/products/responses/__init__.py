"""Responses that the gateway keeps, or runs in the background, as callers meet them.

Responses in the background, and kept: run into logs, read from them, and gone on from.

Responses that the gateway keeps: pure rules and data.

The logs of responses and the kept responses in the Redis.

The logs of responses and the kept responses in the jobs file."""
