"""The paths of Gemini's API."""
