"""What is decided when a call comes in: whether it waits, and whose turn it is."""
