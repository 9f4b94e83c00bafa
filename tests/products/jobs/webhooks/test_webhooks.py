"""When deliveries are tried, what answers mean for them, and whom the end of which job is told to."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.products.jobs.model import DELIVERY, DELIVERY_DEADLINE_S, ENDS, EVENT, Job, JobKind, JobState, is_ours
from gateway.products.jobs.webhooks.rules import (
    EVENTS,
    JITTER,
    SCHEDULE_S,
    DeliveryResult,
    WebhookRules,
    deliveries_of,
    next_attempt_s,
    rest_s,
    result_of,
)

DRAWS = st.floats(0.0, 1.0, exclude_max=True)
ASKED = st.none() | st.floats(0.0, 1e9)
JOB = Job(
    id="job_gw1",
    kind=JobKind.CALL,
    tenant="acme",
    key="web",
    lane="batch",
    segment="fast",
    is_urgent=False,
    model="m",
    state=JobState.SUCCEEDED,
    created_at=100.0,
    run_at=100.0,
    deadline=500.0,
    max_attempts=3,
    about={},
    ended_at=200.5,
)


def hook(name: str = "crm", **changes: object) -> WebhookRules:
    rules = WebhookRules(name, "https://h", "https://h/x", (b"s" * 24,))
    return replace(rules, **changes)  # type: ignore[arg-type]  # fields of the rules


@given(st.integers(1, 20), DRAWS, ASKED)
def test_waits_are_those_of_the_schedule(attempts: int, draw: float, asked_s: float | None) -> None:
    """Up to a fifth more or less; longer only where the endpoint asks for it, a day at most; none behind the last one."""
    wait_s = next_attempt_s(attempts, draw, asked_s)

    assert (wait_s is None) == (attempts >= len(SCHEDULE_S))
    if wait_s is not None:
        usual_s = SCHEDULE_S[attempts]
        assert wait_s >= usual_s * (1 - JITTER)
        assert wait_s <= max(usual_s * (1 + JITTER), min(asked_s or 0.0, 86_400.0))
        assert asked_s is None or wait_s >= min(asked_s, 86_400.0)


@given(DRAWS)
def test_all_attempts_are_made_before_the_deadline(draw: float) -> None:
    """With all the jitter there may be, and a minute lost at each."""
    assert (
        sum(next_attempt_s(attempts, draw) or 0.0 for attempts in range(1, len(SCHEDULE_S))) + 600 < DELIVERY_DEADLINE_S
    )


@given(st.integers(1, 1000), ASKED)
def test_rests_grow_and_have_an_end(throttled: int, asked_s: float | None) -> None:
    """Five seconds, and never more than five minutes that nobody asked for."""
    wait_s = rest_s(throttled, asked_s)

    assert 5.0 <= wait_s <= max(300.0, min(asked_s or 0.0, 86_400.0))
    assert rest_s(throttled + 1, asked_s) >= wait_s


@given(st.integers(100, 599))
def test_only_a_2xx_is_taken_for_an_answer(status: int) -> None:
    """410 is a wish, and three others mean that there is too much to do."""
    special = {410: DeliveryResult.GONE, **dict.fromkeys((429, 502, 504), DeliveryResult.THROTTLED)}
    usual = DeliveryResult.OK if 200 <= status < 300 else DeliveryResult.FAILED

    assert result_of(status) is special.get(status, usual)


def test_every_end_has_its_event() -> None:
    """Of calls and of batches; deliveries end unheard, and so does what has not ended."""
    hooks = {"crm": hook()}
    kinds = JobKind.CALL, JobKind.BATCH, JobKind.RESPONSE
    ends = [replace(JOB, kind=kind, state=state) for kind in kinds for state in ENDS]
    ends.append(replace(JOB, kind=JobKind.RESPONSE, state=JobState.SUCCEEDED, marks={"status": "incomplete"}))
    events = [orjson.loads(new.payload)["type"] for end in ends for new in deliveries_of(end, hooks)]

    assert sorted(events) == sorted([*EVENTS, "response.failed"])  # of one that expired, too
    assert not deliveries_of(replace(JOB, kind=JobKind.DELIVERY), hooks)
    assert not deliveries_of(replace(JOB, state=JobState.RUNNING), hooks)


def test_each_endpoint_that_is_to_hear_gets_the_same_event_in_a_delivery_of_its_own() -> None:
    """Always with the same ids, so that a store that asks twice has it once."""
    hooks = {name: hook(name) for name in ("crm", "erp")} | {"lab": hook("lab", tenants=("lab",))}
    deliveries = deliveries_of(JOB, hooks)

    assert deliveries == deliveries_of(JOB, hooks)
    assert [new.job.segment for new in deliveries] == ["webhooks:crm", "webhooks:erp"]
    assert len({new.job.id for new in deliveries}) == 2
    assert all(is_ours(DELIVERY, new.job.id) for new in deliveries)
    (event,) = {new.payload for new in deliveries}
    told = orjson.loads(event)
    assert is_ours(EVENT, told.pop("id"))
    assert told == {"object": "event", "created_at": 200, "type": "job.succeeded", "data": {"id": "job_gw1"}}
    assert {new.job.tenant for new in deliveries} == {""}
