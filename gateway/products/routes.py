"""Routes of jobs, files, batches and runs: what they have in common.

In this order: routes of our own objects; routes where there are no jobs; what requests say; and pages of lists. Where there are
no files and batches, those of the provider of `passthrough` may be meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core import request_fields
from gateway.core.errors import InvalidRequest
from gateway.core.snapshot import Key, Policies
from gateway.drivers.durability import JobsOff
from gateway.installed import is_installed

HAS_STEPS: Final = is_installed("gateway.features.runs")
if HAS_STEPS:
    from gateway.features.runs.step import STEP, no_step

Serve = Callable[[Request], Awaitable[Response]]


class ObjectRoute(Route):
    """A path of objects: other paths are passed over without a look at their parts, as routes are tried one by one."""

    def __init__(self, path: str, serve: Serve, methods: list[str]) -> None:
        super().__init__(path, serve, methods=methods)
        self._begins = path.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if not scope["path"].startswith(self._begins):
            return Match.NONE, {}
        return super().matches(scope)


class RelayedResponse(Response):
    """The answer of the provider of `passthrough` to a request of which some has been read here."""

    def __init__(self, relay: ASGIApp, read: bytes) -> None:
        """`read` are the bytes of the body so far; the rest still comes."""
        self._relay = relay
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["cycle"].give_back(self._read)
        await self._relay(scope, receive, send)


# --- routes where there are no jobs ---

ANY_METHOD = ("GET", "POST", "DELETE")


class AbsentRoute(Route):
    """A path of files or batches where the gateway has none: a `passthrough` may."""

    def __init__(self, policies: Policies, path: str, refuse: Callable[[Request], Awaitable[Response]]) -> None:
        super().__init__(path, refuse, methods=ANY_METHOD)
        self._policies = policies

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self._policies.current.passthrough is not None:
            return Match.NONE, {}
        return super().matches(scope)


def absent_routes(policies: Policies) -> list[BaseRoute]:
    """Returns the routes of a gateway that takes no jobs: they say so, to those who may call."""

    async def refuse(request: Request) -> Response:
        caller_of(policies, request)
        raise JobsOff("This gateway takes no jobs, files and batches; its operator names a file with `jobs.store`.")

    routes: list[BaseRoute] = []
    for prefix in ("/v1", ""):
        routes += [Route(prefix + path, refuse, methods=ANY_METHOD) for path in ("/jobs", "/jobs/{rest:path}")]
        routes += [
            AbsentRoute(policies, f"{prefix}/{kind}{below}", refuse)
            for kind in ("files", "batches")
            for below in ("", "/{rest:path}")
        ]
    return routes


# --- what requests say: who calls, and which page ---


def caller_of(policies: Policies, request: Request) -> tuple[Key, str, bytes | None]:
    """Returns who calls: the key, the tenant, and the credential of the caller's own. Raises GatewayError.

    A POST that calls itself a step is refused: it would be done anew each time, and who names steps relies on the contrary.
    """
    index = request_fields.index_headers(request.scope["headers"])
    if HAS_STEPS and STEP in index and request.method == "POST":
        raise no_step()
    key, credential = request_fields.authenticate(policies.current, index)
    return key, request_fields.choose_tenant(key, index), credential


def tenant_of(policies: Policies, request: Request) -> str:
    return caller_of(policies, request)[1]


def limit_of(request: Request, usual: int, most: int) -> int:
    """Returns the length of a page that is asked for. Raises InvalidRequest."""
    value = request.query_params.get("limit")
    if value is None:
        return usual
    if not value.isdecimal() or not value.isascii() or len(value) > 9 or not 1 <= int(value) <= most:
        raise InvalidRequest(f"The parameter 'limit' must be a whole number from 1 to {most}.", param="limit")
    return int(value)


def head_alone(headers: Mapping[str, str], media_type: str) -> Response:
    """Returns the answer to a HEAD where nobody knows how long the body would be: it says nothing of that (RFC 9110, 8.6)."""
    response = Response(headers=headers, media_type=media_type)
    del response.headers["content-length"]
    return response


# --- pages of lists ---


def list_page(objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns a page of a list, of whatever has an id.

    Source: https://platform.openai.com/docs/api-reference/files/list.
    """
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
