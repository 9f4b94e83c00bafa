"""OpenAI's API as bytes: JSON and multipart bodies, events, headers, usage."""
