"""Gemini's generateContent: its calls read, checked and answered."""
