"""Chat completions as Messages, and a message as a chat completion."""
