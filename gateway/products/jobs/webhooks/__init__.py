"""Webhooks: the ends of jobs are told to those who asked to hear of them.

Whom the ends of jobs are told to, in what words, and when it is tried again.

Requests to addresses that are no provider's: webhooks, and what callers have named."""
