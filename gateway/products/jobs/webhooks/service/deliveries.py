"""The life of a delivery: one event, posted to one endpoint until it is taken, or was tried as often as may be.

A delivery is at least once: one that was cut off may have arrived, and comes again under the same `webhook-id`. What it is
signed with, and where it goes, is looked up anew for each attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.core.clock import Clock
from gateway.core.limits.headers.reset_times import parse_retry_after
from gateway.products.jobs.model.job import JobEnd, JobError, JobState
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.webhooks.outward.job_ports_outward import FetchRefused, Unreachable
from gateway.products.jobs.webhooks.rules.events import ENDPOINT, EVENT, MESSAGE_ID, OF
from gateway.products.jobs.webhooks.rules.rules import REQUESTED, SEGMENT
from gateway.products.jobs.webhooks.rules.schedule import TIMEOUT_S, DeliveryResult, next_attempt_s, result_of
from gateway.products.jobs.webhooks.service.endpoints import Endpoints
from gateway.products.jobs.webhooks.service.requested import RequestedUrls
from gateway.products.jobs.webhooks.service.signing import signed_headers
from gateway.products.jobs.webhooks.service.standing import AttemptResult, DeliveryTurn
from gateway.products.jobs.worker.running import RunningWork

log = logging.getLogger("gateway.jobs")


def delivery_segments(endpoints: Endpoints, requested: RequestedUrls, store: JobStore) -> Sequence[SegmentRules]:
    """Returns all segments of deliveries, those that rest, are off or have left the config with no room: what waits there is
    not even looked at."""
    known = [*endpoints.segments(), *requested.segments()]
    names = {one.name for one in known}
    gone = {segment for segment, _, _ in store.depth() if segment.startswith(SEGMENT)} - names
    return [*known, *(SegmentRules(segment, concurrency=0) for segment in sorted(gone))]


class Deliveries:
    """Runs jobs of kind `delivery`."""

    def __init__(
        self,
        store: JobStore,
        endpoints: Endpoints,
        requested: RequestedUrls,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._store = store
        self._endpoints = endpoints
        self._requested = requested
        self._clock = clock
        self._draw = draw

    async def run(self, running: RunningWork) -> None:
        """Tries a delivery once, and ends its claim."""
        job = running.work.job
        places = self._requested if job.about[ENDPOINT] == REQUESTED else self._endpoints
        turn = places.turn(job)
        if not isinstance(turn, DeliveryTurn):
            await self._put_off(running, turn)
            return
        attempt: AttemptResult | None = None
        try:
            attempt = await self._post(turn, running)
        finally:
            turn.end(attempt)
        if running.meter is not None:
            running.meter.delivered(turn.name, attempt.result.value)
        if attempt.result is DeliveryResult.OK:
            await running.finish(self._store, JobEnd(JobState.SUCCEEDED, is_attempt=True))
        else:
            await self._failed(running, turn, attempt)

    async def _post(self, turn: DeliveryTurn, running: RunningWork) -> AttemptResult:
        """Returns what came of an attempt."""
        work, now = running.work, self._clock.wall()
        event, of = work.job.about[EVENT], work.job.about[OF]
        headers = signed_headers(turn.secrets, work.job.about.get(MESSAGE_ID, work.job.id), work.payload, now)
        try:
            answer = await turn.outward.post(turn.url, headers, work.payload, TIMEOUT_S)
        except FetchRefused as error:
            return AttemptResult(DeliveryResult.REFUSED, str(error), None, now, event, of)
        except Unreachable as error:
            return AttemptResult(DeliveryResult.UNREACHABLE, str(error), None, now, event, of)
        asked_s = parse_retry_after(answer.retry_after, self._clock.wall()) if answer.retry_after else None
        return AttemptResult(result_of(answer.status), f"the answer was {answer.status}", asked_s, now, event, of)

    async def _failed(self, running: RunningWork, turn: DeliveryTurn, attempt: AttemptResult) -> None:
        job, now = running.work.job, self._clock.wall()
        error = JobError(f"webhook_{attempt.result.value}", attempt.why, now)
        attempts = job.attempts + 1
        wait_s = next_attempt_s(attempts, self._draw(), attempt.asked_s)
        is_last = attempt.result is DeliveryResult.REFUSED or (
            attempt.result is DeliveryResult.GONE and turn.gone_ends_it
        )
        if wait_s is None or is_last or running.ends_as is not None:
            log.warning(
                "webhook %s was not told of %s (%s) in %d attempts: %s",
                *(turn.shown, job.about[OF], job.about[EVENT], attempts, attempt.why),
            )
            await running.finish(self._store, JobEnd(running.ends_as or JobState.FAILED, error, is_attempt=True))
            return
        run_at = now + wait_s
        give_back = self._store.give_back
        await running.write(lambda: give_back(running.work, run_at=run_at, error=error, is_attempt=True))
        if running.meter is not None:
            running.meter.tried_again(error.error_class)

    async def _put_off(self, running: RunningWork, wait_s: float) -> None:
        """The endpoint is not to be told anything now; that is no attempt."""
        run_at = self._clock.wall() + wait_s
        await running.write(lambda: self._store.give_back(running.work, run_at=run_at, is_attempt=False))
