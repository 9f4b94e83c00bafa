"""The paths of Gemini's and Anthropic's APIs that callers may use besides the calls: Gemini's own, and the lists of models.

    POST /v1beta/models/{model}:generateContent   POST /v1beta/models/{model}:streamGenerateContent?alt=sse
    POST /v1beta/models/{model}:countTokens   GET /v1beta/models   GET /v1beta/models/{model}

At Gemini's the model and what is done with it stand in the path, and not in the body. A key is taken from `x-goog-api-key`, or
from the query, where it is read and goes no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.core import request_fields
from gateway.core.edge import Edge, Receive, Scope, Send
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.http.writing import WholeResponse, answer_error
from gateway.core.openai.sse import json_object
from gateway.core.ports import Meter
from gateway.core.render import new_request_id
from gateway.core.snapshot import Key, Policies, PolicySnapshot
from gateway.core.types import Endpoint
from gateway.dialects import shapes
from gateway.dialects.endpoints import COUNT_GENERATED, GENERATE
from gateway.dialects.registry import front_of, put_in

# --- Gemini's: the list of models, in Google's own shape, and where callers have their keys ---


VERBS: Final = ("generateContent", "streamGenerateContent", "countTokens")
"""The actions on a model."""
_OWN: Final = "/v1beta/"
_KEY: Final = b"x-goog-api-key"


def is_googles(request: Request) -> bool:
    """Whether the client is one of Gemini's: by the path that it asks for, or by where it has put its key."""
    path: str = request.scope["path"]
    is_list = path.startswith(("/v1/models", "/models"))
    return path.startswith(_OWN) or (is_list and _KEY.decode() in request.headers)


def take_key(index: dict[bytes, bytes], params: Sequence[tuple[str, str]]) -> None:
    """Puts a key from where Gemini's callers have it to where the gateway looks for one."""
    key = index.get(_KEY) or next((value.encode() for name, value in params if name == "key" and value), None)
    if key is not None:
        index.setdefault(b"x-api-key", key)


def googles_page(request: Request, policy: PolicySnapshot) -> Response:
    """The list of models as Gemini's callers read it, in one page. Raises Unauthorised, or Forbidden for a web page."""
    key = _key_of(request, policy)
    names = [*policy.models, *policy.extra_names]
    return _respond({"models": [_named(name) for name in names if key.allows is None or key.allows.match(name)]})


def googles_model(request: Request, policy: PolicySnapshot) -> Response:
    """One model as Gemini's callers read it. Raises as `googles_page`, and NotFound."""
    key, name = _key_of(request, policy), request.path_params["name"]
    request_fields.find_model(policy, key, name)
    return _respond(_named(name))


def _key_of(request: Request, policy: PolicySnapshot) -> Key:
    index = request_fields.index_headers(request.scope["headers"])
    take_key(index, list(request.query_params.multi_items()))
    return request_fields.authenticate(policy, index)[0]


def _named(name: str) -> dict[str, Any]:
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": list(VERBS)}


def _respond(value: object) -> Response:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", new_request_id().encode())]
    return WholeResponse(orjson.dumps(value), 200, headers)


# --- Gemini's: the calls ---


VERSIONS: Final = ("/v1beta", "/v1")
KNOWN: Final = "/v1beta/models/MODEL:generateContent"
_STREAM: Final = "streamGenerateContent"
_VERBS: Final = {"generateContent": GENERATE, _STREAM: GENERATE, "countTokens": COUNT_GENERATED}


def endpoint_at(path: str, body: bytes) -> tuple[Endpoint, bytes] | None:
    """Returns what is asked at one of these paths, and the body with what the path says; None: it is none of them."""
    version = next((one for one in VERSIONS if path.startswith(f"{one}/models/")), None)
    model, _, verb = path.partition("?")[0].removeprefix(f"{version}/models/").rpartition(":")
    if version is None or not model or verb not in _VERBS:
        return None
    reshape = _counted if verb == "countTokens" else put_in
    return _VERBS[verb], reshape(front_of(model, is_stream=verb == _STREAM), body)


class GenerateDoor:
    """Serves what Gemini's callers ask a model. An ASGI application, for requests from our own connections."""

    def __init__(self, edge: Edge, meter: Meter) -> None:
        self._edge = edge
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = scope["state"]["cycle"]
        cycle.endpoint = GENERATE  # of whatever is refused here
        params = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        take_key(cycle.index, params)
        scope["query_string"] = cycle.query = b""  # it may hold the key
        model, verb = scope["path_params"]["name"], scope["path_params"]["verb"]
        error: NotFound | InvalidRequest | None = None
        if verb not in _VERBS:
            message = f"'{verb[:100]}' is not served here; use {' or '.join(_VERBS)}."
            error = NotFound(f"Unknown path {scope['path'][:200]}: {message}")
        elif verb == _STREAM and ("alt", "sse") not in params:
            error = InvalidRequest("Streams are sent as server-sent events alone; add '?alt=sse'.", param="alt")
        if error is not None:
            request_id = new_request_id()
            self._meter.refused(request_id, scope["path"], error.status, error.code)
            await answer_error(cycle, error, [(b"x-request-id", request_id.encode())])
            return
        front = front_of(model, is_stream=verb == _STREAM)
        cycle.reshape = partial(_counted if verb == "countTokens" else put_in, front)
        await self._edge.serve(_VERBS[verb], scope, receive, send)


def _counted(front: bytes, body: bytes) -> bytes:
    """The request whose tokens are counted, which may stand in a field of its own."""
    inner = (json_object(body) or {}).get("generateContentRequest")
    if not isinstance(inner, dict):
        return put_in(front, body)
    return put_in(front, orjson.dumps({name: value for name, value in inner.items() if name != "model"}))


def generate_routes(door: GenerateDoor, policies: Policies) -> list[BaseRoute]:
    """Where models are asked, and the list of them, from the config."""

    async def list_models(request: Request) -> Response:
        return googles_page(request, policies.current)

    async def show_model(request: Request) -> Response:
        return googles_model(request, policies.current)

    path = "/models/{name:path}:{verb}"
    routes: list[BaseRoute] = [Route(version + path, door, methods=["POST"]) for version in VERSIONS]
    routes.append(Route("/v1beta/models", list_models, methods=["GET"]))
    routes.append(Route("/v1beta/models/{name:path}", show_model, methods=["GET"]))
    return routes


# --- Anthropic's: the list of models ---


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
