"""The arguments of every command, and the values that they accept."""
