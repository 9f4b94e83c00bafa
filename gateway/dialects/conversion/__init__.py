"""One answer in two forms: streamed and whole."""
