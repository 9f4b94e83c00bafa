"""Egress: how an attempt reaches a provider.

Everything here stands behind `httpx.AsyncBaseTransport`: a caller hands over an `httpx.Request` and gets an
`httpx.Response` whose stream it iterates itself. Nothing here knows calls, plans, limits or policies; a failure is an
httpx exception that tells how far the request got (`phase.phase_of`).
"""
