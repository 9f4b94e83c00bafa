"""Embeddings where they are asked for in another language than OpenAI's."""
