"""The route table: the paths of calls and of the admin API, and who answers them.

Hot endpoints are plain ASGI callables, found by one look-up before starlette's routing is asked; the table below is still
the only list of them. Every path answers errors in OpenAI's shape, but those of Anthropic's API in Anthropic's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from gateway.core import request_fields
from gateway.core.edge import ASGIApp, Edge, Receive, Scope, Send
from gateway.core.errors import BodyTimeout, GatewayError, InternalError, MethodNotAllowed, NotFound
from gateway.core.http.connection import HotEndpoints
from gateway.core.http.writing import WholeResponse
from gateway.core.ports import Meter
from gateway.core.render import error_headers, named_request, new_request_id
from gateway.core.snapshot import Key, Model, Policies
from gateway.core.types import Endpoint
from gateway.dialects import shapes
from gateway.dialects.endpoints import ENDPOINTS, GENERATE_SHAPE, MESSAGES_SHAPE, OPENAI
from gateway.dialects.http import (
    GenerateDoor,
    generate_routes,
    googles_model,
    googles_page,
    is_anthropics,
    is_googles,
    models_page,
)
from gateway.installed import is_installed

# Where one is not here, nobody gets its WebSockets.
if is_installed("gateway.products.realtime"):
    from gateway.products.realtime.http import PATHS, RealtimeEndpoint
if is_installed("gateway.products.responses.socket"):
    from gateway.products.responses.socket import PATHS as SOCKET_PATHS
    from gateway.products.responses.socket import ResponseSocketDoor

log = logging.getLogger("gateway.edge")

_BATCHES = " Batches of Messages are made at /v1/batches, of a file whose lines have the url /v1/messages."
ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]


class SocketDoors(NamedTuple):
    """Who opens WebSockets."""

    realtime: RealtimeEndpoint
    responses: ResponseSocketDoor | None


class Served:
    """An endpoint bound to the edge: a plain ASGI callable."""

    __slots__ = ("_edge", "_endpoint")

    def __init__(self, edge: Edge, endpoint: Endpoint) -> None:
        self._edge = edge
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge.serve(self._endpoint, scope, receive, send)


class Front:
    """The application: hot paths first, the rest by starlette."""

    __slots__ = ("_edge", "_hot", "_rest", "hot")

    def __init__(
        self, edge: Edge, hot: Mapping[str, Endpoint], rest: ASGIApp, session_paths: Sequence[str] = ()
    ) -> None:
        self._edge = edge
        self._hot = hot
        self._rest = rest
        self.hot = HotEndpoints(
            {path.encode(): endpoint for path, endpoint in hot.items()},
            edge.serve_cycle,
            frozenset(path.encode() for path in session_paths),
        )
        """What a connection serves without ASGI; the same endpoints come here with a query, or escaped."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._hot.get(scope["path"])
            if endpoint is not None:
                return self._edge.serve(endpoint, scope, receive, send)
        return self._rest(scope, receive, send)


class Upgrade(Route):
    """A path for those who want a WebSocket there; for all others it is as if it were not."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        offers = b",".join([value for name, value in scope.get("headers", ()) if name == b"upgrade"])
        return super().matches(scope) if b"websocket" in offers.lower() else (Match.NONE, {})


class PassThrough(Route):
    """Every other path and method that the config has relayed to a provider."""

    def __init__(self, policies: Policies, app: ASGIApp) -> None:
        super().__init__("/{path:path}", app, methods=ANY_METHOD)
        self._policies = policies

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if not request_fields.is_relayed(self._policies.current, scope["path"]):
            return Match.NONE, {}
        return super().matches(scope)


def build_front(
    edge: Edge, policies: Policies, operations: list[BaseRoute], meter: Meter, sockets: SocketDoors | None = None
) -> Front:
    """The whole data plane; `operations` are the health, metrics and admin routes that share its port.

    Without `sockets` nobody gets a WebSocket.
    """
    hot = {prefix + endpoint.path: endpoint for endpoint in ENDPOINTS for prefix in ("/v1", "")}
    routes = [*operations, *model_routes(policies)]  # first: what is polled; nearly all calls are served by `Front`
    routes += [Route(path, Served(edge, endpoint), methods=["POST"]) for path, endpoint in hot.items()]
    session_paths: tuple[str, ...] = ()
    if sockets is not None:
        session_paths = PATHS
        routes += [Route(path, sockets.realtime, methods=["GET"]) for path in PATHS]
        if sockets.responses is not None:
            session_paths += SOCKET_PATHS
            routes = [*(Upgrade(path, sockets.responses, methods=["GET"]) for path in SOCKET_PATHS), *routes]
    routes += generate_routes(GenerateDoor(edge, meter), policies)
    routes.append(PassThrough(policies, Served(edge, request_fields.OTHER)))
    return Front(edge, hot, build_app(routes, meter), session_paths)


def build_app(routes: list[BaseRoute], meter: Meter) -> Starlette:
    """A starlette application whose errors have OpenAI's shape, and are counted and logged."""
    handlers = {HTTPException: _http_error, GatewayError: _gateway_error, Exception: _defect}
    app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]  # handlers are typed by exception
    app.router.redirect_slashes = False
    app.state.meter = meter
    return app


def model_routes(policies: Policies) -> list[BaseRoute]:
    """`GET /v1/models` and `/v1/models/{id}`, from the config."""

    async def list_models(request: Request) -> Response:
        policy = policies.current
        if is_googles(request):
            return googles_page(request, policy)
        key, _ = request_fields.authenticate(policy, request_fields.index_headers(request.scope["headers"]))
        if is_anthropics(request):
            names = [*policy.models, *policy.extra_names]
            return json_response(models_page(request, [n for n in names if _may_use(key, n)], policy.loaded_at))
        models = [_model_object(m.name, m, policy.loaded_at) for m in policy.models.values() if _may_use(key, m.name)]
        models += [_model_object(name, None, policy.loaded_at) for name in policy.extra_names if _may_use(key, name)]
        return json_response({"object": "list", "data": models})

    async def show_model(request: Request) -> Response:
        policy = policies.current
        if is_googles(request):
            return googles_model(request, policy)
        key, _ = request_fields.authenticate(policy, request_fields.index_headers(request.scope["headers"]))
        name = request.path_params["name"]
        model = request_fields.find_model(policy, key, name)
        if is_anthropics(request):
            return json_response(shapes.model_page([(name, policy.loaded_at)])["data"][0])
        return json_response(_model_object(name, model, policy.loaded_at))

    return [
        Route(prefix + path, endpoint, methods=["GET"])
        for prefix in ("/v1", "")
        for path, endpoint in (("/models", list_models), ("/models/{name:path}", show_model))
    ]


def json_response(value: object, status: int = 200) -> Response:
    """A JSON answer off the hot path."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", new_request_id().encode())]
    return WholeResponse(orjson.dumps(value), status, headers)


def _model_object(name: str, model: Model | None, created: float) -> dict[str, object]:
    """A model as the API lists it; without one it is no entry of the config."""
    owner = model.targets[0].provider if model is not None and model.targets else "gateway"
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _may_use(key: Key, name: str) -> bool:
    return key.allows is None or key.allows.match(name) is not None


def _error_response(request: Request, error: GatewayError) -> Response:
    request_id = request_fields.request_id(dict(request.scope["headers"])) or new_request_id()
    is_message = is_anthropics(request)
    shape = GENERATE_SHAPE if is_googles(request) else MESSAGES_SHAPE if is_message else OPENAI
    body = shape.error_body(error, request_id)
    request.app.state.meter.refused(request_id, request.scope["path"], error.status, error.code)
    response = Response(body, error.status)
    response.raw_headers = [*error_headers(error, len(body)), (b"x-request-id", request_id.encode())]
    if is_message:
        response.raw_headers = named_request(MESSAGES_SHAPE, response.raw_headers)
    if isinstance(error, BodyTimeout):
        response.raw_headers.append((b"connection", b"close"))  # what may still come of the body is not waited for
    return response


async def _gateway_error(request: Request, error: GatewayError) -> Response:
    return _error_response(request, error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Starlette's own refusals: no such path, or not with this method."""
    method, path = request.scope["method"], request.scope["path"]
    if error.status_code == 405:
        allow = ", ".join(sorted(_methods_at(request)))
        return _error_response(
            request, MethodNotAllowed(f"{method} is not allowed on {path}; use {allow}.", allow=allow)
        )
    remedy = _BATCHES if path.startswith("/v1/messages/batches") else ""
    return _error_response(request, NotFound(f"Unknown path {path[:200]}.{remedy}"))


def _methods_at(request: Request) -> set[str]:
    """Returns the methods of all routes at the path: a path of several methods has a route for each."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in found for method in route.methods or ()}


async def _defect(request: Request, error: Exception) -> Response:
    log.error("defect while serving %s", request.scope["path"], exc_info=error)
    return _error_response(request, InternalError())
