"""The semantic cache: answers to questions that mean the same.

Guards: whether two questions that look alike mean the same, by their words."""
