"""Our own HTTP/1.1: `transport.py` is its door, `connection.py` the protocol, `exchange.py` the half that callers hold.

What providers are asked of themselves, beside the calls."""
