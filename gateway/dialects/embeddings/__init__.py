"""Embeddings at targets whose API is not OpenAI's."""
