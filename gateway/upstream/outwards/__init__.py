"""Requests to addresses that are no provider's: webhooks, and what callers have named."""
