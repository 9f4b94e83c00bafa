"""A rate that is written down without its burst, and callers who all want more of it than there is: virtual minutes of it.

The provider takes so many at once and no more; the replicas do not know that, but by its headers or its refusals.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import product

import pytest

from gateway.core.admission.admission import Admission
from gateway.core.admission.queue import DelayQueue
from gateway.core.error_tables import Diagnosis
from gateway.core.errors import GatewayError
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting
from gateway.core.types import ErrorClass, RawHeaders
from gateway.emulator.limits import EmulatedBucket
from gateway.fleet.leases import Sharing
from gateway.fleet.news import FleetNews
from tests.core.fleet import SharedPools
from tests.support.bus import Bus, BusNews
from tests.support.flow import Bench, ScriptedUpstream
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

PER_S = 20
CALLERS = 120
TRIP_S, ANSWER_S = 0.01, 0.05


@dataclass
class Taker:
    """A provider that takes `burst` at once and `PER_S` a second."""

    clock: LoopClock
    burst: int
    tells: bool
    per_s: int = PER_S
    admitted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bucket = EmulatedBucket(60 * self.per_s, self.clock.now, self.burst)

    async def ask(self) -> tuple[float | None, RawHeaders]:
        """For how long it refuses (None: it does not), and its headers."""
        await self.clock.sleep(TRIP_S)
        wait_s = self.bucket.wait_s(1, self.clock.now)
        if wait_s:
            self.refused.append(self.clock.now)
        else:
            self.bucket.spend(1, self.clock.now)
            self.admitted.append(self.clock.now)
        headers = self.headers()
        await self.clock.sleep(TRIP_S if wait_s else ANSWER_S)
        return wait_s or None, headers

    def headers(self) -> RawHeaders:
        if not self.tells:
            return []
        left = self.bucket.remaining(self.clock.now)
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.bucket.per_minute),
            (b"x-ratelimit-remaining-requests", b"%d" % left),
        ]


class Crowd:
    """Replicas before one provider, and callers who ask again as soon as they are answered."""

    def __init__(self, clock: LoopClock, taker: Taker, limits: Limits, replicas: int) -> None:
        self.clock = clock
        self.taker = taker
        self.store = SharedPools(clock, replicas)
        bus = Bus(clock)
        self.admissions = []
        self.gossip = []
        for number in range(replicas):
            bench = Bench([ScriptedUpstream()], clock=clock, limits=[limits], counting=Counting())
            queue, sharing = DelayQueue(clock, bench.policy.queue), None
            if replicas > 1:
                sharing = Sharing(clock, self.store.leases(f"r{number}"), queue, lambda: 0.5)
            admission = Admission(clock, bench.meter, bench.policy, lambda: 0.5, queue, sharing)
            if sharing is not None:
                self.store.listeners.append(sharing.changed)
                sharing.changed(True)
                self.gossip.append(FleetNews(clock, BusNews(bus, number), admission, lambda: 0.5))
            self.admissions.append((bench, admission))
        self.codes: Counter[str] = Counter()

    async def call(self, where: int) -> None:
        """One call, tried until it is answered or its time is up."""
        bench, admission = self.admissions[where]
        call = bench.call(received_at=self.clock.now, deadline=self.clock.now + 30)
        try:
            while True:
                attempt = await admission.enter(call)
                call.attempts.append(attempt)
                delay_s, headers = await self.taker.ask()
                if delay_s is None:
                    admission.outcomes.answered(call, attempt, headers)
                    self.codes["ok"] += 1
                    break
                admission.outcomes.refused(
                    call, attempt, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=delay_s), headers
                )
        except GatewayError as error:
            self.codes[error.code or ""] += 1
            await self.clock.sleep(0.05)
        admission.outcomes.settle(call, None, None)

    async def press(self, callers: int, for_s: float) -> None:
        """So many of them, evenly over the replicas; returns when all have left."""
        end = self.clock.now + for_s

        async def ask_on(where: int) -> None:
            while self.clock.now < end:
                await self.call(where)

        await asyncio.gather(*(ask_on(number % len(self.admissions)) for number in range(callers)))

    def goodput(self, since: float, for_s: float) -> float:
        """Of the rate."""
        return sum(since <= at < since + for_s for at in self.taker.admitted) / (self.taker.per_s * for_s)

    @property
    def refused_share(self) -> float:
        return len(self.taker.refused) / (len(self.taker.refused) + len(self.taker.admitted))


@dataclass
class Came:
    goodput: float
    refused_share: float
    refused: int
    codes: dict[str, int]
    burst: float
    """What the first replica takes it to be in the end."""


def crowd_in(
    replicas: int,
    burst: int,
    *,
    tells: bool,
    for_s: float = 60.0,
    limits: Limits | None = None,
    away: tuple[float, float] | None = None,
) -> Came:
    """`away`: from when to when the store does not answer."""

    async def story(clock: LoopClock) -> Came:
        taker = Taker(clock, burst, tells)
        limits_ = limits or Limits(requests_per_min=60 * PER_S, unstated_burst_s=10.0)
        crowd = Crowd(clock, taker, limits_, replicas)
        await clock.sleep(0.5)
        start = clock.now
        pressing = asyncio.ensure_future(crowd.press(CALLERS, for_s))
        if away is not None:
            await clock.sleep(away[0])
            crowd.store.is_up = False
            await clock.sleep(away[1] - away[0])
            crowd.store.is_up = True
        await pressing
        (line,) = crowd.admissions[0][1].gates.lines.values()
        untold = line.gate.limits.table.burst
        return Came(
            crowd.goodput(start, for_s),
            crowd.refused_share,
            len(taker.refused),
            dict(crowd.codes),
            untold.burst if untold else 0,
        )

    return run(story)


@pytest.mark.parametrize(
    ("replicas", "burst"),
    sampled(product([1, 2], [20, 1200]), lambda replicas, burst: (replicas == 2) == (burst == 1200)),
)
def test_what_headers_say_is_left_goes_at_once_and_no_more(burst: int, replicas: int) -> None:
    """A second's worth or a minute's: nobody is refused, and nothing is left unused."""
    came = crowd_in(replicas, burst, tells=True, for_s=30.0)

    assert set(came.codes) == {"ok"}
    assert came.refused == 0
    assert came.burst >= 0.95 * burst
    assert came.goodput >= min(0.98 + burst / PER_S / 30.0, 2.5)


@pytest.mark.parametrize(
    ("replicas", "burst"), sampled([(1, 5), (2, 20), (2, 50), (1, 136)], lambda replicas, burst: burst in (5, 50))
)
def test_where_nobody_tells_the_burst_is_found(replicas: int, burst: int) -> None:
    """Less than a second's worth, a second's, a few seconds': it is used, and few are refused to find it."""
    came = crowd_in(replicas, burst, tells=False)

    assert set(came.codes) == {"ok"}
    assert came.goodput >= 0.98 + 0.8 * burst / PER_S / 60.0
    assert came.refused_share <= 0.03
    assert 0.8 * burst <= came.burst <= 1.4 * burst + PER_S


def test_ten_seconds_worth_goes_within_a_moment_where_it_is_taken() -> None:
    """Nobody says that a provider takes a minute's worth: ten seconds' go, as fast as answers show that more is taken."""
    came = crowd_in(1, 1200, tells=False, for_s=2.0)

    assert came.refused == 0
    assert came.burst == 200
    assert came.goodput * PER_S * 2 >= 200 + 0.9 * PER_S * 2


@pytest.mark.parametrize("away", [(0.03, 0.1), (0.2, 0.4), (1.0, 3.0)])
def test_a_store_that_is_late_in_the_first_seconds_costs_nothing(away: tuple[float, float]) -> None:
    """Each lives on its part meanwhile: what a refusal takes away from that is not owed to the others."""
    came = crowd_in(2, 20, tells=False, for_s=12.0, away=away)

    assert set(came.codes) == {"ok"}
    assert came.goodput >= 0.98
