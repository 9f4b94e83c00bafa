"""What Gemini's callers ask for besides answers: the list of models, in Google's own shape. And where they have their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.http.writing.response import WholeResponse
from gateway.core.intake import parse
from gateway.core.render import new_request_id
from gateway.core.snapshot.snapshot.snapshot import Key, PolicySnapshot

VERBS: Final = ("generateContent", "streamGenerateContent", "countTokens")
"""What is done with a model."""
_OWN: Final = "/v1beta/"
_KEY: Final = b"x-goog-api-key"


def is_googles(request: Request) -> bool:
    """Whether the client is one of Gemini's: by the path that it asks for, or by where it has put its key."""
    path: str = request.scope["path"]
    is_list = path.startswith(("/v1/models", "/models"))
    return path.startswith(_OWN) or (is_list and _KEY.decode() in request.headers)


def take_key(index: dict[bytes, bytes], asked: Sequence[tuple[str, str]]) -> None:
    """Puts a key from where Gemini's callers have it to where the gateway looks for one."""
    key = index.get(_KEY) or next((value.encode() for name, value in asked if name == "key" and value), None)
    if key is not None:
        index.setdefault(b"x-api-key", key)


def googles_page(request: Request, policy: PolicySnapshot) -> Response:
    """The list of models as Gemini's callers read it, in one page. Raises Unauthorised, or Forbidden for a web page."""
    key = _key_of(request, policy)
    names = [*policy.models, *(plan.model_name for plan in policy.pipelines.values())]
    return _respond({"models": [_named(name) for name in names if key.allows is None or key.allows.match(name)]})


def googles_model(request: Request, policy: PolicySnapshot) -> Response:
    """One model as Gemini's callers read it. Raises as `googles_page`, and NotFound."""
    key, name = _key_of(request, policy), request.path_params["name"]
    parse.find_model(policy, key, name)
    return _respond(_named(name))


def _key_of(request: Request, policy: PolicySnapshot) -> Key:
    index = parse.index_headers(request.scope["headers"])
    take_key(index, list(request.query_params.multi_items()))
    return parse.authenticate(policy, index)[0]


def _named(name: str) -> dict[str, Any]:
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": list(VERBS)}


def _respond(value: object) -> Response:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", new_request_id().encode())]
    return WholeResponse(orjson.dumps(value), 200, headers)
