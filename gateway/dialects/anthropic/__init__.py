"""Anthropic's Messages, from and to chat completions.

Chat completions as Messages, and a message as a chat completion.

Requests of Messages as chat completions, and what is answered to them as messages."""
