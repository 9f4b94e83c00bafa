"""All routes of durable work: those of jobs, and of files and batches where these are the gateway's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from gateway.core.snapshot.snapshot import Policies
from gateway.products.batches.files_http import FileRoutes
from gateway.products.batches.http import BatchRoutes, MergedLists
from gateway.products.jobs.calls.ports import MakeCall, ServeCall
from gateway.products.jobs.http.events import EventReaders
from gateway.products.jobs.http.jobs import JobRoutes, ReadBody
from gateway.products.jobs.model import JobsOff
from gateway.products.responses.http.kept import ResponseRoutes
from gateway.products.routes.own_routes import caller_of
from gateway.products.work import JobWork

ANY_METHOD = ("GET", "POST", "DELETE")


def durable_routes(
    policies: Policies,
    work: JobWork | None,
    make_call: MakeCall,
    serve: ServeCall,
    readers: EventReaders,
    relay: ASGIApp,
    read_body: ReadBody,
) -> list[BaseRoute]:
    """Returns the routes, with and without `/v1`; without work they say that there is none. `serve` is the pipeline's.

    `readers` are those of all streams of events; `relay` serves requests for the provider of `passthrough`.
    """
    if work is None:
        return absent_routes(policies)
    routes = JobRoutes(policies, work.service, make_call, work.clock, readers, read_body).routes()
    routes += ResponseRoutes(policies, work.responses, readers).routes()
    if policies.current.jobs.settings.takes_files:
        lists = MergedLists(policies, work.clock, serve)
        routes += FileRoutes(policies, work.files, work.partial, lists, relay).routes()
        routes += BatchRoutes(policies, work.batches, readers, lists, relay).routes()
    return sorted(routes, key=lambda route: not _is_polled(route))


def _is_polled(route: BaseRoute) -> bool:
    """Tells whether many ask there, again and again: routes are tried one after the other."""
    return isinstance(route, Route) and route.path.endswith("/{id}") and "GET" in (route.methods or ())


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
