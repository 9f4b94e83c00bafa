"""Deliveries: signed, tried by the schedule, and none lost, whatever endpoints and gateways do meanwhile."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from gateway.drivers.outward import Unreachable
from gateway.products.jobs import worker as worker_module
from gateway.products.jobs.model import JobFlag, JobState
from gateway.products.jobs.webhooks.rules import IN_FLIGHT, SCHEDULE_S
from tests.products.jobs.webhooks.hooks import SECRET, Hooks, hook
from tests.support.stage import fine
from tests.support.virtual import LoopClock, run

CRM, ERP = "https://crm.test/hooks", "https://erp.test/hooks"
OLD_SECRET = b"the secret before that one, until now"


@pytest.fixture(autouse=True)
def _long_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for what nobody wakes it for once a minute: deliveries take days."""
    monkeypatch.setattr(worker_module, "LOOK_S", 60.0)


def near(*seconds: float) -> object:
    """These waits, as exactly as they can be seen."""
    return pytest.approx([*seconds], rel=0.04, abs=2.0)


def test_the_end_of_a_job_is_told() -> None:
    """With an event in OpenAI's shape, under a signature; and the delivery is a job that ends."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook(secrets=(SECRET, OLD_SECRET)))
        hooks.worker.start()
        await hooks.stage.accept("job_1")

        (delivery,) = await hooks.all_told()
        ended = await hooks.stage.end_of()
        (seen,) = hooks.seen
        signatures = []
        for secret in (SECRET, OLD_SECRET):
            signed = b"%b.%b." % (seen.headers[b"webhook-id"], seen.headers[b"webhook-timestamp"])
            work = hmac.new(secret, signed + orjson.dumps(seen.event), hashlib.sha256)
            signatures.append(b"v1," + base64.b64encode(work.digest()))

        assert seen.event["id"].startswith("evt_gw")
        assert seen.event == {
            "id": seen.event["id"],
            "object": "event",
            "created_at": int(ended.ended_at or 0),
            "type": "job.succeeded",
            "data": {"id": "job_1"},
        }
        assert seen.headers[b"webhook-signature"].split() == signatures
        assert seen.headers[b"webhook-id"].decode() == delivery.id
        assert (delivery.state, delivery.attempts) == (JobState.SUCCEEDED, 1)
        assert dict(hooks.stage.meter.work.webhooks.totals) == {("crm", "ok"): 1}
        await hooks.worker.aclose()

    run(story)


@pytest.mark.parametrize(
    ("answer", "result"),
    [(500, "failed"), (302, "failed"), (404, "failed"), (Unreachable("nobody there"), "unreachable")],
)
def test_a_delivery_that_fails_is_tried_by_the_schedule_and_fails_at_its_end(
    answer: int | Unreachable, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten times in 75 hours, each under the same id and a new time; then it says why, also in the log."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.script = lambda _url, _try: answer
        hooks.worker.start()
        await hooks.stage.accept("job_1")

        (delivery,) = await hooks.all_told()
        waits = [later.at - one.at for one, later in pairwise(hooks.seen)]

        assert waits == near(*SCHEDULE_S[1:])
        assert len({one.headers[b"webhook-id"] for one in hooks.seen}) == 1
        assert len({one.headers[b"webhook-signature"] for one in hooks.seen}) == len(SCHEDULE_S)
        assert (delivery.state, delivery.attempts) == (JobState.FAILED, len(SCHEDULE_S))
        assert delivery.last_error is not None
        assert delivery.last_error.error_class == f"webhook_{result}"
        assert dict(hooks.stage.meter.work.webhooks.totals) == {("crm", result): len(SCHEDULE_S)}
        await hooks.worker.aclose()

    with caplog.at_level(logging.WARNING, "gateway.jobs"):
        run(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("webhook crm was not told of job_1 (job.succeeded) in 10 attempts: ")


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
def test_a_machine_whose_time_was_set_signs_by_its_new_time(ahead_s: float) -> None:
    """Receivers refuse what is signed five minutes off; the tries come as they would have, by the clock that never jumps."""

    async def story(clock: LoopClock) -> None:
        clock.ahead_s = ahead_s
        hooks = Hooks(clock)
        hooks.script = lambda _url, tries: 200 if tries == 2 else 500
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await hooks.all_told()

        assert [later.at - one.at for one, later in pairwise(hooks.seen)] == near(*SCHEDULE_S[1:3])
        signed_at = [int(one.headers[b"webhook-timestamp"]) for one in hooks.seen]
        assert signed_at == [int(one.at - ahead_s) for one in hooks.seen]
        await hooks.worker.aclose()

    run(story)


def test_an_endpoint_that_is_down_for_an_hour_hears_of_everything() -> None:
    """With gateways that start anew in between: each event arrives, once."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, draw=0.0)
        back_at = clock.wall() + 3600
        hooks.script = lambda _url, _try: Unreachable("refused") if clock.wall() < back_at else 200
        worker = hooks.worker
        worker.start()
        ids = [f"job_{number}" for number in range(30)]
        for job_id in ids:
            await hooks.stage.accept(job_id, deadline=clock.wall() + 1e6)
            await asyncio.sleep(60.0)
            await worker.aclose()
            worker = hooks.make_worker()
            worker.start()

        jobs = await hooks.all_told()
        arrived = [one.event["data"]["id"] for one in hooks.seen if one.at >= back_at]

        assert sorted(arrived) == sorted(ids)
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        await worker.aclose()

    run(story)


def test_a_slow_endpoint_delays_only_itself() -> None:
    """It has four deliveries at a time, whatever waits; another endpoint hears of everything at once."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook("crm"), hook("erp"))
        hooks.takes_s = lambda url: 14.0 if url == CRM else 0.01
        hooks.stage.script = fine
        hooks.worker.start()
        ids = [f"job_{number}" for number in range(60)]
        began_at = clock.wall()
        await hooks.stage.accept(*ids)
        while len(hooks.attempts(ERP)) < len(ids):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.1)
        erp_took_s = clock.wall() - began_at
        await hooks.all_told()

        assert erp_took_s < 3.0
        assert hooks.most_under_way[CRM] == IN_FLIGHT
        assert len(hooks.attempts(CRM)) == len(ids)
        await hooks.worker.aclose()

    run(story)


def test_one_that_never_answers_is_left_after_fifteen_seconds() -> None:
    """That was an attempt."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.takes_s = lambda _url: 1000.0 if len(hooks.seen) == 1 else 0.0
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        (delivery,) = await hooks.all_told()

        assert hooks.seen[1].at - hooks.seen[0].at == pytest.approx(15.0 + 5.0, abs=1.5)
        assert delivery.attempts == 2
        await hooks.worker.aclose()

    run(story)


def test_retry_after_makes_the_wait_longer_and_never_shorter() -> None:
    """One that wants to be asked at once would see all attempts within seconds."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        asked = [b"60", b"0", b"nonsense"]
        hooks.script = lambda _url, number: (503, asked[number]) if number < len(asked) else 200
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await hooks.all_told()
        waits = [later.at - one.at for one, later in pairwise(hooks.seen)]

        assert waits == near(60.0, 300.0, 1800.0)
        await hooks.worker.aclose()

    run(story)


@pytest.mark.parametrize("status", [429, 502, 504])
def test_an_endpoint_with_too_much_to_do_is_left_alone_and_then_tried_gently(status: int) -> None:
    """During its rest nothing is sent, not even what is due; after it one at a time, until one is taken."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.script = lambda _url, number: (status, b"120") if number == 0 else status if number == 1 else 200
        hooks.takes_s = lambda _url: 1.0
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await asyncio.sleep(3.0)
        await hooks.stage.accept(*(f"job_{number}" for number in range(2, 12)))
        await hooks.all_told()
        first, second, third, *rest = [one.at for one in hooks.seen]

        assert second - first >= 120.0
        assert third - second >= 10.0
        assert rest[0] >= third + 1.0
        assert len({one.event["data"]["id"] for one in hooks.seen}) == 11
        await hooks.worker.aclose()

    run(story)


def test_an_endpoint_that_is_gone_gets_nothing_until_its_entry_changes(caplog: pytest.LogCaptureFixture) -> None:
    """What is for it waits; the log says so once."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.script = lambda _url, number: 410 if number == 0 else 200
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await asyncio.sleep(100.0)
        await hooks.stage.accept("job_2")
        hooks.rules = {
            "crm": hook(),
            "erp": hook("erp", events=("batch.*",)),
        }  # a reload that leaves the entry as it is
        await asyncio.sleep(3600.0)
        assert len(hooks.seen) == 1
        hooks.rules = {"crm": replace(hook(), secrets=(OLD_SECRET,))}

        jobs = await hooks.all_told()
        assert sorted(one.event["data"]["id"] for one in hooks.seen[1:]) == ["job_1", "job_2"]
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        await hooks.worker.aclose()

    with caplog.at_level(logging.WARNING, "gateway.jobs"):
        run(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("webhook crm answered 410 Gone: it gets nothing any more until")


def test_a_restart_gives_an_endpoint_that_is_gone_another_chance() -> None:
    """Nothing of it is stored."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.script = lambda _url, number: 410 if number == 0 else 200
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await asyncio.sleep(100.0)
        await hooks.worker.aclose()
        worker = hooks.make_worker()
        worker.start()

        (delivery,) = await hooks.all_told()
        assert (delivery.state, delivery.attempts) == (JobState.SUCCEEDED, 2)
        await worker.aclose()

    run(story)


def test_what_is_for_an_endpoint_that_left_the_config_waits_for_a_week() -> None:
    """Back in the config it hears of it; else the delivery expires."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook("crm"), hook("erp"))
        both = dict(hooks.rules)
        hooks.script = lambda _url, _try: 500
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await asyncio.sleep(2.0)
        hooks.rules = {}
        await asyncio.sleep(86_400.0)
        hooks.rules = {"erp": both["erp"]}
        hooks.script = lambda _url, _try: 200

        jobs = await hooks.all_told()
        assert {job.about["webhook"]: job.state for job in jobs} == {
            "erp": JobState.SUCCEEDED,
            "crm": JobState.EXPIRED,
        }
        await hooks.worker.aclose()

    run(story)


def test_a_gateway_that_stops_in_the_middle_of_an_attempt_gives_it_back() -> None:
    """It is no attempt; the next gateway sends it again under the same id."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        hooks.takes_s = lambda _url: 10.0 if len(hooks.seen) == 1 else 0.0
        hooks.worker.start()
        await hooks.stage.accept("job_1")
        await asyncio.sleep(3.0)
        await hooks.worker.aclose()
        worker = hooks.make_worker()
        worker.start()

        (delivery,) = await hooks.all_told()
        assert len(hooks.seen) == 2
        assert len({one.headers[b"webhook-id"] for one in hooks.seen}) == 1
        assert delivery.attempts == 1
        await worker.aclose()

    run(story)


def test_jobs_that_a_store_ends_itself_are_told_too() -> None:
    """Cancelled before anybody ran it, and past its deadline; a batch when it is put together."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        at = clock.wall()
        await hooks.stage.accept("job_1", run_at=at + 50.0, state=JobState.SCHEDULED)
        await hooks.stage.accept("job_2", run_at=at + 50.0, deadline=at + 20.0, state=JobState.SCHEDULED)
        await hooks.stage.accept_batch(3)
        await hooks.stage.store.flag("job_1", "t", JobFlag.CANCEL)
        hooks.worker.start()
        await hooks.stage.end_of("job_2")
        await hooks.stage.end_of("batch_1")
        await hooks.all_told()

        assert {(one.event["type"], one.event["data"]["id"]) for one in hooks.seen} == {
            ("job.cancelled", "job_1"),
            ("job.expired", "job_2"),
            ("batch.completed", "batch_1"),
        }
        await hooks.worker.aclose()

    run(story)
