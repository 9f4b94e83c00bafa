"""Whether what a model has written is what was asked for, and what follows if it is not: pure decisions and texts."""
