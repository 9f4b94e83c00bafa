"""Responses that are kept, or run in the background, assembled: what routes may ask of them, and who runs them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.routing import BaseRoute

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.snapshot import Policies
from gateway.products.jobs.answers_http import EventReaders
from gateway.products.jobs.calls import CallServer
from gateway.products.jobs.model import Job
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import CrashSuspects, JobEngine, RunPiece
from gateway.products.responses.http import ResponseRoutes
from gateway.products.responses.log import EventBuffers
from gateway.products.responses.runner import ResponseJobs, ResponseMaintenance
from gateway.products.responses.service import ForegroundResponses, ResponseService


class ResponseWork:
    """All of responses in one process."""

    def __init__(
        self,
        engine: JobEngine,
        clock: Clock,
        watchers: Watchers,
        server: CallServer,
        rules: Callable[[], JobRules],
        rules_of: Callable[[Job], JobRules],
        price_of: Callable[[Call], float | None],
        draw_bytes: Callable[[int], bytes],
    ) -> None:
        self._clock = clock
        self._server = server
        self._rules_of = rules_of
        self._buffers = EventBuffers()
        self.service = ResponseService(engine, clock, watchers, self._buffers, rules, rules_of, price_of, draw_bytes)
        self.foreground = ForegroundResponses(self.service, clock.wall)

    def runner(
        self, store: JobStore, draw: Callable[[], float], suspects: CrashSuspects
    ) -> tuple[RunPiece, Callable[[], Coroutine[Any, Any, None]]]:
        """Returns who runs the responses of a store, and the chore that forgets those whose time is over."""
        maintenance = ResponseMaintenance(store, self._clock)
        jobs = ResponseJobs(
            *(store, self._server, self._clock, self._rules_of, draw, self._buffers, maintenance.ended, suspects)
        )
        return jobs.run, maintenance.run_always

    def routes(self, policies: Policies, readers: EventReaders) -> list[BaseRoute]:
        """Returns the routes of responses."""
        return ResponseRoutes(policies, self.service, readers).routes()
