"""Which calls to endpoints that are passed through cost nothing: looking, deleting, cancelling, uploading."""

from __future__ import annotations

import re

from gateway.words import Endpoint

_FREE_METHODS = frozenset(("GET", "HEAD", "DELETE"))
_FREE_POSTS = re.compile(r"/(?:files|uploads(?:/[^/]+(?:/[^/]+)?)?|[^?]+/cancel)/?")
"""A file, an upload with its parts and its end, and whatever is called off."""


def costs_nothing(endpoint: Endpoint, method: str, path: str) -> bool:
    """Whether a call to that path below the base URL is free at any provider; those with a price of their own are not."""
    if endpoint.request != "any":
        return False
    return method in _FREE_METHODS or (method == "POST" and _FREE_POSTS.fullmatch(path) is not None)
