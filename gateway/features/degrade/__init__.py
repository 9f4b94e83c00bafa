"""Knows when models are slow, and has their calls ask for less.

Prompts that adapt to latency: when a model has become slow, its calls ask for less. Pure."""
