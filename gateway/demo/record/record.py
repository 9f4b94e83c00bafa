"""Records the runs of a demo, and sums them up afterwards.

Pure except for `keep_calling`: `now` comes in, in seconds on any monotonic clock. It must not know the provider, nor how
figures are shown. Invariants: a call is recorded exactly once, with or without an answer; events before `begin` do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

from gateway.demo.storm.clients.clients import AnswerBrokenError, Ask, CallFailedError

Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
OVERHEAD = "x-gateway-overhead-ms"


class Tick(NamedTuple):
    """An interval at the provider: its end, the calls answered in it, and those refused with a 429."""

    at_s: float
    answered: int
    refused: int


@dataclass(slots=True)
class Run:
    """The record of one storm of `calls` at a limit of `rate_per_s` requests."""

    name: str
    calls: int
    rate_per_s: float
    level: float = 0.0
    """The calls that the limit admitted at once when the storm began."""
    began_at: float | None = None
    latencies_s: list[float] = field(default_factory=list)
    """The latencies of the answered calls."""
    failed: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    """Seconds until the last call ended."""
    seen_429s: int = 0
    """The 429s that reached the app's client, whether it retried or not."""
    overheads_ms: list[float] = field(default_factory=list)
    """The gateway's own time for each answer, from its headers."""
    ticks: list[Tick] = field(default_factory=list)
    upstream_calls: int = 0
    upstream_answers: int = 0
    upstream_429s: int = 0

    def begin(self, level: float, now: float) -> None:
        """Starts the storm; call the methods below after it."""
        self.level, self.began_at = level, now

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """Records a response that reached the app's client."""
        if status == 429:
            self.seen_429s += 1
        elif status == 200 and OVERHEAD in headers:
            self.overheads_ms.append(float(headers[OVERHEAD]))

    def ended(self, tokens: int | None, called_at: float, now: float) -> None:
        """Records the end of a call; `tokens` is None for an error."""
        if tokens is None:
            self.failed += 1
        else:
            self.latencies_s.append(now - called_at)
            self.tokens += tokens
        self.duration_s = max(self.duration_s, self.time_s(now))

    def counted(self, calls: int, answered: int, refused: int, now: float) -> None:
        """Records the provider's counters since the storm began; call it often."""
        tick = Tick(self.time_s(now), answered - self.upstream_answers, refused - self.upstream_429s)
        if tick.answered or tick.refused:
            self.ticks.append(tick)
        self.upstream_calls, self.upstream_answers, self.upstream_429s = calls, answered, refused

    def time_s(self, now: float) -> float:
        """Returns the seconds since the storm began."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return len(self.latencies_s)

    @property
    def wasted_calls(self) -> int:
        """Returns the number of upstream calls without an answer for the app."""
        return max(0, self.upstream_calls - self.answered)

    @property
    def ideal_s(self) -> float | None:
        """Returns the time at which the limit admits the last call; None where no call has to wait."""
        return (self.calls - self.level) / self.rate_per_s if self.calls > self.level else None

    @property
    def wait_p50_s(self) -> float | None:
        return median(self.latencies_s) if self.latencies_s else None

    @property
    def added_p50_ms(self) -> float | None:
        """Returns the median of the gateway's own time in ms; None for a run without a gateway."""
        return median(self.overheads_ms) if self.overheads_ms else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {name: getattr(self, name) for name in _RUN_FIGURES}


_RUN_FIGURES = (
    *("name", "calls", "answered", "failed", "seen_429s", "upstream_calls", "upstream_429s", "wasted_calls", "tokens"),
    *("duration_s", "ideal_s", "wait_p50_s", "added_p50_ms"),
)


def per_second(ticks: Iterable[Tick], seconds: int) -> list[tuple[int, int]]:
    """Returns the calls answered and refused in each of the first `seconds` seconds; later ones count in the last."""
    counts = [(0, 0)] * seconds
    for at_s, answered, refused in ticks:
        second = min(int(at_s), seconds - 1)
        counts[second] = (counts[second][0] + answered, counts[second][1] + refused)
    return counts


class CallEnd(NamedTuple):
    """A call: the time of its start, the seconds until its end, and whether it was answered or broke off."""

    made_at_s: float
    latency_s: float
    is_answered: bool
    is_broken: bool = False


class Fate(NamedTuple):
    """The outcomes of some calls: answered in time, answered late, failed."""

    answered: int
    late: int
    failed: int


@dataclass(slots=True)
class Trial:
    """The record of one run of `calls`; an answer after more than `late_s` is late."""

    name: str
    calls: int
    late_s: float
    began_at: float | None = None
    ended: list[CallEnd] = field(default_factory=list)
    tries: int = 0
    """The tries at providers for these calls."""
    tries_at_dead: int = 0
    """The tries at a provider that refused connections."""

    def begin(self, now: float) -> None:
        """Starts the traffic; call the methods below after it."""
        self.began_at = now

    def tried(self, tries: int, at_dead: int) -> None:
        """Records tries at providers, and those of them at one that refused connections."""
        if self.began_at is not None:
            self.tries += tries
            self.tries_at_dead += at_dead

    def end(self, made_at: float, now: float, *, is_answered: bool, is_broken: bool = False) -> None:
        """Records the end of a call; `is_broken`: it failed after a part of its answer."""
        self.ended.append(CallEnd(self.time_s(made_at), now - made_at, is_answered, is_broken))

    def time_s(self, now: float) -> float:
        """Returns the seconds since the traffic started."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return sum(call.is_answered for call in self.ended)

    @property
    def late(self) -> int:
        """Returns the number of late answers."""
        return fate_of(self.ended, self.late_s).late

    @property
    def failed(self) -> int:
        return len(self.ended) - self.answered

    @property
    def broken(self) -> int:
        """Returns the number of calls that failed within their answer, which no client or gateway can retry unnoticed."""
        return sum(call.is_broken for call in self.ended)

    @property
    def wasted_tries(self) -> int:
        """Returns the number of tries without an answer for the app."""
        return max(0, self.tries - self.answered)

    @property
    def tries_per_call(self) -> float:
        return self.tries / max(1, len(self.ended))

    @property
    def latency_p50_s(self) -> float | None:
        return self._latency_s(0.5)

    @property
    def latency_p99_s(self) -> float | None:
        return self._latency_s(0.99)

    def _latency_s(self, share: float) -> float | None:
        """Returns the latency that this share of the answers did not exceed."""
        known = sorted(call.latency_s for call in self.ended if call.is_answered)
        return known[ceil(share * len(known)) - 1] if known else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {name: getattr(self, name) for name in _TRIAL_FIGURES}


_TRIAL_FIGURES = (
    *(
        "name",
        "calls",
        "answered",
        "late",
        "failed",
        "broken",
        "tries",
        "tries_per_call",
        "wasted_tries",
        "tries_at_dead",
    ),
    *("latency_p50_s", "latency_p99_s"),
)


def fate_of(calls: Iterable[CallEnd], late_s: float) -> Fate:
    """Returns the outcomes of these calls."""
    answered = late = failed = 0
    for call in calls:
        if not call.is_answered:
            failed += 1
        elif call.latency_s > late_s:
            late += 1
        else:
            answered += 1
    return Fate(answered, late, failed)


def fates_by_second(trial: Trial, seconds: int) -> list[Fate]:
    """Returns the outcomes of the calls that were made in each of the first `seconds` seconds."""
    made: list[list[CallEnd]] = [[] for _ in range(seconds)]
    for call in trial.ended:
        made[min(int(call.made_at_s), seconds - 1)].append(call)
    return [fate_of(calls, trial.late_s) for calls in made]


async def keep_calling(trial: Trial, ask: Ask, rate_per_s: float, now: Now, sleep: Sleep) -> None:
    """Makes all calls of a trial that has begun, and waits for the last to end."""
    began_at = now()
    async with asyncio.TaskGroup() as tasks:
        for number in range(trial.calls):
            due = began_at + number / rate_per_s
            if due > now():
                await sleep(due - now())
            tasks.create_task(_call(trial, partial(ask, number), now(), now))


async def _call(trial: Trial, ask: Callable[[], Awaitable[int]], made_at: float, now: Now) -> None:
    try:
        await ask()
    except CallFailedError as error:
        trial.end(made_at, now(), is_answered=False, is_broken=isinstance(error, AnswerBrokenError))
    else:
        trial.end(made_at, now(), is_answered=True)
