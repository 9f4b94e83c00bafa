"""JSON schemas, tools and media, as several dialects convert them."""
