"""The question of a call, and the search for an answer to it."""
