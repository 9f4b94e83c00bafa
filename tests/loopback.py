"""HTTP clients for the SDK that know no certificates: loading the system's takes 35 ms, and everything here is plain HTTP."""

from __future__ import annotations

import ssl

from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain_http() -> DefaultAsyncHttpxClient:
    """What the asynchronous SDK makes by default; it closes it when it is closed itself."""
    return DefaultAsyncHttpxClient(verify=NO_AUTHORITIES)


def blocking_plain_http() -> DefaultHttpxClient:
    """What the synchronous SDK makes by default."""
    return DefaultHttpxClient(verify=NO_AUTHORITIES)
