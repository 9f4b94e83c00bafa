"""Egress: how an attempt reaches a provider.

A target's `wire.Wire` is what the flow calls. Our own transport (`http1/`) gets bytes from it and gives back the answer itself;
every other one stands behind `httpx.AsyncBaseTransport` (HTTP/2, proxies, tests). Nothing here knows calls, plans, limits or
policies; below the wire a failure is an httpx exception that tells how far the request got (`phase.phase_of`).
"""
