"""Anthropic's Messages: its calls read, checked and answered."""
