"""Stored answers in Redis, least recently used first out."""
