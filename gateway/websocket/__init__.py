"""WebSocket frames on both sides of the gateway: what `websockets` parses and writes, over transports of the loop's own."""
