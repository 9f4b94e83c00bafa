"""The transports of providers, kept across reloads, and answers that are read whole."""
