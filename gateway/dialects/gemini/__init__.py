"""Gemini's generateContent, which the Gemini API and Vertex AI speak.

Chat completions at targets that speak generateContent.

Callers of Gemini's generateContent at targets that speak something else."""
