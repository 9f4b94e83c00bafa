"""The emulator as a server: its listener, and the requests that control it."""
