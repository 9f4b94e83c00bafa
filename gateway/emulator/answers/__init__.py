"""The emulator's answers: checked requests, and the bytes that answer them."""
