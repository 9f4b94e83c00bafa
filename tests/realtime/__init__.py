"""Realtime sessions: a real gateway on loopback between the library's client and a scripted WebSocket provider."""
