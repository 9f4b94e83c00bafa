"""A key's budget for the day under calls that come at once: what they may cost is reserved before they go.

However many come, with or without a bound on their answers, cold or after others, on one replica or several, they spend the
budget at most, and what the estimates are short of.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BudgetExceeded, BudgetReserved, GatewayError
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.usage import costs_nothing
from gateway.core.render import OPENAI
from gateway.core.request_fields import peek
from gateway.core.retry_budgets import FREE, Price, fits_budget, price_of
from gateway.core.snapshot import Key, Rates
from gateway.core.types import Endpoint
from gateway.dialects.endpoints import ENDPOINTS, GENERATE
from tests.core.fleet import Replica, SharedPools
from tests.rows import rows
from tests.support.flow import Bench, Script, ScriptedUpstream, whole
from tests.support.outage import City, Fate, Provider, streams
from tests.support.virtual import LoopClock, run

PER_TOKEN = Rates(0.0, 1e-5, 0.0)
ANSWER_TOKENS = 700
CALL_USD = ANSWER_TOKENS * 1e-5
BUDGET_USD = 0.05
ASKED = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
PASSED = Endpoint("passthrough", "", OPENAI, answer="binary", request="any")


def team(budget_usd: float = BUDGET_USD) -> Key:
    return Key("team", "team", b"", budget_usd_per_day=budget_usd)


def says(tokens: int, after_s: float = 0.5) -> Fate:
    """An answer of so many tokens."""
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}

    async def fate() -> Script:
        await asyncio.sleep(after_s)
        return whole(
            orjson.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage})
        )

    return fate


def spent_usd(city: City) -> float:
    return sum((one.cost_usd or 0.0) + one.retries_usd for one in city.bench.meter.accounts)


async def at_once(city: City, count: int, tries: int = 1, **changes: Any) -> Counter[int | str]:
    """So many calls at once, and those who are told to come back do, as often as SDKs would."""
    results: Counter[int | str] = Counter()
    waiting = count
    for _ in range(tries):
        told = await asyncio.gather(*[city.call(key=team(), body=ASKED, **changes) for _ in range(waiting)])
        results += Counter(one.result for one in told if one.result != "budget_reserved")
        waiting = sum(one.result == "budget_reserved" for one in told)
        await asyncio.sleep(2.0)
    results["budget_reserved"] += waiting
    return results


@rows("max_tokens", [None, ANSWER_TOKENS, 4 * ANSWER_TOKENS], ids=["no bound", "bound", "wide bound"])
@rows("before", [0, 20], ids=["cold", "warm"])
def test_sixty_calls_at_once_spend_the_budget_at_most(before: int, max_tokens: int | None) -> None:
    """And most of it, once those who are told to come back soon have come back."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(ANSWER_TOKENS))], clock, changes={"rates": PER_TOKEN})
        for _ in range(before):  # of another key
            await city.call(body=ASKED)
        city.bench.meter.accounts.clear()

        results = await at_once(city, 60, tries=12, max_tokens=max_tokens)

        assert spent_usd(city) <= BUDGET_USD
        assert spent_usd(city) >= min(0.6 * BUDGET_USD, BUDGET_USD - (max_tokens or 0) * 1e-5)  # no call may cost more
        assert results[200] + results["budget_exceeded"] + results["budget_reserved"] == 60
        assert not city.admission.budgets._flying
        await city.settle()

    run(story)


@rows(
    "asked, rates",
    [
        (
            {"messages": [], "service_tier": "priority"},
            Rates(0.0, 5e-6, 0.0, by_tier={"priority": PER_TOKEN}),
        ),
        (
            {"messages": [{"role": "user", "content": "hello " * 5000}]},
            Rates(0.0, 1e-6, 0.0, above=((1000, PER_TOKEN),)),
        ),
        ({"messages": []}, Rates(0.0, 1e-6, 0.0, audio_output_usd=1e-5)),
        ({"messages": []}, Rates(0.0, 0.0, 0.0, request_usd=CALL_USD)),
    ],
    ids=["tier", "length", "sound", "call"],
)
def test_calls_at_a_dearer_price_spend_the_budget_at_most(asked: dict[str, Any], rates: Rates) -> None:
    """What they may cost is reserved at the price that they may meet, not at the usual one."""
    body = orjson.dumps({"model": "m", **asked})
    usage = {"prompt_tokens": 10_000, "completion_tokens": ANSWER_TOKENS, "total_tokens": 10_000 + ANSWER_TOKENS}
    told = {
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "service_tier": asked.get("service_tier"),
    }
    spoken = {"completion_tokens_details": {"audio_tokens": ANSWER_TOKENS}} if rates.audio_output_usd else {}

    async def answers() -> Script:
        await asyncio.sleep(0.5)
        return whole(orjson.dumps(told | {"usage": usage | spoken}))

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers)], clock, changes={"rates": rates})
        told = await asyncio.gather(*[city.call(key=team(), body=body, max_tokens=ANSWER_TOKENS) for _ in range(40)])

        assert spent_usd(city) <= BUDGET_USD
        assert sum(one.result == 200 for one in told) >= 5
        await city.settle()

    run(story)


MANY: dict[str, tuple[str, dict[str, Any], int]] = {
    "prompts": ("completions", {"prompt": ["hello"] * 100, "max_tokens": 180}, 18_000),
    "prompts of tokens": ("completions", {"prompt": [[1, 2]] * 100, "max_tokens": 180}, 18_000),
    "prompts without a bound": ("completions", {"prompt": ["hello"] * 100}, 100 * ANSWER_TOKENS),
    "best_of": ("completions", {"prompt": "hello", "n": 2, "best_of": 10, "max_tokens": 180}, 1_800),
    "prompts and n": ("completions", {"prompt": ["hello"] * 10, "n": 4, "best_of": 1, "max_tokens": 180}, 7_200),
    "n": ("chat", {"messages": [{"role": "user", "content": "hello"}], "n": 10, "max_tokens": 180}, 1_800),
    "n without a bound": ("chat", {"messages": [{"role": "user", "content": "hello"}], "n": 10}, 10 * ANSWER_TOKENS),
    "n as some servers take it": ("chat", {"messages": [], "n": "10"}, 10 * ANSWER_TOKENS),
    "very many": ("chat", {"messages": [], "n": 500, "max_tokens": 180}, 90_000),
    "candidates": ("generate", {"contents": [], "generationConfig": {"candidateCount": 8}}, 8 * ANSWER_TOKENS),
}
"""Requests for several answers, and the tokens of all of them together."""


@pytest.mark.parametrize("what", MANY)
@rows("before", [0, 20], ids=["cold", "warm"])
def test_several_answers_of_one_call_are_reserved_like_several_calls(what: str, before: int) -> None:
    """Of each prompt, and as many as are made to choose from."""
    name, fields, tokens = MANY[what]
    endpoint = next(one for one in (*ENDPOINTS, GENERATE) if one.name == name)
    body = orjson.dumps({"model": "m", **fields})
    max_tokens = peek(endpoint, body, {}).max_tokens
    key = Key("team", "team", b"", budget_usd_per_day=0.05 + 6 * tokens * 1e-5)

    async def story(clock: LoopClock) -> float:
        provider = Provider(says(ANSWER_TOKENS))
        city = City([provider], clock, changes={"rates": PER_TOKEN})
        for _ in range(before):  # of another key, with one answer each
            await city.call(body=ASKED)
        city.bench.meter.accounts.clear()
        provider.fate = says(tokens)
        await asyncio.gather(
            *[city.call(key=key, body=body, endpoint=endpoint, max_tokens=max_tokens) for _ in range(20)]
        )
        await city.settle()
        return spent_usd(city)

    usd = run(story)

    assert key.budget_usd_per_day is not None
    assert 0 < usd <= key.budget_usd_per_day


def test_what_is_charged_ahead_and_calls_spend_the_budget_once() -> None:
    """A part at a provider's own Batch API is charged beside what live calls have reserved, and they beside it."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(ANSWER_TOKENS))], clock, changes={"rates": PER_TOKEN})
        budgets = city.admission.budgets
        live = asyncio.create_task(at_once(city, 4, max_tokens=ANSWER_TOKENS))
        await asyncio.sleep(0.1)

        assert await budgets.charge(team(), 0.03) is None  # beside four calls in flight
        await live
        day = await budgets.charge(team(), BUDGET_USD - 4 * CALL_USD)
        assert day is not None
        assert (await at_once(city, 3))["budget_exceeded"] == 3
        budgets.correct("team", day, -(BUDGET_USD - 4 * CALL_USD))
        assert (await at_once(city, 1))[200] == 1
        await city.settle()

    run(story)


def test_several_answers_whose_client_leaves_are_charged() -> None:
    """The provider goes on with all of them, or has begun to."""

    async def story(clock: LoopClock) -> float:
        city = City([Provider(says(10 * ANSWER_TOKENS, after_s=60.0))], clock, changes={"rates": PER_TOKEN})
        body = orjson.dumps({"model": "m", "messages": [], "n": 10})
        call = city.start(key=team(1.0), body=body, max_tokens=10 * 400)
        await asyncio.sleep(1.0)
        call.cancel()
        await asyncio.wait([call])
        await city.settle()
        return city.admission.budgets._spent("team")

    assert run(story) == pytest.approx(10 * 400 * 1e-5)


@rows(
    ("name", "max_tokens", "advice"),
    [
        ("chat", 700, "set a smaller max_tokens"),
        ("chat", None, "set max_tokens"),
        ("responses", 700, "set a smaller max_tokens"),
        ("embeddings", None, "ask for less"),
        ("speech", None, "ask for less"),
        ("images", None, "ask for less"),
    ],
)
async def test_a_call_that_costs_too_much_is_told_what_is_left_and_what_makes_it_cheaper(
    name: str, max_tokens: int | None, advice: str
) -> None:
    """Where there is no answer in tokens, no bound of it helps; and what costs more than a whole day has, waits in vain."""
    bench = Bench([])
    endpoint = next(one for one in ENDPOINTS if one.name == name)
    call = bench.call(key=team(), endpoint=endpoint, max_tokens=max_tokens)
    bench.admission.budgets.paid(call.route.key, 0.02)

    async def refusal(usd: float) -> str:
        with pytest.raises(BudgetExceeded) as refused:
            await bench.admission.budgets.reserve(call, Price(usd, usd, usd))
        return str(refused.value)

    left = "The key 'team' has $0.03 left of its budget of $0.05 for today (UTC), and this call may cost"
    assert await refusal(0.04) == f"{left} $0.04; {advice}, raise budget_usd_per_day, or wait for tomorrow."
    assert await refusal(0.07) == f"{left} $0.07; {advice}, or raise budget_usd_per_day: a new day has no more."


@rows(
    ("max_tokens", "allows", "results"),
    [
        (4000, False, [200, 200, "budget_exceeded", "budget_exceeded"]),
        (4000, True, [200, 200, 200, 200]),
        (6000, False, ["budget_exceeded"] * 4),
        (6000, True, [200, 200, 200, 200]),
        (ANSWER_TOKENS, False, [200, 200, 200, 200]),
        (None, False, [200, 200, 200, 200]),
    ],
)
def test_one_call_may_not_cost_more_than_what_is_left(
    max_tokens: int | None, allows: bool, results: list[int | str]
) -> None:
    """Not even the first of a day, unless the key says so: then what it usually costs decides."""

    async def story(clock: LoopClock) -> list[int | str]:
        city = City([Provider(says(ANSWER_TOKENS))], clock, changes={"rates": PER_TOKEN})
        key = replace(team(), allow_overspend=allows)
        found = [(await city.call(key=key, body=ASKED, max_tokens=max_tokens)).result for _ in results]
        await city.settle()
        return found

    assert run(story) == results


def test_the_refusal_says_what_the_call_may_cost() -> None:
    """And what to do."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(ANSWER_TOKENS))], clock, changes={"rates": PER_TOKEN})
        with pytest.raises(BudgetExceeded, match=r"may cost \$0\.06.*max_tokens"):
            await city.bench.pipeline.handle(city.bench.call(key=team(), body=ASKED, max_tokens=6000))
        await city.settle()

    run(story)


def test_answers_that_get_longer_all_at_once_cost_little_more_where_a_bound_is_set() -> None:
    """After many short answers the bound still counts for a part of the budget."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(says(10))
        city = City([provider], clock, changes={"rates": PER_TOKEN})
        for _ in range(50):
            await city.call(body=ASKED)
        city.bench.meter.accounts.clear()
        provider.fate = says(ANSWER_TOKENS)

        await at_once(city, 60, max_tokens=ANSWER_TOKENS)

        assert spent_usd(city) <= 1.5 * BUDGET_USD
        await city.settle()

    run(story)


def test_who_is_refused_for_what_is_in_flight_is_told_to_come_back_soon() -> None:
    """In seconds, not tomorrow; SDKs do so by themselves."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(ANSWER_TOKENS))], clock, changes={"rates": PER_TOKEN})
        first = city.start(key=team(), body=ASKED)
        await asyncio.sleep(0.1)
        with pytest.raises(BudgetReserved) as refused:
            await city.bench.pipeline.handle(city.bench.call(key=team(), body=ASKED))
        assert (refused.value.status, refused.value.should_retry, refused.value.retry_after_s) == (429, True, 2.0)
        assert (await first).result == 200
        assert (await city.call(key=team(), body=ASKED)).result == 200
        await city.settle()

    run(story)


def test_whatever_becomes_of_a_call_it_gives_back_what_it_has_reserved() -> None:
    """Clients that leave, providers that fail, calls that were never sent."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(streams(0.5, 5.0))], clock, changes={"rates": PER_TOKEN})
        calls = [city.start(key=team(1.0), body=ASKED, stream=True) for _ in range(3)]
        for after_s in (0.1, 0.6, 1.0):
            await asyncio.sleep(after_s)
            calls.pop().cancel()
        await asyncio.sleep(10.0)
        for call in calls:
            await asyncio.wait([call])

        budgets = city.admission.budgets
        assert not budgets._flying
        assert budgets._spent("team") == pytest.approx(spent_usd(city))

    run(story)


def test_what_was_reserved_yesterday_is_not_taken_back_from_today() -> None:
    """A call over midnight costs the day on which it ends."""

    async def story(clock: LoopClock) -> None:
        await asyncio.sleep(86_400 - clock.wall() % 86_400 - 5.0)
        city = City([Provider(says(ANSWER_TOKENS, after_s=10.0))], clock, changes={"rates": PER_TOKEN})
        call = city.start(key=team(1.0), body=ASKED)
        await asyncio.sleep(6.0)
        budgets = city.admission.budgets
        assert budgets._spent("team") == 0.0
        await call
        assert budgets._spent("team") == pytest.approx(CALL_USD)
        assert not budgets._flying or not budgets._flying_usd("team")
        await city.settle()

    run(story)


# Over replicas.


async def spend(replica: Replica, key: Key) -> float:
    """One call to its end: what it cost."""
    call = replica.bench.call(key=key, body=ASKED, max_tokens=ANSWER_TOKENS, deadline=replica.clock.now + 30)
    usd, attempt = 0.0, None
    try:
        attempt = await replica.admission.enter(call)
        await replica.clock.sleep(0.5)
        usd = CALL_USD
    except GatewayError as error:
        replica.refused.append(error)
    replica.admission.budgets.spent(call, usd)
    replica.admission.outcomes.settle(call, attempt, None)
    return usd


@pytest.mark.parametrize("is_up", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("count", [2, 3])
def test_replicas_spend_one_budget_between_them(count: int, is_up: bool) -> None:
    """Sixty calls at once, dealt out; without a store each has its part, and the first call of a day."""

    async def story(clock: LoopClock) -> list[float]:
        store = SharedPools(clock, count)
        replicas = [Replica(store, f"r{number}", Limits(), [team()]) for number in range(count)]
        for replica in replicas:
            target = replica.bench.policy.models["m"].targets[0]
            object.__setattr__(target, "find_rates", lambda _model: PER_TOKEN)
        if not is_up:
            store.turn(False)
        await clock.sleep(1.0)
        rounds = []
        for _ in range(3):
            rounds += await asyncio.gather(*[spend(replicas[n % count], team()) for n in range(60)])
            await clock.sleep(2.0)
        return rounds

    total = sum(run(story))

    assert total <= BUDGET_USD * 1.05 + (0.0 if is_up else count * CALL_USD)
    assert total >= 0.5 * BUDGET_USD


# The decision alone.

USD = st.floats(0.0, 10.0, allow_nan=False)


@given(
    budget_usd=st.floats(0.01, 10.0),
    calls=st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60),
    max_tokens=st.integers(1, 5000),
)
def test_calls_that_keep_to_their_bound_never_spend_more_than_the_budget(
    budget_usd: float, calls: list[tuple[int, bool]], max_tokens: int
) -> None:
    """As long as nothing is known of answers the bound is reserved."""
    spent = 0.0
    flying: list[tuple[float, float]] = []
    for tokens, ends in calls:
        price = price_of(0.0, 1e-3, max_tokens, max_tokens, budget_usd, is_known=False)
        if fits_budget(budget_usd, spent, sum(reserved for reserved, _ in flying), price):
            flying.append((price.most, min(tokens, max_tokens) * 1e-3))
        if ends and flying:
            spent += flying.pop(0)[1]
    spent += sum(usd for _, usd in flying)

    assert spent <= budget_usd + 1e-9


@given(USD, USD, st.floats(0.01, 10.0), USD, st.booleans())
def test_more_in_flight_never_makes_room(
    spent_usd: float, reserved_usd: float, budget_usd: float, worst_usd: float, overspends: bool
) -> None:
    """Whoever fits beside others fits without them; what is free fits as long as anything is left."""
    price = Price(0.2, 0.1, worst_usd)

    if (
        spent_usd
        and reserved_usd
        and fits_budget(budget_usd, spent_usd, reserved_usd, price, allows_overspend=overspends)
    ):
        assert fits_budget(budget_usd, spent_usd, 0.0, price, allows_overspend=overspends)
    assert fits_budget(budget_usd, min(spent_usd, budget_usd), 0.0, FREE, allows_overspend=overspends)


@given(USD, USD, st.floats(0.01, 10.0), USD, USD)
def test_no_call_may_cost_more_than_what_is_left_unless_the_key_says_so(
    spent_usd: float, reserved_usd: float, budget_usd: float, usual_usd: float, worst_usd: float
) -> None:
    """And who may overspend is let in wherever others are."""
    price = Price(usual_usd, usual_usd, max(usual_usd, worst_usd))
    is_let_in = fits_budget(budget_usd, spent_usd, reserved_usd, price)

    assert not is_let_in or spent_usd + reserved_usd + price.worst <= budget_usd + 1e-9
    assert not is_let_in or fits_budget(budget_usd, spent_usd, reserved_usd, price, allows_overspend=True)


@rows(
    ("max_tokens", "is_known", "most", "usual", "worst"),
    [
        (None, False, 4096, 500, 500),
        (100, False, 100, 100, 100),
        (9000, False, 9000, 500, 9000),
        (None, True, 1000, 500, 500),
        (100, True, 100, 100, 100),
        (9000, True, 1000, 500, 9000),
        (600, True, 600, 500, 600),
    ],
)
def test_what_a_call_is_reckoned_with(
    max_tokens: int | None, is_known: bool, most: float, usual: float, worst: float
) -> None:
    """Its bound, and 4096 tokens without one; once answers are known, at most a tenth of the budget unless that is usual."""
    assert price_of(0.0, 1.0, 500, max_tokens, 10_000.0, is_known=is_known) == Price(most, usual, worst)
    ten = price_of(0.0, 1.0, 50, max_tokens, 10_000.0, answers=10, is_known=is_known)
    if max_tokens is not None or is_known:
        assert ten == Price(most, usual, worst)
    else:
        assert ten == Price(10 * most, usual, usual)
    dear = price_of(0.0, 1.0, 2000, max_tokens, 10_000.0, is_known=True)
    assert dear.most == (min(2000, max_tokens) if max_tokens is not None and max_tokens < 2000 else 2000)


@rows(
    ("method", "path", "is_free"),
    [
        ("GET", "/batches", True),
        ("HEAD", "/files/f/content", True),
        ("DELETE", "/assistants/a", True),
        ("POST", "/files", True),
        ("POST", "/uploads", True),
        ("POST", "/uploads/u/parts", True),
        ("POST", "/batches/b/cancel", True),
        ("POST", "/batches", False),
        ("POST", "/fine_tuning/jobs", False),
        ("POST", "/threads/t/runs", False),
        ("POST", "/filesystem", False),
        ("POST", "/files/../batches", False),
        ("PATCH", "/files", False),
    ],
)
def test_looking_deleting_cancelling_and_uploading_is_free(method: str, path: str, is_free: bool) -> None:
    """On paths that are passed through; an endpoint that is known has a price of its own."""
    assert costs_nothing(PASSED, method, path) is is_free
    assert not costs_nothing(replace(PASSED, request="json"), method, path)


async def test_what_a_call_is_estimated_to_cost_can_be_asked_before_it_goes() -> None:
    """At the dearest target that it may reach, by the answers so far; it takes nothing of the call, and without a price it is
    not known."""
    bench = Bench([ScriptedUpstream(whole()), ScriptedUpstream()], fallbacks=1, rates=PER_TOKEN)
    costs = bench.admission.costs
    model = bench.policy.models["m"]
    dear = replace(model.plan[1], find_rates=lambda _model: replace(PER_TOKEN, output_usd=2e-5))
    dearer = replace(model, plan=(model.plan[0], dear))

    first = bench.call(body=ASKED, model=dearer)
    assert costs.expected_usd(first) == pytest.approx(512 * 2e-5)  # before any answer was seen
    assert (first.reserved, first.attempts, first.request.body) == (None, [], ASKED)
    assert costs.expected_usd(bench.call(body=ASKED, max_tokens=100)) == pytest.approx(100 * 1e-5)
    assert costs.expected_usd(bench.call(endpoint=PASSED)) is None
    unpriced = Bench([ScriptedUpstream()], rates=None)
    assert unpriced.admission.costs.expected_usd(unpriced.call(body=ASKED)) is None

    await bench.serve(body=ASKED)  # an answer of 10 tokens
    alone = replace(model, plan=model.plan[:1])
    assert costs.expected_usd(bench.call(body=ASKED, model=alone)) == pytest.approx(10 * 1e-5, rel=0.3)
