"""Which limits one target or key has, and how large each of them is: the operator's numbers, and those that were learned.

It must not know what calls take, nor why a level moves. Invariants: an operator's number is only ever narrowed by what a
provider tells; a limit keeps its level when its numbers change.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

from gateway.core.limits.bucket.bucket import Bucket, Limit
from gateway.core.limits.bucket.windows import Slots, Window
from gateway.core.limits.estimate.cost import INPUT, OUTPUT, REQUESTS, SLOT, TOKEN_PARTS, TOKENS
from gateway.core.limits.headers.provider_headers import Reading
from gateway.core.limits.learning.unwritten_burst import UnwrittenBurst
from gateway.core.limits.table.rules import Limits, Style
from gateway.fleet.parts.leased_part import Share

Source = Literal["configured", "learned"]

MINUTE_S = 60.0
_DAY_S = 86_400.0
_SECOND_OF_TOKENS_LASTS_S = 10.0  # the burst of a limit told per second: one large call must still fit

PART_OF = {
    "requests_per_min": REQUESTS,
    "requests_per_day": REQUESTS,
    "input_tokens_per_min": INPUT,
    "output_tokens_per_min": OUTPUT,
    "tokens_per_min": TOKENS,
    "concurrency": SLOT,
}
"""Every limit there may be, and which part of a call's cost it counts."""


class Shared(NamedTuple):
    """A limit that other replicas use, too."""

    name: str
    part: int
    """Of a call's cost: which it counts."""
    rate_per_s: float
    capacity: float
    window_s: float
    """0.0: it has none."""
    lag_s: float
    """How late others may hear of a first call."""
    fails_closed: bool


ShareOut: TypeAlias = Callable[[Shared, float], Share]
"""Makes this replica's part of a limit; the number is now."""


class LimitRow(NamedTuple):
    """One limit as an operator sees it; `next_free_s` is when one more unit fits, None when only a release can tell."""

    name: str
    level: float
    capacity: float
    source: Source
    next_free_s: float | None


class KnownLimit:
    """One limit of a table: its level, which part of a cost it counts, and the operator's own number (None: learned)."""

    __slots__ = ("amount", "configured", "limit", "name", "part", "since")

    def __init__(self, name: str, limit: Limit, amount: float, configured: float | None, since: float) -> None:
        self.name = name
        self.part = PART_OF[name]
        self.limit = limit
        self.amount = amount
        """Per its period: of what the limit is made."""
        self.configured = configured
        self.since = since
        """When it became known (monotonic seconds)."""

    def keep(self, percent: float, tokens: float, requests: float) -> float:
        """Returns what is to be left over of it: so many percent, and so many tokens or requests besides."""
        keep = self.limit.capacity * percent / 100 if percent else 0.0
        if tokens and INPUT <= self.part <= TOKENS:
            return keep + tokens
        return keep + requests if requests and self.part == REQUESTS else keep


class LimitTable:
    """Requests and tokens per minute, requests per day and concurrency: whichever of them are known.

    Rates are per minute (per day). Input and output tokens may be limited apart, beside or instead of the joint limit.
    """

    __slots__ = (
        "_fail_closed",
        "_lag_s",
        "_request_burst",
        "_share_out",
        "_untold_burst_s",
        "buckets",
        "burst",
        "known",
        "smallest",
        "style",
    )

    def __init__(self, limits: Limits, now: float, style: Style, lag_s: float, share_out: ShareOut | None) -> None:
        self._share_out = share_out
        self._lag_s = lag_s
        self._fail_closed: frozenset[str] = frozenset()
        self._request_burst: float | None = None
        self._untold_burst_s: float | None = None
        self.style = style
        """How the provider counts."""
        self.known: list[KnownLimit] = []
        self.burst: UnwrittenBurst | None = None
        """How many requests go at once, where nobody has written it down."""
        self.smallest = inf
        """The capacity of the smallest token limit: a call of fewer tokens fits them all."""
        self.buckets: tuple[tuple[Bucket, int, float], ...] | None = ()
        """Every limit, its part of a cost and since when it is known, where all are plain buckets of our own; else None."""
        self.configure(limits, now)

    def configure(self, limits: Limits, now: float, style: Style | None = None) -> None:
        """Puts new numbers of the operator in force. Levels are kept, unless the provider is said to count otherwise.

        What is no longer named is no longer limited; what was learned stays.
        """
        if style is not None and style != self.style:
            self.style = style
            self._keep([one for one in self.known if one.name == "concurrency"])
        wanted = {
            "requests_per_min": limits.requests_per_min,
            "tokens_per_min": limits.tokens_per_min,
            "input_tokens_per_min": limits.input_tokens_per_min,
            "output_tokens_per_min": limits.output_tokens_per_min,
            "requests_per_day": limits.requests_per_day,
            "concurrency": limits.max_concurrency,
        }
        self._fail_closed = limits.fail_closed
        self._keep([one for one in self.known if one.configured is None or wanted[one.name] is not None])
        if (limits.request_burst, limits.untold_burst_s) != (self._request_burst, self._untold_burst_s):
            self._request_burst, self._untold_burst_s = limits.request_burst, limits.untold_burst_s
            self._begin_burst()
            self.reshape_requests(now)
        for name, amount in wanted.items():
            if amount is not None:
                self.put(name, amount, now, configured=amount)
        for one in self.known:
            if isinstance(one.limit, Share):
                one.limit.fail_closed(one.name in limits.fail_closed, now)
        self.size_up()

    def retire(self) -> None:
        """Forgets all limits, because nobody uses them any more; what is held of those that are shared goes back."""
        self._keep([])
        self.size_up()

    def put(
        self, name: str, amount: float, now: float, *, configured: float | None = None, reading: Reading | None = None
    ) -> KnownLimit:
        """Makes or resizes the limit `name` to `amount` per its period. To be followed by `size_up`."""
        one = self.find(name)
        if one is None:
            if name == "requests_per_min":
                self._begin_burst(amount)
            one = KnownLimit(name, self._make(name, amount, now, reading), amount, configured, now)
            self.known.append(one)
            return one
        if configured is not None:
            one.configured = configured
        elif one.configured is not None:
            amount = min(amount, one.configured)
            if reading is not None and reading.period_s >= MINUTE_S:
                reading = None  # a lower rate is no word on how many go at once
        if amount != one.amount:
            one.amount = amount
            if name == "requests_per_min":
                self._begin_burst()
            one.limit.resize(*self._shape(name, amount, reading), now)
        return one

    def reshape_requests(self, now: float) -> None:
        """Resizes the requests per minute after a change of how many may go at once; what is free stays free."""
        one = self.find("requests_per_min")
        if one is not None:
            one.limit.resize(*self._shape(one.name, one.amount, None), now)

    def size_up(self) -> None:
        """Renews `smallest` and `buckets`; to be called when limits have come, gone or changed."""
        self.smallest = min([one.limit.capacity for one in self.known if one.part in TOKEN_PARTS], default=inf)
        plain = [(one.limit, one.part, one.since) for one in self.known if isinstance(one.limit, Bucket)]
        self.buckets = tuple(plain) if len(plain) == len(self.known) else None

    def find(self, name: str) -> KnownLimit | None:
        """Returns the limit of this name; None: there is none."""
        for one in self.known:
            if one.name == name:
                return one
        return None

    def has(self, *names: str) -> bool:
        """Returns whether one of these limits is known."""
        return any(one.name in names for one in self.known)

    @property
    def concurrency(self) -> float | None:
        """How many calls may be in flight; None: as many as the rates let in."""
        one = self.find("concurrency")
        return None if one is None else one.amount

    def refills_per_s(self, *, requests: bool) -> float:
        """Returns the slowest rate among the limits of requests or of tokens that refill all the time; inf: there is none."""
        rates = [
            one.limit.rate_per_s
            for one in self.known
            if refills(one.limit) and (one.name == "requests_per_min" if requests else one.part in TOKEN_PARTS)
        ]
        return min(rates, default=inf)

    def rows(self, now: float) -> list[LimitRow]:
        """Returns every limit, for `/admin/limits` and the gauges."""
        return [
            LimitRow(
                one.name,
                one.limit.level_at(now),
                one.limit.capacity,
                "learned" if one.configured is None else "configured",
                _next_free_s(one.limit, now),
            )
            for one in self.known
        ]

    def _keep(self, limits: list[KnownLimit]) -> None:
        for one in self.known:
            if one not in limits and isinstance(one.limit, Share):
                one.limit.retire()
        self.known = limits

    def _make(self, name: str, amount: float, now: float, reading: Reading | None) -> Limit:
        rate_per_s, capacity = self._shape(name, amount, reading)
        window_s = self._window_s(name)
        if self._share_out is not None:
            is_closed = name in self._fail_closed
            shared = Shared(name, PART_OF[name], rate_per_s, capacity, window_s or 0.0, self._lag_s, is_closed)
            return self._share_out(shared, now)
        if name == "concurrency":
            return Slots(capacity)
        if window_s is None:
            return Bucket(rate_per_s, capacity, now, lag_s=self._lag_s)
        window = Window(capacity, window_s, now)
        window.resize(rate_per_s, capacity, now)
        return window

    def _shape(self, name: str, amount: float, reading: Reading | None) -> tuple[float, float]:
        """Returns the refill per second, and the capacity."""
        if name == "concurrency":
            return 0.0, amount
        rate_per_s = amount / period_s(name)
        window_s = self._window_s(name)
        if window_s is not None:
            capacity = rate_per_s * window_s
            return rate_per_s, max(1.0, floor(capacity + 1e-9)) if name == "requests_per_min" else capacity
        if reading is not None and reading.period_s < MINUTE_S:
            tells_tokens = PART_OF[name] != REQUESTS
            return rate_per_s, max(1.0, rate_per_s * (_SECOND_OF_TOKENS_LASTS_S if tells_tokens else reading.period_s))
        if name != "requests_per_min":
            return rate_per_s, max(1.0, amount)
        if self._request_burst is not None:
            return rate_per_s, max(1.0, self._request_burst)
        return rate_per_s, max(1.0, amount * self.style.request_burst if self.burst is None else self.burst.burst)

    def _window_s(self, name: str) -> float | None:
        if name in ("requests_per_day", "concurrency"):
            return None
        return self.style.request_window_s if name == "requests_per_min" else self.style.token_window_s

    def _begin_burst(self, amount: float | None = None) -> None:
        """Begins the search for a burst anew: the rate has changed, or what is written down of the burst."""
        if amount is None:
            one = self.find("requests_per_min")
            amount = None if one is None else one.amount
        if self._request_burst is not None or self._untold_burst_s is None or amount is None:
            self.burst = None
            return
        rate_per_s = amount / MINUTE_S
        most = min(rate_per_s * self._untold_burst_s, amount * self.style.request_burst)
        self.burst = UnwrittenBurst(rate_per_s, max(1.0, most), is_told=self.burst is not None and self.burst.is_told)


def refills(limit: Limit) -> TypeGuard[Bucket | Share]:
    """Returns whether the limit refills all the time, rather than in windows or by releases."""
    return isinstance(limit, Bucket) or (isinstance(limit, Share) and limit.kind == "bucket")


def period_s(name: str) -> float:
    """Returns the seconds over which the amount of the limit `name` is counted."""
    return _DAY_S if name == "requests_per_day" else MINUTE_S


def _next_free_s(limit: Limit, now: float) -> float | None:
    least = min(1.0, limit.capacity)
    if isinstance(
        limit, Share
    ):  # `wait_s` says None where the store has to be asked, which an operator's look does not
        return limit.ready_at(least, now) - now
    return limit.wait_s(least, now)
