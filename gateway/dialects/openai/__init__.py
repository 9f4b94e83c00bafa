"""OpenAI's two languages: chat completions and Responses, each from the other."""
