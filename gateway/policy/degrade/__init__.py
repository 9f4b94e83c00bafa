"""Prompts that adapt to latency: when a model has become slow, its calls ask for less. Pure."""
