"""Gemini's generateContent, which the Gemini API and Vertex AI speak."""
