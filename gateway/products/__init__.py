"""Capabilities with state and routes of their own, and durable work put together."""
