"""`gateway runs`."""
