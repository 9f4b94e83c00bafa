"""What of an answer may be stored, and under which key."""
