"""Anthropic's Messages, from and to chat completions."""
