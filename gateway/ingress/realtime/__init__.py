"""Realtime sessions at the edge: a handshake becomes a call, and its connection one end of a relay."""
