"""Callers of Gemini's generateContent at targets that speak something else."""
