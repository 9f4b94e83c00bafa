"""Money: what attempts may cost, call by call and key by key, and what is booked for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from gateway.core.admission.planner import token_cost
from gateway.core.balancing import CostRule, Retries
from gateway.core.errors import BudgetExceeded
from gateway.core.retry import Attempt
from gateway.core.snapshot import Key, Rates
from gateway.core.types import ErrorClass, Phase
from gateway.dialects.endpoints import EMBEDDINGS
from tests.support.faults import ANSWER_USD, OK, REQUEST, Act, Seen, Stage, breaks, says
from tests.support.flow import Bench, ScriptedUpstream, whole
from tests.support.outage import City, Provider, answers, fails
from tests.support.targets import target_named
from tests.support.virtual import LoopClock, run

RESET = breaks(httpx.ReadError("reset"), Phase.SENT)
DEFAULT = Retries()
ONE_TRY_USD = 0.000818
"""An attempt that was sent and came to nothing, with 100 tokens asked for."""


def key(budget_usd: float | None) -> Key:
    return Key("team", "team", b"", budget_usd_per_day=budget_usd)


def play(*acts: Act, calls: int = 1, retries: Retries = DEFAULT, **changes: object) -> list[Seen]:
    stage = Stage([acts], retries=retries)
    seen = run(lambda clock: stage.play(clock, calls, **changes))
    assert stage.leftovers() == []
    return seen


# What an attempt costs bounds how many are made.


@pytest.mark.parametrize(
    ("usd_per_token", "attempts"), [(1e-2, 2), (1e-3, 3), (8e-6, 4)], ids=["dear", "as usual", "cheap"]
)
def test_dear_calls_are_tried_less_often(usd_per_token: float, attempts: int) -> None:
    """100 tokens for a dollar: twice; for ten cents: as their class says; for less than one: once more."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock, changes={"rates": Rates(0.0, usd_per_token, 0.0)})
        told = await city.call(max_tokens=100, body=REQUEST)

        assert told.attempts == attempts
        await city.settle()

    run(story)


def test_embeddings_may_be_tried_ten_times() -> None:
    """They cost next to nothing: nine times at their own target, and once more if there is another."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock, changes={"rates": Rates(1e-7, 0.0, 1e-7)})
        told = await city.call(endpoint=EMBEDDINGS, body=b'{"model":"m","input":"hello"}')

        assert told.attempts == 9
        await city.settle()

    run(story)


def test_a_call_without_a_price_is_tried_as_often_as_usual() -> None:
    """Nobody knows what it costs: three tries at its own target, as the class says."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock, changes={"rates": None})

        assert (await city.call()).attempts == 3
        await city.settle()

    run(story)


# Per call.


def test_a_call_stops_at_its_money_cap_and_says_so() -> None:
    """What failed attempts may have cost counts; the first attempt is always made."""
    retries = replace(DEFAULT, max_usd_per_call=2.5 * ONE_TRY_USD)

    (seen,) = play(RESET, retries=retries)

    assert seen.trail == "p0:connection p0:connection"
    assert (seen.status, seen.denied) == (502, "money")
    assert seen.wasted_usd == pytest.approx(2 * ONE_TRY_USD, abs=1e-5)


def test_the_first_attempt_is_made_whatever_it_costs() -> None:
    """A cap below the price of one attempt allows no retry."""
    retries = replace(DEFAULT, max_usd_per_call=1e-9)

    assert play(OK, retries=retries)[0].status == 200
    assert play(says(500), retries=retries)[0].trail == "p0:500"


def test_what_was_refused_or_never_sent_costs_nothing() -> None:
    """Providers charge for neither."""
    nothing = breaks(httpx.ConnectError("refused"), Phase.NOTHING_SENT)

    assert play(says(500), says(429), nothing, OK)[0] == replace(
        play(says(500), says(429), nothing, OK)[0], usd=ANSWER_USD, wasted_usd=0.0
    )


def test_the_money_is_in_the_answers_headers() -> None:
    """All attempts together, as far as it is known."""

    async def story(clock: LoopClock) -> None:
        stage = Stage([[RESET, OK]])
        await stage.play(clock)
        account = stage.bench.meter.accounts[0]
        assert account.retries_usd == pytest.approx(ONE_TRY_USD, abs=1e-5)
        reply = await stage.bench.pipeline.handle(stage.bench.call(body=REQUEST, max_tokens=100))
        assert dict(reply.headers)[b"x-gateway-cost-usd"] == b"0.00208000"

    run(story)


# Per key.


def test_a_key_that_has_spent_its_budget_is_told_so_until_the_next_day() -> None:
    """429 budget_exceeded with the time to midnight, UTC; then the key is free again."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers())], clock)
        bench = city.bench
        results = [(await city.call(key=key(0.005))).result for _ in range(4)]
        assert results == [200, 200, 200, "budget_exceeded"]

        with pytest.raises(BudgetExceeded) as refused:
            await bench.pipeline.handle(bench.call(key=key(0.005)))
        assert refused.value.status == 429
        assert refused.value.should_retry is False
        midnight_s = 86_400 - clock.wall() % 86_400
        assert refused.value.retry_after_s == pytest.approx(midnight_s)

        city.rest()
        await asyncio.sleep(midnight_s)
        assert (await city.call(key=key(0.005))).result == 200
        await city.settle()

    run(story)


@pytest.mark.parametrize(("opens", "says"), [("tomorrow", "$0.005"), ("raised", "$0.006"), ("without", "no budget")])
def test_the_log_says_once_that_a_budget_is_spent_and_when_it_is_open_again(
    caplog: pytest.LogCaptureFixture, opens: str, says: str
) -> None:
    """However many calls are refused; a new day, a raised budget and one that is taken away open it."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers())], clock)
        budgets, policy = city.bench.admission.budgets, city.bench.policy
        of = {usd: replace(policy, keys={b"": key(usd)}) for usd in (0.005, 0.006, None)}
        for _ in range(6):
            await city.call(key=key(0.005))
            budgets.tick(of[0.005])
        (spent,) = caplog.messages
        assert spent == "the key 'team' has spent its budget: $0 of $0.005 for today (UTC) is left"
        assert list(budgets.of_keys(of[0.005])) == [("team", 0.005, 0.0)]

        if opens == "tomorrow":
            await asyncio.sleep(86_400 - clock.wall() % 86_400)
        for _ in range(2):
            budgets.tick(of[{"tomorrow": 0.005, "raised": 0.006}.get(opens)])
        (_, again) = caplog.messages
        assert again.startswith("the key 'team' may spend again: ")
        assert says in again
        await city.settle()

    caplog.set_level("INFO", "gateway")
    run(story)


def test_the_log_tells_a_call_that_is_too_dear_from_a_budget_that_is_spent(caplog: pytest.LogCaptureFixture) -> None:
    """A refused call that may cost more than a whole budget has spent nothing of it, and hides no end of it later."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers())], clock)
        assert (await city.call(key=key(0.005), max_tokens=100_000)).result == "budget_exceeded"
        for _ in range(6):
            await city.call(key=key(0.005))
        assert caplog.messages == [
            "the key 'team' is refused a call that may cost more than its budget allows: $0.005 of $0.005 for today (UTC) is "
            "left",
            "the key 'team' has spent its budget: $0 of $0.005 for today (UTC) is left",
        ]
        await city.settle()

    caplog.set_level("INFO", "gateway")
    run(story)


def test_keys_have_budgets_of_their_own() -> None:
    """What one has spent is nothing to another, and who has no budget spends freely."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers())], clock)
        for _ in range(4):
            await city.call(key=key(0.005))
        other = replace(key(0.005), name="other")

        assert (await city.call(key=key(0.005))).result == "budget_exceeded"
        assert (await city.call(key=other)).result == 200
        assert (await city.call(key=key(None))).result == 200
        await city.settle()

    run(story)


def test_a_key_pays_for_attempts_that_came_to_nothing() -> None:
    """As estimated, for nobody will tell; also where the whole call came to nothing."""

    async def story(clock: LoopClock) -> None:
        for acts, usd in [([RESET, OK], ANSWER_USD + ONE_TRY_USD), ([RESET], 4 * ONE_TRY_USD)]:
            stage = Stage([acts])
            await stage.play(clock, key=key(1.0))

            spending = stage.bench.admission.budgets._spending
            assert spending.spent("team", int(clock.wall() // 86_400)) == pytest.approx(usd, abs=1e-5)

    run(story)


def test_a_retry_that_the_keys_budget_does_not_allow_is_not_made() -> None:
    """The failure passes through and says so."""
    (seen,) = play(RESET, key=key(1.5 * ONE_TRY_USD))

    assert (seen.trail, seen.denied) == ("p0:connection", "key_budget")


async def test_a_refused_key_takes_nothing() -> None:
    """Neither of limits nor of money, and nothing is sent."""
    bench = Bench([ScriptedUpstream(whole(), whole())])
    spender = replace(key(0.001), allow_overspend=True)
    await bench.serve(key=spender)

    with pytest.raises(BudgetExceeded):
        await bench.serve(key=spender)

    assert len(bench.upstreams[0].sent) == 1
    assert bench.meter.accounts[-1].outcome == "budget_exceeded"
    assert bench.admission.gates.lines["p0/m"].gate.in_flight == 0


def test_rules_by_cost_may_be_left_out() -> None:
    """`by_cost: []`: every call may be tried as often."""
    retries = replace(DEFAULT, by_cost=())
    assert play(says(500), retries=retries)[0].trail == "p0:500 p0:500 p0:500"

    once = replace(DEFAULT, by_cost=(CostRule(1, above_usd=0.0),))
    assert play(says(500), retries=once)[0].trail == "p0:500"


def test_silence_elsewhere_costs_a_target_no_retry_tokens() -> None:
    """A timeout at one target says nothing of another; a failure there does, and a timeout of its own does."""
    retries = Retries()
    target = Bench([ScriptedUpstream()]).policy.models["m"].targets[0]
    elsewhere = Attempt(target_named("p1/m"), 0.0, error_class=ErrorClass.TIMEOUT, phase=Phase.SENT)

    assert token_cost(retries, elsewhere, target) == 0.0
    assert token_cost(retries, replace(elsewhere, target=target), target) == retries.timeout_tokens
    assert token_cost(retries, replace(elsewhere, error_class=ErrorClass.SERVER_ERROR), target) == retries.retry_tokens
