"""The handshakes of WebSockets, and the check that their library is installed."""
