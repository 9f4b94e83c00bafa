"""OpenAI's API as bytes: bodies, events, headers, usage."""
