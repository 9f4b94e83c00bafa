"""HTTP/1.1 on the wire towards callers: listeners, connections, requests and answers."""
