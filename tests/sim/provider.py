"""A simulated provider: limits of its own, limit headers, Retry-After, latency, and what goes wrong.

Decides about a request when it arrives and says what the answer will be and when. It must not know the gateway's gates or
queue. Invariants: what it lets through never exceeds its limits; every request that was let in is released once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from random import Random
from time import gmtime, strftime
from typing import Literal, overload

from gateway.core.types import ErrorClass
from tests.sim.clock import START_S, WALL_S
from tests.sim.limits import ProviderLimit

Header = tuple[bytes, bytes]
_TOO_MANY = b'{"error":{"message":"Rate limit reached.","type":"requests","code":"rate_limit_exceeded"}}'
_BROKEN = b'{"error":{"message":"The server had an error.","type":"server_error"}}'


@dataclass(frozen=True, slots=True)
class Latency:
    """`reach_s` from the gateway to the provider's limits, then a lognormal time to first token, then tokens at a pace."""

    ttft_s: float = 0.3
    sigma: float = 0.0
    tokens_per_s: float = 0.0
    """0: all at once."""
    reach_s: float = 0.0
    reach_jitter_s: float = 0.0
    refusal_s: float = 0.02
    slows_above: int | None = None
    """A server that queues without bound: with more than so many in flight the first token takes as much longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """From `begins_s` to `ends_s` after the start, requests are refused (429), answered with 500, or reach nobody (0)."""

    begins_s: float
    ends_s: float
    status: Literal[429, 500, 0]
    retry_after_s: float | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request really asks for; `max_tokens` None: it does not say."""

    input_tokens: int
    output_tokens: int
    max_tokens: int | None


class Told(Sequence[Header]):
    """Limit headers as a provider of this style sends them, written when somebody reads them."""

    __slots__ = ("_more", "_readings", "_style", "_wall")

    def __init__(
        self, style: str, readings: Sequence[tuple[str, float, float, float]], more: list[Header], wall: float
    ) -> None:
        self._style = style
        self._readings = readings
        self._more = more
        self._wall = wall

    @overload
    def __getitem__(self, index: int) -> Header: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Header]: ...
    def __getitem__(self, index: int | slice) -> Header | Sequence[Header]:
        return list(self)[index]

    def __len__(self) -> int:
        return 3 * len(self._readings) + len(self._more)

    def __iter__(self) -> Iterator[Header]:
        name = "anthropic-ratelimit-{0}-{1}" if self._style == "anthropic" else "x-ratelimit-{1}-{0}"
        for counts, limit, remaining, reset_s in self._readings:
            yield name.format(counts, "limit").encode(), b"%d" % limit
            yield name.format(counts, "remaining").encode(), b"%d" % (remaining + 1e-6)
            yield name.format(counts, "reset").encode(), self._reset(reset_s).encode()
        yield from self._more

    def _reset(self, reset_s: float) -> str:
        if self._style == "azure":
            return f"{ceil(reset_s - 1e-6)}"
        if self._style == "openai":
            return f"{ceil(reset_s * 1000 - 1e-3)}ms"
        return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(ceil(self._wall + reset_s - 1e-6)))


@dataclass(frozen=True, slots=True)
class Answer:
    """`after_s` from the decision to the first byte; `lasts_s` from there to the end. A status of 0: nobody was reached."""

    status: int
    after_s: float
    lasts_s: float = 0.0
    headers: Sequence[Header] = ()
    body: bytes = b""


@dataclass
class Provider:
    """One target's other side, and what it saw."""

    name: str
    limits: Sequence[ProviderLimit] = ()
    latency: Latency = Latency()
    headers: Literal["openai", "azure", "anthropic", "none"] = "openai"
    retry_after: Literal["ms", "s", "none"] = "ms"
    charge: Literal["max", "sum", "input"] = "max"
    """Tokens of a call when it is admitted."""
    max_concurrency: int | None = None
    faults: Sequence[Fault] = ()
    refuses: Callable[[Demand], bool] | None = None
    """Which requests it answers with 429 whatever the rate; None: none."""
    asks_s: float | None = None
    """The Retry-After of these; None: they have none."""
    random: Random = field(default_factory=lambda: Random(0))
    in_flight: int = 0
    asked: int = 0
    served: int = 0
    refused: int = 0
    """429s for its own limits; those of a fault are not among them."""

    def reach_s(self) -> float:
        """How long a request is on its way."""
        jitter_s = self.latency.reach_jitter_s
        return self.latency.reach_s + (jitter_s * self.random.random() if jitter_s else 0.0)

    def ask(self, demand: Demand, now: float) -> Answer:
        """A request arrives. When it is let in (200), `release` has to follow."""
        self.asked += 1
        fault = self._fault(now) if self.faults else None
        if fault is not None:
            return self._fail(fault, now)
        if self.refuses is not None and self.refuses(demand):
            return self._too_many(self.asks_s, now)
        refusal = self._refusal(demand, now)
        if refusal is not None:
            self.refused += 1
            return refusal
        for limit in self.limits:
            if limit.counts != "output-tokens":
                limit.take(self._amount(limit, demand), now)
        self.served += 1
        self.in_flight += 1
        return Answer(200, self._ttft_s(), self._lasts_s(demand), self._told(now, []))

    def release(self, demand: Demand, now: float) -> None:
        """The answer has ended, or the client has left."""
        self.in_flight -= 1
        for limit in self.limits:
            if limit.counts == "output-tokens":
                limit.take(demand.output_tokens, now)

    def admission_charge(self, demand: Demand) -> float:
        """What a request takes of the tokens when it is let in."""
        asked = demand.max_tokens or 0
        if self.charge == "max":
            return max(demand.input_tokens, asked)
        return demand.input_tokens + (asked if self.charge == "sum" else 0)

    def _amount(self, limit: ProviderLimit, demand: Demand) -> float:
        """What has to be free of one limit for a request to be let in."""
        if limit.counts in ("requests", "output-tokens"):
            return 1
        return demand.input_tokens if limit.counts == "input-tokens" else self.admission_charge(demand)

    def has_room(self, demand: Demand, now: float, keep_percent: float = 0.0) -> bool:
        """Whether a request would be let in now, with so much of every limit left over."""
        for limit in self.limits:
            amount = self._amount(limit, demand) + limit.capacity * keep_percent / 100
            if amount > limit.capacity or limit.wait_s(amount, now):
                return False
        most = inf if self.max_concurrency is None else self.max_concurrency * (1 - keep_percent / 100)
        return self.in_flight + 1 <= most and not (self.faults and self._fault(now))

    def _refusal(self, demand: Demand, now: float) -> Answer | None:
        wait_s = 0.0
        for limit in self.limits:
            amount = self._amount(limit, demand)
            if amount > limit.capacity:
                text = b'{"error":{"message":"Too large. Limit %d, Requested %d.","code":"rate_limit_exceeded"}}'
                return Answer(429, self.latency.refusal_s, body=text % (limit.capacity, amount))
            wait_s = max(wait_s, limit.wait_s(amount, now))
        if wait_s:
            return self._too_many(wait_s, now)
        if self.max_concurrency is not None and self.in_flight >= self.max_concurrency:
            return self._too_many(None, now)
        return None

    def _too_many(self, wait_s: float | None, now: float) -> Answer:
        more: list[Header] = []
        if wait_s is not None and self.retry_after != "none":
            more.append((b"retry-after", b"%d" % ceil(wait_s)))
            if self.retry_after == "ms":
                more.append((b"retry-after-ms", b"%d" % ceil(wait_s * 1000)))
        return Answer(429, self.latency.refusal_s, headers=self._told(now, more), body=_TOO_MANY)

    def _fail(self, fault: Fault, now: float) -> Answer:
        if fault.status == 429:
            return self._too_many(fault.retry_after_s, now)
        return Answer(fault.status, self.latency.refusal_s, body=_BROKEN)

    def _fault(self, now: float) -> Fault | None:
        since_s = now - START_S
        for fault in self.faults:
            if fault.begins_s <= since_s < fault.ends_s and (fault.share == 1 or self.random.random() < fault.share):
                return fault
        return None

    def _told(self, now: float, more: list[Header]) -> Sequence[Header]:
        if self.headers == "none":
            return more
        readings = [(limit.counts, limit.told, limit.remaining(now), limit.reset_s(now)) for limit in self.limits]
        return Told(self.headers, readings, more, WALL_S + now)

    def _ttft_s(self) -> float:
        latency = self.latency
        ttft_s = latency.ttft_s * (self.random.lognormvariate(0.0, latency.sigma) if latency.sigma else 1.0)
        return ttft_s if latency.slows_above is None else ttft_s * max(1.0, self.in_flight / latency.slows_above)

    def _lasts_s(self, demand: Demand) -> float:
        pace = self.latency.tokens_per_s
        return demand.output_tokens / pace if pace else 0.0


ERROR_OF = {
    429: ErrorClass.RATE_LIMIT_REQUESTS,
    500: ErrorClass.SERVER_ERROR,
    0: ErrorClass.CONNECTION,
}
"""What the gateway's classification makes of a status."""
