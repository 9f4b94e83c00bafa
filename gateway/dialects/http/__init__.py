"""What callers of Anthropic's Messages ask for besides answers.

The paths of Gemini's API."""
