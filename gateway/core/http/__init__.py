"""HTTP/1.1 on the wire: listening, connections, request cycles, framing, and answers on their way out."""
