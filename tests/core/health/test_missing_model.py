"""A model that the config names and its provider does not know: what the operator hears, and whom it concerns.

What comes of the calls themselves is in `test_faults.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from gateway.admin.views import show_targets
from gateway.core.admission.gates import MISSING_REMEDY
from gateway.core.balancing import Retries
from gateway.core.call import Reply
from gateway.core.errors import GatewayError, NotFound
from gateway.core.health.detector import LOST_AFTER, BreakerRules
from gateway.core.snapshot import Model
from gateway.core.types import LANES
from tests.support.flow import Bench, Script, ScriptedUpstream, streamed, whole

NO_MODEL = whole(b'{"error":{"message":"The model `m` does not exist","code":"model_not_found"}}', 404)
NO_MODEL_INSIDE = streamed(b'data: {"error":{"message":"no","code":"model_not_found"}}\n\n')
WARNING = f"the provider knows no model 'm', or not for this account; {MISSING_REMEDY}"


def bench_of(*scripts: list[Script], **options: object) -> Bench:
    """One target for each list of answers."""
    return Bench([ScriptedUpstream(*each) for each in scripts], retries=Retries(), **options)  # type: ignore[arg-type]  # as Bench names them


async def ask(bench: Bench, **changes: object) -> int:
    """The status that a caller gets."""
    try:
        reply, _ = await bench.serve(**changes)
    except GatewayError as error:
        return error.status
    assert isinstance(reply, Reply)
    return reply.status


def warnings(bench: Bench) -> list[str | None]:
    """What `/admin/targets` says is to be mended, target by target."""
    rows = show_targets(bench.admission, bench.policy, bench.clock.now)["targets"]
    return [row["warning"] for row in rows.values()]


def states(bench: Bench) -> list[str]:
    """Of the breakers, target by target."""
    return [line.gate.health.breaker.state for line in bench.admission.gates.lines.values()]


def sent(bench: Bench) -> list[int]:
    """Requests, target by target."""
    return [len(upstream.sent) for upstream in bench.upstreams]


def one_model(bench: Bench, name: str) -> Model:
    """Another model of the config, whose only target is the first one."""
    model = bench.policy.models["m"]
    return replace(model, name=name, targets=model.targets[:1], plan=model.targets[:1])


@pytest.mark.parametrize("bad", [NO_MODEL, NO_MODEL_INSIDE])
async def test_the_operator_is_told_once_what_to_mend(bad: Script, caplog: pytest.LogCaptureFixture) -> None:
    """On the page for as long as it is so; in the log once, however often it is tried again."""
    bench = bench_of([bad] * 5, [whole()] * 9)

    with caplog.at_level(logging.WARNING, "gateway.health"):
        for _ in range(4):
            assert await ask(bench) == 200
            bench.clock.advance(70.0)

    assert warnings(bench) == [WARNING, None]
    assert sent(bench) == [4, 4]  # each time after its pause
    assert [one.message for one in caplog.records].count(f"p0/m: {WARNING}") == 1


async def test_the_first_good_answer_ends_it() -> None:
    """Somebody has mended it."""
    bench = bench_of([NO_MODEL, whole(), whole()], [whole()])
    await ask(bench)
    bench.clock.advance(70.0)

    assert await ask(bench, lane="background") == 200

    assert (warnings(bench), sent(bench)) == ([None, None], [2, 1])


async def test_the_only_target_is_asked_each_time_and_serves_at_once_when_its_model_is_there() -> None:
    """There is nobody whom leaving it alone would help."""
    bench = bench_of([NO_MODEL] * 6 + [whole()])

    assert [await ask(bench) for _ in range(7)] == [404] * 6 + [200]

    assert (warnings(bench), states(bench)) == ([None], ["closed"])


async def test_all_targets_of_another_model_are_left_alone() -> None:
    """Its calls hear 404, and not that they should come back: that would help nobody."""
    bench = bench_of([NO_MODEL] * 3, [whole()])
    await ask(bench)

    for lane in ("interactive", "batch"):
        with pytest.raises(NotFound) as caught:
            await bench.serve(model=one_model(bench, "other"), lane=lane)
        assert (caught.value.code, caught.value.should_retry) == ("model_not_found", False)
        assert "p0/m" in caught.value.message
    assert sent(bench) == [1, 1]


async def test_while_the_one_that_has_the_model_is_out_callers_hear_that() -> None:
    """It may be back soon, which a 404 would deny."""
    bench = bench_of([NO_MODEL] * 3, [whole()], breaker=BreakerRules(hold_for_s=dict.fromkeys(LANES, 0.0)))
    await ask(bench)
    health = bench.admission.gates.lines["p1/m"].gate.health
    for _ in range(20):
        health.failed(health.take(bench.clock.now), bench.clock.now, 0.5, "timeout")

    assert await ask(bench) == 503

    assert sent(bench) == [1, 1]


async def test_a_name_that_the_caller_chose_is_his() -> None:
    """Under a pattern: nobody else is asked, nothing is said of the target."""
    bench = bench_of([NO_MODEL] * 5, [whole()])
    model = bench.policy.models["m"]
    targets = tuple(replace(one, name=f"{one.provider}/*", model=None) for one in model.targets)
    model = replace(model, name="*", targets=targets, plan=targets)
    bench.policy = replace(bench.policy, models={"m": model})
    bench.admission.install(bench.policy)

    for _ in range(5):
        assert await ask(bench, model=model, model_name="made-up") == 404

    assert sent(bench) == [5, 0]
    assert bench.meter.accounts[-1].outcome == "not_found"
    assert set(warnings(bench)) == {None}
    assert set(states(bench)) == {"closed"}


async def test_one_caller_cannot_talk_a_good_target_out_of_service() -> None:
    """His request may name a model of his own, in a tool or in a field of the provider's: a few in a row are needed."""
    bench = bench_of([whole(), *[NO_MODEL, NO_MODEL, whole()] * 4], [whole()] * 8)

    assert {await ask(bench) for _ in range(13)} == {200}

    assert sent(bench) == [13, 8]
    assert (warnings(bench), states(bench)) == ([None, None], ["closed", "closed"])


async def test_a_model_that_goes_is_noticed() -> None:
    """A deployment was deleted: after a few calls the others go elsewhere first."""
    bench = bench_of([whole(), *[NO_MODEL] * LOST_AFTER], [whole()] * 8)

    assert {await ask(bench) for _ in range(8)} == {200}

    assert sent(bench) == [1 + LOST_AFTER, 7]
    assert (warnings(bench), states(bench)) == ([WARNING, None], ["open", "closed"])


async def test_what_a_callers_own_account_may_not_use_is_no_mistake_of_the_config() -> None:
    """His call goes on; nobody else hears of it."""
    bench = bench_of([NO_MODEL] * 5, [whole()] * 5, accounts=["", "p1"])
    provider = replace(bench.policy.providers["p0"], api_key=None)
    bench.policy = replace(bench.policy, providers={**bench.policy.providers, "p0": provider})
    bench.admission.install(bench.policy)

    for _ in range(5):
        assert await ask(bench, credential=b"Bearer theirs") == 200

    assert sent(bench) == [5, 5]
    assert set(warnings(bench)) == {None}
    assert set(states(bench)) == {"closed"}


async def test_what_was_set_by_hand_stays() -> None:
    """A drained target is drained, whatever calls that were still there come back with."""
    bench = bench_of([NO_MODEL] * 2)
    bench.admission.health.force("p0/m", "drained")
    gate = bench.admission.gates.lines["p0/m"].gate

    bench.admission.health.model_missing(gate, [gate], bench.clock.now)

    assert states(bench) == ["drained"]
