"""Answers checked against their call's rule, then retried or repaired before the client gets any of them."""
