"""Tells which calls to passthrough endpoints cost nothing: reading, deleting, cancelling, uploading."""

from __future__ import annotations

import re

from gateway.core.types.words import Endpoint

_FREE_METHODS = frozenset(("GET", "HEAD", "DELETE"))
_FREE_POSTS = re.compile(r"/(?:files|uploads(?:/[^/]+(?:/[^/]+)?)?|[^?]+/cancel)/?")
"""The free POST paths: a file, an upload with its parts and its end, and every cancellation."""


def costs_nothing(endpoint: Endpoint, method: str, path: str) -> bool:
    """Returns whether a call to that path below the base URL is free at every provider; endpoints with a price are not."""
    if endpoint.request != "any":
        return False
    return method in _FREE_METHODS or (method == "POST" and _FREE_POSTS.fullmatch(path) is not None)
