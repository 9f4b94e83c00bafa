"""OpenAI's two APIs, chat completions and Responses, each from the other."""
