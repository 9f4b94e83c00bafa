"""The vectors of stored questions, and the search for the nearest."""
