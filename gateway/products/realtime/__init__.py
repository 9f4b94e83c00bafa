"""Realtime sessions over WebSocket: admitted as calls are, relayed, and charged."""
