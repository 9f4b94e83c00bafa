"""The delay queue, and what happens to a call that no target has room for."""
