"""Deliveries that failed are made again over every store: found by their endpoint, once, with the bytes that they had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from gateway.core.clock import Clock
from gateway.products.jobs.model import ClaimedWork, JobKind, JobState
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.webhooks.http import WebhookAdmin
from gateway.products.jobs.webhooks.rules import WebhookRules, deliveries_of
from gateway.products.jobs.webhooks.service import Endpoints, RequestedUrls
from tests.support.job_stores import Jobs

HOOKS = {name: WebhookRules(name, "https://h", "https://h/x", (b"s" * 24,)) for name in ("crm", "erp")}


class WallClock:
    """Tells the store's time."""

    ahead_s = 0.0

    def __init__(self, jobs: Jobs) -> None:
        self.wall = jobs.wall


def desk_over(jobs: Jobs) -> WebhookAdmin:
    async def store() -> JobStore:
        return jobs.store

    nobody: Any = None
    endpoints = Endpoints(lambda: HOOKS, lambda: 0.0, nobody)
    requested = RequestedUrls(lambda: True, lambda _key: (), lambda: 0.0, nobody)
    return WebhookAdmin(lambda: HOOKS, endpoints, requested, store, cast(Clock, WallClock(jobs)))


async def fail_all(jobs: Jobs) -> list[ClaimedWork]:
    """All deliveries to one endpoint that are due end without having been made."""
    works = [*await jobs.claim_all(segment="webhooks:crm")]
    for work in works:
        await jobs.finish(work, JobState.FAILED, is_attempt=True)
    return works


async def test_what_failed_is_made_again_once(jobs: Jobs) -> None:
    """And once more where that has failed, too; under the first one's webhook-id."""
    ended = [replace(jobs.job(), state=JobState.SUCCEEDED, ended_at=jobs.wall()) for _ in range(3)]
    for job in ended:
        for new in deliveries_of(job, HOOKS):
            await jobs.accept(new)
    first = await fail_all(jobs)
    jobs.wall.advance(3600)
    desk = desk_over(jobs)

    for _ in range(2):
        told = await desk.redeliver_since("crm", jobs.wall() - 86_400)
        assert (told["redelivered"], told["under_way"]) == (3, 0)
        told = await desk.redeliver_since("crm", jobs.wall() - 86_400)
        assert (told["redelivered"], told["under_way"]) == (0, 3)
        again = await fail_all(jobs)
        assert sorted(work.payload for work in again) == sorted(work.payload for work in first)
        assert {work.job.about["webhook_id"] for work in again} == {work.job.id for work in first}
    told = await desk.redeliver("crm", first[0].job.id)
    assert told["redelivered"] == 1
    assert {work.job.kind for work in await jobs.claim_all(segment="webhooks:erp")} == {JobKind.DELIVERY}
