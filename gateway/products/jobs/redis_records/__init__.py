"""Jobs as Redis stores them, and how new ones are accepted."""
