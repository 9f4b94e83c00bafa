"""The semantic cache: answers to questions that mean the same."""
