"""Orchestration: async, thin, hot. `pipeline.py` is the file to read first.

Decisions: pure and synchronous. `now` and random draws come in as arguments; nothing here does I/O or logs.

Errors: what a provider's error answer means.

Numbers: `metrics.py` is the table of all metrics, `calls.py` counts ended calls, `telemetry.py` is what others talk to.

Egress: how an attempt reaches a provider.

A target's `wire.Wire` is what the flow calls. Our own transport (`http1/`) gets bytes from it and gives back the answer itself;
every other one stands behind `httpx.AsyncBaseTransport` (HTTP/2, proxies, tests). Nothing here knows calls, plans, limits or
policies; below the wire a failure is an httpx exception that tells how far the request got (`phase.phase_of`).

WebSocket frames on both sides of the gateway: what `websockets` parses and writes, over transports of the loop's own."""
