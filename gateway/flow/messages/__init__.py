"""What callers of Anthropic's Messages ask for besides answers."""
