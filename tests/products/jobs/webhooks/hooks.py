"""Webhooks in virtual time: jobs that end on a stage, and endpoints that answer deliveries as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.drivers.outward import OutwardAnswer, Unreachable
from gateway.products.jobs.model import Job, JobKind, JobPage, JobQuery
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.webhooks.rules import WebhookRules, deliveries_of
from gateway.products.jobs.webhooks.service import Deliveries, Endpoints, RequestedUrls, delivery_segments
from gateway.products.jobs.worker import JobWorker, RunningWork
from tests.support.stage import Stage
from tests.support.virtual import LoopClock

SECRET = b"a secret of the receivers' own"
SOON_S = 400.0
"""So long what is due is looked for each second, then twice a minute: days are long."""
Answer = int | tuple[int, bytes] | Unreachable


class Delivery(NamedTuple):
    """An attempt that an endpoint has seen."""

    at: float
    url: str
    headers: Mapping[bytes, bytes]
    event: dict[str, Any]


def hook(name: str = "crm", **changes: Any) -> WebhookRules:
    """An endpoint that hears of everything."""
    origin = f"https://{name}.test"
    usual: dict[str, Any] = {"name": name, "origin": origin, "url": f"{origin}/hooks", "secrets": (SECRET,)}
    return WebhookRules(**{**usual, **changes})


class Hooks:
    """A worker that delivers, and the endpoints it delivers to. Implements `Outward`."""

    def __init__(self, clock: LoopClock, *rules: WebhookRules, draw: float = 0.5) -> None:
        """`draw` 0.5: no jitter."""
        self.clock = clock
        self.rules = {one.name: one for one in rules or (hook(),)}
        self.script: Callable[[str, int], Answer] = lambda _url, _try: 200
        self.takes_s: Callable[[str], float] = lambda _url: 0.0
        self.seen: list[Delivery] = []
        self.under_way: dict[str, int] = {}
        self.most_under_way: dict[str, int] = {}
        self.stage = Stage(clock, following=lambda ended: deliveries_of(ended, self.rules))
        self.draw = draw
        self.allows = True
        self.key_secrets = {"k": (SECRET,)}
        self.worker = self.make_worker()

    def make_worker(self) -> JobWorker:
        """Another worker, that has learned nothing of the endpoints, on the same store."""
        stage = self.stage
        self.endpoints = Endpoints(lambda: self.rules, self.clock.monotonic, self)
        self.requested = RequestedUrls(
            lambda: self.allows, lambda key: self.key_secrets.get(key, ()), self.clock.monotonic, self
        )
        endpoints, requested = self.endpoints, self.requested
        deliveries = Deliveries(stage.store, endpoints, requested, self.clock, lambda: self.draw)

        async def run(running: RunningWork) -> None:
            is_delivery = running.work.job.kind is JobKind.DELIVERY
            await (deliveries.run(running) if is_delivery else stage.run_piece(running))

        def segments() -> Sequence[SegmentRules]:
            return [*delivery_segments(endpoints, requested, stage.store), *stage.rules.segments]

        return JobWorker(stage.store, run, self.clock, segments, stage.meter)

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        number = len(self.attempts(url))
        self.seen.append(Delivery(self.clock.wall(), url, dict(headers), orjson.loads(body)))
        said = self.script(url, number)
        self.under_way[url] = self.under_way.get(url, 0) + 1
        self.most_under_way[url] = max(self.most_under_way.get(url, 0), self.under_way[url])
        try:
            await asyncio.sleep(min(self.takes_s(url), timeout_s))
        finally:
            self.under_way[url] -= 1
        if self.takes_s(url) >= timeout_s:
            raise Unreachable(f"no answer within {timeout_s:g} s")
        if isinstance(said, Unreachable):
            raise said
        return OutwardAnswer(*said) if isinstance(said, tuple) else OutwardAnswer(said)

    async def aclose(self) -> None:
        """Does nothing."""

    def attempts(self, url: str = "https://crm.test/hooks") -> list[Delivery]:
        """What an endpoint has seen."""
        return [one for one in self.seen if one.url == url]

    async def deliveries(self) -> Sequence[Job]:
        """All deliveries, the newest first."""
        page: JobPage = await self.stage.store.list_jobs(JobQuery(None, JobKind.DELIVERY, limit=10_000))
        return page.jobs

    async def all_told(self, within_s: float = 1_000_000.0) -> Sequence[Job]:
        """Waits until no delivery is open."""
        began_at = self.clock.monotonic()
        ends_at = began_at + within_s
        while not (jobs := await self.deliveries()) or not all(job.state.is_end for job in jobs):
            assert self.clock.monotonic() < ends_at, jobs
            self.stage.store.tick()
            waited_s = self.clock.monotonic() - began_at
            await asyncio.sleep(1.0 if waited_s < SOON_S else max(30.0, waited_s / 100))
        return jobs
