"""One answer in several forms: streamed or whole."""
