"""The life of a delivery: one event, posted to one endpoint until it is taken, or was tried as often as may be.

A delivery is at least once: one that was cut off may have arrived, and comes again under the same `webhook-id`. What it is
signed with, and where it goes, is looked up anew for each attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from gateway.clock import Clock
from gateway.job_ports import JobStore, Outward, Unreachable
from gateway.jobs.running import RunningWork
from gateway.jobs.webhooks.endpoints import Endpoints
from gateway.jobs.webhooks.signing import signed_headers
from gateway.policy.jobs.errors import JobsUnavailable
from gateway.policy.jobs.job import JobEnd, JobError, JobState
from gateway.policy.learning.reset_times import parse_retry_after
from gateway.policy.webhooks.events import ENDPOINT, EVENT
from gateway.policy.webhooks.rules import WebhookRules
from gateway.policy.webhooks.schedule import TIMEOUT_S, DeliveryResult, next_attempt_s, result_of

LOOK_AGAIN_S = 5.0
"""A delivery that was claimed in the moment in which its endpoint began to rest, or went, is looked at again so much later."""
log = logging.getLogger("gateway.jobs")


class Deliveries:
    """Runs jobs of kind `delivery`."""

    def __init__(
        self,
        store: JobStore,
        outward: Outward,
        endpoints: Endpoints,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._store = store
        self._outward = outward
        self._endpoints = endpoints
        self._clock = clock
        self._draw = draw

    async def run(self, running: RunningWork) -> None:
        """Tries a delivery once, and ends its claim."""
        rules = self._endpoints.find(running.work.job.about[ENDPOINT])
        if rules is None or not self._endpoints.may_hear(rules):
            await self._put_off(running)
            return
        try:
            result, why, asked_s = await self._post(rules, running)
        except asyncio.CancelledError:
            if running.is_ours:
                with suppress(JobsUnavailable):  # then the claim ends by its lease, or with the process
                    await asyncio.shield(self._store.give_back(running.work, run_at=None, is_attempt=False))
            raise
        self._endpoints.note(rules, result, asked_s)
        if running.meter is not None:
            running.meter.delivered(rules.name, result.value)
        if result is DeliveryResult.OK:
            await running.finish(self._store, JobEnd(JobState.SUCCEEDED, is_attempt=True))
        else:
            await self._failed(running, result, why, asked_s)

    async def _post(self, rules: WebhookRules, running: RunningWork) -> tuple[DeliveryResult, str, float | None]:
        """Returns what came of an attempt, why, and the Retry-After."""
        work, now = running.work, self._clock.wall()
        headers = signed_headers(rules.secrets, work.job.id, work.payload, now)
        try:
            answer = await self._outward.post(rules.url, headers, work.payload, TIMEOUT_S)
        except Unreachable as error:
            return DeliveryResult.UNREACHABLE, str(error), None
        asked_s = parse_retry_after(answer.retry_after, self._clock.wall()) if answer.retry_after else None
        return result_of(answer.status), f"the answer was {answer.status}", asked_s

    async def _failed(self, running: RunningWork, result: DeliveryResult, why: str, asked_s: float | None) -> None:
        job, now = running.work.job, self._clock.wall()
        error = JobError(f"webhook_{result.value}", why, now)
        attempts = job.attempts + 1
        wait_s = next_attempt_s(attempts, self._draw(), asked_s)
        if wait_s is None or running.ends_as is not None:
            log.warning(
                "webhook %s was not told of %s (%s) in %d attempts: %s",
                *(job.about[ENDPOINT], job.about["of"], job.about[EVENT], attempts, why),
            )
            await running.finish(self._store, JobEnd(running.ends_as or JobState.FAILED, error, is_attempt=True))
            return
        run_at = now + wait_s
        give_back = self._store.give_back
        await running.write(lambda: give_back(running.work, run_at=run_at, error=error, is_attempt=True))
        if running.meter is not None:
            running.meter.tried_again(error.error_class)

    async def _put_off(self, running: RunningWork) -> None:
        """The endpoint is not to be told anything now; that is no attempt."""
        run_at = self._clock.wall() + LOOK_AGAIN_S
        await running.write(lambda: self._store.give_back(running.work, run_at=run_at, is_attempt=False))
