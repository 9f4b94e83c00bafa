"""A provider that tells nobody its limit, and many calls at once: the search for a rate under simulated time.

    python -m tests.core.limits.storm            # the table: share of calls refused, and time as a multiple of the ideal

The provider's bucket refills all the time; a refused call costs it nothing and comes back first in line. Everything is
drawn from one seed.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from random import Random
from typing import Literal

from gateway.core.limits.bucket import Bucket, Window
from gateway.core.limits.learning import RateSearch, SearchPolicy

Event = tuple[float, int, Literal["arrives", "accepted", "refused", "timer"], float, float]
JITTER = 0.2


@dataclass(frozen=True)
class Provider:
    """Calls per second, how many at once, seconds from sending to the answer; refusals as slow as answers, or faster."""

    rate: float
    burst: float
    latency_s: float
    refusal_s: float | None = None
    """None: as slow as answers."""
    later: tuple[float, float] = (inf, 0.0)
    """From when on there is another rate."""
    noise: float = 0.0
    """This share is refused whatever the rate; it takes nothing of the limit."""
    counts: Literal["bucket", "window", "sliding"] = "bucket"
    """How it limits; windows last `burst / rate` seconds."""

    @property
    def there_s(self) -> float:
        """From sending to the decision."""
        return min(self.latency_s, self.latency_s if self.refusal_s is None else self.refusal_s) / 2

    def ideal_s(self, calls: int) -> float:
        return max(0.0, (calls - self.burst) / self.rate) + self.latency_s


@dataclass
class Storm:
    """`clients` keep one call each under way until `calls` are served; by default all come at once."""

    provider: Provider
    calls: int = 2000
    clients: int | None = None
    seed: int = 1
    policy: SearchPolicy | None = None
    until: float = inf
    now: float = 0.0
    served: int = 0
    refused: int = 0
    strays: int = 0
    """Refused whatever the rate."""
    served_at: list[float] = field(default_factory=list)

    def run(self) -> Storm:
        self.search = RateSearch(0.0, self.policy)
        self._limit = _limit(self.provider)
        self._draw = Random(self.seed)
        self._events: list[Event] = []
        self._order = count()
        self._timer_at = inf
        self._is_changed = False
        self._waiting = self.calls if self.clients is None else self.clients
        self._to_come = self.calls - self._waiting
        while self.served < self.calls and self.now < self.until:
            self._send()
            self._happen(*heapq.heappop(self._events))
        return self

    @property
    def refused_percent(self) -> float:
        return 100 * self.refused / self.calls

    @property
    def slowdown(self) -> float:
        return self.now / self.provider.ideal_s(self.calls)

    def rate_between(self, start: float, end: float) -> float:
        """Calls served per second."""
        return sum(start <= at < end for at in self.served_at) / (end - start)

    def _send(self) -> None:
        while self._waiting:
            wait_s = self.search.want(self.now)
            if wait_s:
                if self.now + wait_s < self._timer_at:
                    self._timer_at = self.now + wait_s
                    self._after(wait_s, "timer")
                return
            self.search.take(self.now)
            self._waiting -= 1
            stretch = 1 + JITTER * (2 * self._draw.random() - 1)
            self._after(self.provider.there_s * stretch, "arrives", stretch)

    def _happen(self, at: float, _: int, what: str, sent_at: float, stretch: float) -> None:
        self.now = at
        if what == "arrives":
            there_s = self.provider.there_s
            is_accepted = self._decide()
            back_s = self.provider.latency_s - there_s if is_accepted else there_s
            self._after(back_s * stretch, "accepted" if is_accepted else "refused", stretch, sent_at)
        elif what == "accepted":
            self.search.succeeded(sent_at, at)
            self.served += 1
            self.served_at.append(at)
            self._waiting += self._to_come > 0
            self._to_come -= self._to_come > 0
        elif what == "refused":
            self.search.refused(sent_at, at)
            self.refused += 1
            self._waiting += 1
        elif at >= self._timer_at:  # else it was overtaken by an earlier one
            self._timer_at = inf

    def _decide(self) -> bool:
        changes_at, rate = self.provider.later
        if self.now >= changes_at and not self._is_changed:
            self._is_changed = True
            if isinstance(self._limit, Bucket):
                self._limit.resize(rate, self.provider.burst, self.now)
            else:
                self._limit = _limit(replace(self.provider, rate=rate), self.now)
        if self.provider.noise and self._draw.random() < self.provider.noise:
            self.strays += 1
            return False
        is_free = self._limit.wait_s(1.0, self.now) == 0.0
        if is_free:
            self._limit.take(1.0, self.now)
        return is_free

    def _after(
        self,
        wait_s: float,
        what: Literal["arrives", "accepted", "refused", "timer"],
        stretch: float = 1.0,
        sent_at: float | None = None,
    ) -> None:
        sent_at = self.now if sent_at is None else sent_at
        heapq.heappush(self._events, (self.now + wait_s, next(self._order), what, sent_at, stretch))


class Sliding:
    """At most `most` in any `window_s`: a log of what was let in (Redis' recipe for rate limiting)."""

    def __init__(self, most: int, window_s: float) -> None:
        self._most = most
        self._window_s = window_s
        self._log: deque[float] = deque()

    def wait_s(self, cost: float, now: float) -> float:
        while self._log and self._log[0] <= now - self._window_s:
            self._log.popleft()
        return 0.0 if len(self._log) + cost <= self._most else self._log[0] + self._window_s - now

    def take(self, cost: float, now: float) -> None:
        self._log.extend([now] * int(cost))


def _limit(provider: Provider, now: float = 0.0) -> Bucket | Window | Sliding:
    rate, burst = provider.rate, provider.burst
    if provider.counts == "bucket":
        return Bucket(rate, burst, now)
    window_s = provider.burst / provider.rate
    return Window(burst, window_s, now) if provider.counts == "window" else Sliding(int(burst), window_s)


def main() -> None:
    latencies_s = (0.01, 0.02, 0.05, 0.2, 0.5, 1.0, 2.0)
    for refusal_s in (None, 0.05):
        told = "as slow as answers" if refusal_s is None else f"within {refusal_s} s"
        lines = [f"refusals {told}; % refused, multiple of the ideal time; ! misses a bar"]
        lines += ["  rate burst" + "".join(f"{latency_s:>13}" for latency_s in latencies_s)]
        for rate in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000):
            for burst_s in (0.2, 1, 10, 60):
                burst = max(1.0, rate * burst_s)
                if burst < 2000:  # else nothing is ever refused
                    row = [Storm(Provider(rate, burst, latency_s, refusal_s)).run() for latency_s in latencies_s]
                    lines.append(f"{rate:>6} {burst:>5g}" + "".join(map(_cell, row)))
        sys.stdout.write("\n".join(lines) + "\n\n")


def _cell(storm: Storm) -> str:
    percent, slowdown = storm.refused_percent, storm.slowdown
    return f"{percent:6.1f}{'!' if percent > 3 else ' '}{slowdown:5.2f}{'!' if slowdown > 1.5 else ' '}"


if __name__ == "__main__":
    main()
