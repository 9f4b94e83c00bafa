"""The semantic cache: stored answers to questions that mean the same."""
