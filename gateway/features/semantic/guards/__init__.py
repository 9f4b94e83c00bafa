"""Whether two questions that look alike mean the same, by their words and numbers."""
