"""What Anthropic's clients ask for outside of calls: their own shape of the list of models, with pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from gateway.core.errors import InvalidRequest
from gateway.dialects.sse import shapes

VERSION = "anthropic-version"
"""The header without which no client of Anthropic's asks for anything."""
MOST_MODELS = 1000
_MOST_DIGITS = 9
_MESSAGES = ("/v1/messages", "/messages")


def is_anthropics(request: Request) -> bool:
    """Whether the client is one of Anthropic's: by the path that it asks for, or where others ask, too, by the version."""
    path: str = request.scope["path"]
    if path.startswith(_MESSAGES):
        return True
    return path.startswith(("/v1/models", "/models")) and VERSION in request.headers


def models_page(request: Request, names: Sequence[str], created: float) -> dict[str, Any]:
    """A page of these models, as the query asks for it. Raises InvalidRequest for a bad `limit`."""
    params = request.query_params
    limit = params.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _MOST_DIGITS and 1 <= int(limit) <= MOST_MODELS):
        raise InvalidRequest(f"The parameter 'limit' must be a number from 1 to {MOST_MODELS}.", param="limit")
    models = [(name, created) for name in names]
    return shapes.model_page(models, limit=int(limit), after=params.get("after_id"), before=params.get("before_id"))
