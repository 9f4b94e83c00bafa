"""Anthropic's Messages, from and to chat completions (`out_`: towards the provider, `in_`: from the caller)."""
