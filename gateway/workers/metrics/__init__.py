"""The metrics and the call log of all workers as one."""
