"""All routes of durable work: those of jobs, and of files and batches where these are the gateway's own."""

from __future__ import annotations

from starlette.routing import BaseRoute

from gateway.clock import Clock
from gateway.ingress.jobs.batches import BatchRoutes
from gateway.ingress.jobs.files import FileRoutes
from gateway.ingress.jobs.jobs import JobRoutes
from gateway.jobs.ports import MakeCall
from gateway.jobs.work import JobWork
from gateway.policy.snapshot import Policies


def durable_routes(policies: Policies, work: JobWork, make_call: MakeCall, clock: Clock) -> list[BaseRoute]:
    """Returns the routes, with and without `/v1`."""
    routes = JobRoutes(policies, work.service, make_call, clock).routes()
    if policies.current.jobs.settings.takes_files:
        routes += FileRoutes(policies, work.files).routes()
        routes += BatchRoutes(policies, work.batches, work.braked_by).routes()
    return routes
