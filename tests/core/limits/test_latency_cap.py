"""The cap that follows latency, on a simulated server with parallel slots and an endless queue."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import exp, inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.learning import AdaptiveCap

BOUNDED = settings(deadline=None, derandomize=True)
FIRST_TOKEN_S = 0.2
REST_S = 2.0


@dataclass
class Server:
    """`slots` calls at a time, the others wait for ever; times grow by `slowness`. Somebody always wants to call.

    Prompts differ: `spread` is the standard deviation of the logarithm of the time to the first token.
    """

    slots: int
    cap: AdaptiveCap = field(default_factory=AdaptiveCap)
    slowness: float = 1.0
    spread: float = 0.2
    now: float = 0.0
    in_flight: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(1)
        self._free_at = [0.0] * self.slots
        self._events: list[tuple[float, bool, float]] = []

    def run(self, seconds: float) -> tuple[list[int], list[float]]:
        """The caps and the times to the first token of this span."""
        caps, waits = [], []
        ends_at = self.now + seconds
        while self.now < ends_at:
            while self.in_flight < self.cap.cap:
                self._send()
            self.now, is_end, sent_at = heapq.heappop(self._events)
            if is_end:
                self.in_flight -= 1
            else:
                waits.append(self.now - sent_at)
                self.cap.observe(self.now - sent_at, self.in_flight)
            caps.append(self.cap.cap)
        return caps, waits

    def _send(self) -> None:
        starts_at = max(self.now, heapq.heappop(self._free_at))
        first_at = starts_at + FIRST_TOKEN_S * self.slowness * self._draw.lognormvariate(0, self.spread)
        ends_at = first_at + REST_S * self.slowness * self._draw.lognormvariate(0, 0.3)
        heapq.heappush(self._free_at, ends_at)
        heapq.heappush(self._events, (first_at, False, self.now))
        heapq.heappush(self._events, (ends_at, True, self.now))
        self.in_flight += 1


def mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("slots", [2, 4, 32, 200])
def test_the_cap_finds_how_many_a_server_takes_at_a_time(slots: int) -> None:
    """All of its slots are used, and hardly anybody waits inside it."""
    server = Server(slots)
    server.run(300)

    caps, waits = server.run(300)

    assert slots <= mean(caps) <= 2 * slots
    assert mean(waits) <= 4 * FIRST_TOKEN_S


@pytest.mark.parametrize("slots", [4, 32, 200])
def test_prompts_of_all_lengths_are_not_taken_for_a_queue(slots: int) -> None:
    """Times to the first token that differ by a factor of ten: the slots are used all the same."""
    server = Server(slots, spread=1.2)
    server.run(300)

    caps, waits = server.run(300)

    assert 0.9 * slots <= mean(caps) <= 1.5 * slots
    assert mean(waits) <= 4 * FIRST_TOKEN_S * exp(1.2**2 / 2)


def test_longer_prompts_from_now_on_are_measured_as_a_slower_server() -> None:
    """The unloaded time is another one; it takes a few rounds, then all slots are used again."""
    server = Server(32)
    server.run(300)
    server.spread, server.slowness = 1.2, 2.0
    server.run(300)

    caps, _ = server.run(300)

    assert 29 <= mean(caps) <= 48


def test_a_server_that_takes_one_at_a_time_is_not_given_sixteen() -> None:
    """The smallest there is: one in work, hardly two behind it."""
    server = Server(1)
    server.run(300)

    caps, _ = server.run(300)

    assert mean(caps) <= 3


@pytest.mark.parametrize("slowness", [3.0, 0.33])
def test_a_server_that_gets_slower_or_faster_is_measured_again(slowness: float) -> None:
    """What counts is how many it takes at a time, and that has not changed."""
    server = Server(32)
    server.run(300)
    server.slowness = slowness
    server.run(300)

    caps, _ = server.run(300)

    assert 30 <= mean(caps) <= 64


def test_a_cap_that_is_not_reached_does_not_grow() -> None:
    """Two calls at a time tell nothing about what sixteen would do."""
    cap = AdaptiveCap()

    for _ in range(1000):
        cap.observe(0.1, 2)

    assert cap.cap == 16


def test_a_timeout_takes_a_tenth() -> None:
    """At once, and again with each."""
    cap = AdaptiveCap(first=100)
    cap.dropped()
    assert cap.cap == 90

    for _ in range(100):
        cap.dropped()
    assert cap.cap == 1


@BOUNDED
@given(st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 2000))), st.integers(1, 50))
def test_whatever_is_measured_the_cap_stays_within_its_bounds(told: list[tuple[float, int]], first: int) -> None:
    """Times that are none are ignored."""
    cap = AdaptiveCap(first, smallest=1, largest=50)

    for first_byte_s, in_flight in [*told, (nan, 1), (inf, 1), (-1.0, 1)]:
        for _ in range(20):
            cap.observe(first_byte_s, in_flight)
            assert 1 <= cap.cap <= 50
