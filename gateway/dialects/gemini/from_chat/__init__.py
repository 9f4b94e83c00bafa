"""Chat completions at targets that speak generateContent."""
