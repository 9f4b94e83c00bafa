"""A replica's part of a limit or sum, with and without the store."""
