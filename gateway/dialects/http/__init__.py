"""The paths of Anthropic's and Gemini's APIs that callers may use."""
