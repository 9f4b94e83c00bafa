"""Realtime sessions: which frames are read, and what they say."""
