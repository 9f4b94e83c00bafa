"""Realtime sessions: opened as calls are, then relayed until one side leaves."""
