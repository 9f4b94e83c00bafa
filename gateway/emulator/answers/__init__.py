"""The emulator's answers: what a request asks for, and the bytes that answer it."""
