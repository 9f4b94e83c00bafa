"""Deliveries to URLs that requests name: signed with their key's secret, and each host and tenant delays only himself."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest

from gateway.core.snapshot import Key, with_settings
from gateway.drivers.outward import FetchRefused, Unreachable
from gateway.products.jobs import worker as worker_module
from gateway.products.jobs.model import JobState
from gateway.products.jobs.request import WEBHOOK_SECRETS, WebhookNotAllowed, refuse_request_url
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.webhooks.rules import (
    ENDPOINT,
    IN_FLIGHT,
    REQUESTED,
    SCHEDULE_S,
    TENANT_IN_FLIGHT,
    DeliveryResult,
)
from gateway.products.jobs.webhooks.service import MOST_HOSTS, AttemptResult, DeliveryTurn, RequestedUrls
from tests.products.jobs.webhooks.hooks import SECRET, Hooks, hook
from tests.products.jobs.webhooks.test_webhooks import JOB
from tests.support.virtual import LoopClock, run

URL, OTHER = "https://hooks.example.com/in?t=s3cret", "https://fast.example.org/in"
ALLOWING = JobRules(allow_request_urls=True)


@pytest.fixture(autouse=True)
def _long_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for what nobody wakes it for once a minute: deliveries take days."""
    monkeypatch.setattr(worker_module, "LOOK_S", 60.0)


def about(url: str = URL) -> dict[str, Any]:
    return {"endpoint": "/v1/chat/completions", "headers": [], "webhook_url": url}


async def told(hooks: Hooks, *ids: str, url: str = URL, **changes: Any) -> None:
    """Jobs whose requests named a URL."""
    await hooks.stage.accept(*ids, about=about(url), key="k", deadline=hooks.clock.wall() + 1e6, **changes)


def test_the_url_of_a_request_is_told_under_its_keys_secret() -> None:
    """Beside the endpoints of the config, each with a delivery of its own; no log line has its path."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.worker.start()
        await told(hooks, "job_1")

        jobs = await hooks.all_told()
        (seen,) = hooks.attempts(URL)
        signed = b"%b.%b." % (seen.headers[b"webhook-id"], seen.headers[b"webhook-timestamp"])
        work = hmac.new(SECRET, signed + orjson.dumps(seen.event), hashlib.sha256)

        assert seen.event["type"] == "job.succeeded"
        assert seen.headers[b"webhook-signature"] == b"v1," + base64.b64encode(work.digest())
        assert {job.about[ENDPOINT]: job.state for job in jobs} == dict.fromkeys(("crm", REQUESTED), JobState.SUCCEEDED)
        assert len({seen.headers[b"webhook-id"], *(one.headers[b"webhook-id"] for one in hooks.attempts())}) == 2
        assert dict(hooks.stage.meter.work.webhooks.totals) == {("crm", "ok"): 1, (REQUESTED, "ok"): 1}
        await hooks.worker.aclose()

    run(story)


@pytest.mark.parametrize(
    ("answer", "tries", "result"),
    [
        (410, 1, "webhook_gone"),
        (FetchRefused("its host stands for an address that is not public"), 1, "webhook_refused"),
        (302, len(SCHEDULE_S), "webhook_failed"),
        (Unreachable("nobody there"), len(SCHEDULE_S), "webhook_unreachable"),
    ],
)
def test_what_is_final_for_a_url_ends_its_delivery_and_no_other(
    answer: int | Unreachable, tries: int, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    """410, and what the guard refuses; the next job of the same URL is told all the same. No log line has the path."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)))
        hooks.script = lambda _url, _try: answer
        hooks.worker.start()
        await told(hooks, "job_1")
        (delivery,) = await hooks.all_told()
        assert (delivery.state, len(hooks.seen)) == (JobState.FAILED, tries)
        assert delivery.last_error is not None
        assert delivery.last_error.error_class == result

        hooks.script = lambda _url, _try: 200
        await told(hooks, "job_2")
        await hooks.stage.end_of("job_2")
        later, _ = await hooks.all_told()
        assert later.state is JobState.SUCCEEDED
        await hooks.worker.aclose()

    run(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("webhook at https://hooks.example.com was not told of job_1 (job.succeeded) in")
    assert "s3cret" not in caplog.text


def test_a_receiver_that_is_down_for_an_hour_hears_of_everything() -> None:
    """With gateways that start anew in between: each event arrives, once, by the schedule."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)), draw=0.5)
        back_at = clock.wall() + 3600
        hooks.script = lambda _url, _try: Unreachable("refused") if clock.wall() < back_at else 200
        worker = hooks.worker
        worker.start()
        ids = [f"job_{number}" for number in range(20)]
        for job_id in ids:
            await told(hooks, job_id)
            await asyncio.sleep(60.0)
            await worker.aclose()
            worker = hooks.make_worker()
            worker.start()

        jobs = await hooks.all_told()
        assert sorted(one.event["data"]["id"] for one in hooks.seen if one.at >= back_at) == sorted(ids)
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        first = [one.at for one in hooks.seen if one.event["data"]["id"] == "job_0"]
        for wait, usual in zip([later - one for one, later in pairwise(first)], SCHEDULE_S[1:], strict=False):
            assert wait == pytest.approx(usual, rel=0.2, abs=61.0)
        await worker.aclose()

    run(story)


def test_a_slow_host_delays_only_itself_and_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has four deliveries at a time; another host, of the same tenant, hears of everything at once."""
    monkeypatch.setattr(worker_module, "LOOK_S", 1.0)

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)))
        hooks.takes_s = lambda url: 14.0 if url == URL else 0.01
        claimed = 0
        claim = hooks.stage.store.claim

        async def counting(asks: Any) -> Any:
            nonlocal claimed
            works = await claim(asks)
            claimed += sum(work.job.about.get(ENDPOINT) == REQUESTED for work in works)
            return works

        hooks.stage.store.claim = counting  # type: ignore[method-assign]  # the store of this test alone
        hooks.worker.start()
        await told(hooks, *(f"slow_{number}" for number in range(100)))
        await asyncio.sleep(30.0)
        began_at = clock.wall()
        await told(hooks, *(f"fast_{number}" for number in range(40)), url=OTHER)
        while len(hooks.attempts(OTHER)) < 40:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.1)
        fast_took_s = clock.wall() - began_at
        await hooks.all_told()
        slow_took_s = hooks.seen[-1].at - hooks.seen[0].at

        assert fast_took_s < 5.0
        assert hooks.most_under_way == {URL: IN_FLIGHT, OTHER: IN_FLIGHT}
        assert (len(hooks.attempts(URL)), len(hooks.attempts(OTHER))) == (100, 40)
        assert slow_took_s < 1.1 * 100 / IN_FLIGHT * 14.0  # its four are always under way
        assert claimed < 1000  # of a line of a hundred, looked at once a minute
        await hooks.worker.aclose()

    run(story)


def test_a_tenant_of_many_slow_hosts_delays_only_himself() -> None:
    """He has sixteen deliveries at a time, whatever he names; another tenant's are under way at once."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)))
        hooks.takes_s = lambda url: 14.0 if "slow" in url else 0.01
        hooks.worker.start()
        for number in range(100):
            await told(hooks, f"slow_{number}", url=f"https://slow{number}.example.com/")
        await asyncio.sleep(20.0)
        began_at = clock.wall()
        await told(hooks, "job_1", url=OTHER, tenant="other")
        while not hooks.attempts(OTHER):
            assert sum(hooks.under_way.values()) <= TENANT_IN_FLIGHT
            await asyncio.sleep(0.1)

        assert clock.wall() - began_at < 2.0
        await hooks.all_told()
        assert len(hooks.seen) == 101
        await hooks.worker.aclose()

    run(story)


@pytest.mark.parametrize("status", [429, 502, 504])
def test_a_host_with_too_much_to_do_rests_for_its_tenant_alone(status: int) -> None:
    """What is due meanwhile waits without an attempt; the same host is told of another tenant's jobs."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)))
        hooks.script = lambda _url, number: (status, b"300") if number == 0 else 200
        hooks.worker.start()
        await told(hooks, "job_1")
        await asyncio.sleep(12.0)
        await told(hooks, "job_2", "job_3")
        await told(hooks, "job_4", tenant="other")
        await asyncio.sleep(30.0)
        assert [one.event["data"]["id"] for one in hooks.seen] == ["job_1", "job_4"]

        jobs = await hooks.all_told()
        assert {job.about["of"]: job.attempts for job in jobs} == {"job_1": 2, "job_2": 1, "job_3": 1, "job_4": 1}
        assert hooks.seen[2].at - hooks.seen[0].at >= 300.0
        await hooks.worker.aclose()

    run(story)


def test_what_is_not_allowed_any_more_waits_and_costs_nothing() -> None:
    """Also where the key, or its secrets, are gone; back, all are told."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(events=("batch.*",)))
        hooks.allows = False
        hooks.worker.start()
        await told(hooks, "job_1", "job_2")
        await asyncio.sleep(3600.0)
        hooks.allows, hooks.key_secrets = True, {}
        await asyncio.sleep(3600.0)
        assert hooks.seen == []
        hooks.key_secrets = {"k": (SECRET,)}

        jobs = await hooks.all_told()
        assert {(job.state, job.attempts) for job in jobs} == {(JobState.SUCCEEDED, 1)}
        await hooks.worker.aclose()

    run(story)


def test_what_waits_for_an_endpoint_that_is_off_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is gone, and of one that left the config: no claim, and no write, in a day."""
    monkeypatch.setattr(worker_module, "LOOK_S", 60.0)

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook("crm"), hook("erp"))
        hooks.script = lambda url, _try: 410 if "crm" in url else 500
        hooks.worker.start()
        await hooks.stage.accept(*(f"job_{number}" for number in range(20)), deadline=clock.wall() + 1e6)
        await asyncio.sleep(300.0)
        hooks.rules.pop("erp")
        before = {job.id: job.revision for job in await hooks.deliveries()}
        seen = len(hooks.seen)
        fences = (await hooks.stage.store.claim([]), next(hooks.stage.store._fences))[1]
        await asyncio.sleep(86_400.0)

        assert {job.id: job.revision for job in await hooks.deliveries()} == before
        assert next(hooks.stage.store._fences) == fences + 1  # none was claimed
        assert len(hooks.seen) == seen
        await hooks.worker.aclose()

    run(story)


def test_memory_is_bounded_over_any_number_of_hosts() -> None:
    """Hosts that take what they get leave nothing behind; of those that rest only so many are remembered."""
    hooks: Any = object()
    now = 100.0
    urls = RequestedUrls(lambda: True, lambda _key: (SECRET,), lambda: now, hooks)

    def turn(number: int) -> DeliveryTurn:
        about = {"webhook_url": f"https://h{number}.example.com/", "tenant": "t", "webhook_key": "k"}
        found = urls.turn(replace(JOB, about=about))
        assert isinstance(found, DeliveryTurn)
        return found

    for number in range(3 * MOST_HOSTS):
        turn(number).end(AttemptResult(DeliveryResult.OK, ""))
    assert (len(urls), urls.in_flight) == (0, 0)
    for number in range(2 * MOST_HOSTS):
        turn(number).end(AttemptResult(DeliveryResult.THROTTLED, ""))
    assert len(urls) == MOST_HOSTS
    assert urls.resting == MOST_HOSTS


def test_urls_of_requests_are_refused_until_they_are_allowed_and_signed() -> None:
    """Naming the field, and the remedy."""
    key = with_settings(Key("web", "t", b"d"), {WEBHOOK_SECRETS: (SECRET,)})

    refuse_request_url(URL, ALLOWING, key)
    refuse_request_url("", JobRules(), Key("web", "t", b"d"))
    with pytest.raises(WebhookNotAllowed, match="allow_request_urls: true"):
        refuse_request_url(URL, JobRules(), key)
    with pytest.raises(WebhookNotAllowed, match="give the key 'web' webhook_secrets"):
        refuse_request_url(URL, ALLOWING, Key("web", "t", b"d"))
