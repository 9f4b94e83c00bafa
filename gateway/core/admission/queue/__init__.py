"""The delay queue, and the decision whether a call without room waits, goes to a fallback or is refused."""
