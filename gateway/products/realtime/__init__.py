"""Realtime sessions: opened as calls are, then relayed until one side leaves.

Realtime sessions at the edge: a handshake becomes a call, and its connection one end of a relay.

Realtime sessions: which frames are read, and what they say."""
