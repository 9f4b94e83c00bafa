"""The emulator as an ASGI application: limits, faults and one call."""
