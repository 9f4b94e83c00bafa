"""Gemini's own paths: the model and what is done with it stand there, and not in the body.

    POST /v1beta/models/{model}:generateContent   POST /v1beta/models/{model}:streamGenerateContent?alt=sse
    POST /v1beta/models/{model}:countTokens   GET /v1beta/models   GET /v1beta/models/{model}

A key is taken from `x-goog-api-key`, or from the query, where it is read and goes no further.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.core.edge.edge.edge import Edge, Receive, Scope, Send
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.http.writing.writing import answer_error
from gateway.core.openai.sse.sse import json_object
from gateway.core.ports import Meter
from gateway.core.render import new_request_id
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.core.types.words import Endpoint
from gateway.dialects.gemini.places import front_of, put_in
from gateway.dialects.http.count_tokens import COUNT_GENERATED
from gateway.dialects.http.door.models import googles_model, googles_page, take_key

GENERATE: Final = Endpoint("generate", "/generate", sse="generate", tokens="both")
"""Its path is a name inside the gateway."""
VERSIONS: Final = ("/v1beta", "/v1")
COUNT: Final = Endpoint(COUNT_GENERATED, "/generate/count", sse="generate", tokens="input")
KNOWN: Final = "/v1beta/models/MODEL:generateContent"
_STREAM: Final = "streamGenerateContent"
_VERBS: Final = {"generateContent": GENERATE, _STREAM: GENERATE, "countTokens": COUNT}


def asked_at(path: str, body: bytes) -> tuple[Endpoint, bytes] | None:
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
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        take_key(cycle.index, asked)
        scope["query_string"] = cycle.query = b""  # it may hold the key
        model, verb = scope["path_params"]["name"], scope["path_params"]["verb"]
        error: NotFound | InvalidRequest | None = None
        if verb not in _VERBS:
            told = f"'{verb[:100]}' is not served here; use {' or '.join(_VERBS)}."
            error = NotFound(f"Unknown path {scope['path'][:200]}: {told}")
        elif verb == _STREAM and ("alt", "sse") not in asked:
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

    asked = "/models/{name:path}:{verb}"
    routes: list[BaseRoute] = [Route(version + asked, door, methods=["POST"]) for version in VERSIONS]
    routes.append(Route("/v1beta/models", list_models, methods=["GET"]))
    routes.append(Route("/v1beta/models/{name:path}", show_model, methods=["GET"]))
    return routes
