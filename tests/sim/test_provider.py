"""The simulated providers and the virtual clock themselves: a simulation is worth what its world is."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.headers import read_limit_headers
from tests.sim.clock import START_S, WALL_S, Turn, VirtualClock
from tests.sim.limits import ProviderLimit, Refill, Windows
from tests.sim.provider import Demand, Fault, Provider

SOME = settings(deadline=None)
CALL = Demand(100, 50, 50)
asks = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40)), min_size=1, max_size=60)


def let_in(limit: ProviderLimit, asked: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Those that fitted, with their moments."""
    now, taken = START_S, []
    for after_s, amount in asked:
        now += after_s
        if limit.wait_s(amount, now) == 0:
            limit.take(amount, now)
            taken.append((now, amount))
    return taken


@SOME
@given(asked=asks)
def test_a_refill_lets_in_its_burst_and_what_flows_in(asked: list[tuple[float, int]]) -> None:
    """In no span of time more than 40 and one for each second of it."""
    taken = let_in(Refill("requests", 60, 40), asked)

    for first, (begins, _) in enumerate(taken):
        for last in range(first, len(taken)):
            assert sum(amount for _, amount in taken[first : last + 1]) <= 40 + taken[last][0] - begins + 1e-4


@SOME
@given(asked=asks, phase_s=st.floats(0, 10))
def test_a_window_lets_in_its_capacity(asked: list[tuple[float, int]], phase_s: float) -> None:
    """In each of its windows at most 40."""
    windows: dict[int, int] = {}

    for moment, amount in let_in(Windows("requests", 240, 10.0, phase_s), asked):
        window = int((moment + 1e-6 + phase_s) // 10)
        windows[window] = windows.get(window, 0) + amount

    assert max(windows.values()) <= 40


@pytest.mark.parametrize("made", [lambda: Refill("tokens", 6000, 300), lambda: Windows("tokens", 3000, 6.0)])
def test_who_waits_as_told_is_let_in(made: Callable[[], ProviderLimit]) -> None:
    """And not a moment earlier."""
    limit = made()
    limit.take(300, START_S)

    wait_s = limit.wait_s(100, START_S)

    assert wait_s > 0
    assert limit.wait_s(100, START_S + wait_s - 0.01) > 0
    assert limit.wait_s(100, START_S + wait_s) == 0


@pytest.mark.parametrize("style", ["openai", "azure", "anthropic"])
def test_its_headers_say_what_it_counts(style: Literal["openai", "azure", "anthropic"]) -> None:
    """The gateway reads the same numbers from them; resets to the second, or to the millisecond."""
    tokens: Literal["tokens", "input-tokens"] = "input-tokens" if style == "anthropic" else "tokens"
    limits = [Refill("requests", 600), Refill(tokens, 60_000)]
    provider = Provider("p0", limits, headers=style, charge="input")
    provider.ask(CALL, START_S)
    answer = provider.ask(CALL, START_S)

    learned = read_limit_headers(answer.headers, WALL_S + START_S, "azure" if style == "azure" else "")

    assert learned is not None
    counted = learned.input_tokens or learned.tokens
    assert learned.requests is not None
    assert learned.requests[:2] == (600, 598)
    assert counted is not None
    assert counted[:2] == (60_000, 59_800)
    assert counted.reset_s is not None
    assert 0.2 <= counted.reset_s <= (0.201 if style == "openai" else 1.2)


def test_it_refuses_with_the_time_to_wait_and_counts_nothing() -> None:
    """A refused request takes nothing and holds no slot."""
    provider = Provider("p0", [Refill("requests", 60, 1)])

    statuses = [provider.ask(CALL, START_S + second).status for second in (0.0, 0.5, 0.75, 1.0)]
    refusal = provider.ask(CALL, START_S + 1.5)

    assert statuses == [200, 429, 429, 200]
    assert dict(refusal.headers)[b"retry-after-ms"] == b"500"
    assert (provider.in_flight, provider.refused, provider.served) == (2, 3, 2)


def test_its_slots_are_given_back() -> None:
    """Two at a time: the third waits for a release."""
    provider = Provider("p0", max_concurrency=2)

    before = [provider.ask(CALL, START_S).status for _ in range(3)]
    provider.release(CALL, START_S)

    assert before == [200, 200, 429]
    assert provider.ask(CALL, START_S).status == 200


def test_its_faults_come_and_go() -> None:
    """Between their moments, and no 429 of a fault counts as one for its limits."""
    provider = Provider("p0", faults=[Fault(1.0, 2.0, 429, retry_after_s=5.0), Fault(3.0, inf, 0)])

    assert [provider.ask(CALL, START_S + second).status for second in (0.5, 1.0, 2.0, 3.0)] == [200, 429, 200, 0]
    assert provider.refused == 0


def test_the_clock_keeps_the_order_of_events() -> None:
    """By their moments; at the same moment as they were put there; who is woken goes on after what woke it."""
    clock, seen = VirtualClock(), list[str]()
    turn = Turn(clock, None, None)

    async def held() -> None:
        seen.append("waits")
        await turn
        seen.append(f"goes at {clock.now - START_S:g}")
        await clock.sleep(1)
        seen.append(f"ends at {clock.now - START_S:g}")

    def wake() -> None:
        turn.set_result(None)
        seen.append("woken")

    clock.start(held())
    clock.call_at(START_S + 2, wake)
    clock.call_at(START_S + 2, lambda: seen.append("same moment"))
    clock.call_at(START_S + 1, lambda: seen.append("never")).cancel()
    clock.run()

    assert seen == ["waits", "woken", "goes at 2", "same moment", "ends at 3"]
