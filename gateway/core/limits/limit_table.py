"""Which limits one target or key has, and how large each of them is: the operator's numbers, and those that were learned.

First what the config says (`Limits`, and the provider's `Style` of counting), then the table that unites it with what
headers and refusals have shown, then the set of buckets that the table makes, and last what moves their levels besides
calls:

    learn        an answer's headers correct levels and capacities; a limit nobody configured appears
    forget_stale a call waits for what no answer has reported for long
    grow_burst   a call waits for nothing but a guess of how many requests go at once
    burst_refused, adopt_burst      a refusal, or another replica, has shown how many do
    hold_back    a pause has ended: no herd
    used, use_again                 an idle gate goes, and comes back

Invariants: an operator's number is only ever narrowed by what a provider tells; a limit keeps its level when its numbers
change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor, inf
from typing import Literal, NamedTuple, Protocol, TypeAlias

from gateway.core.limits.bucket import (
    INPUT,
    NOTHING,
    OUTPUT,
    REQUESTS,
    SLOT,
    TOKEN_PARTS,
    TOKENS,
    Bucket,
    Cost,
    Limit,
    Slots,
    Window,
    parts_of,
)
from gateway.core.limits.headers import Learned, Reading
from gateway.core.limits.learning import UnwrittenBurst


@dataclass(frozen=True, slots=True)
class Limits:
    """What a target or a key may use; None: not limited."""

    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    requests_per_day: float | None = None
    max_concurrency: int | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    request_burst: float | None = None
    """The requests that may go at once under continuous refill; None: what the provider's style says."""
    unstated_burst_s: float | None = None
    """The most seconds' worth of requests that may go at once, where neither that nor the provider's headers say how many."""
    fail_closed: frozenset[str] = frozenset()
    """Names of these limits (`tokens_per_min`, …) under which nothing goes while replicas cannot share them."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a provider counts: in windows of so many seconds, or (None) by continuous refill.

    `request_burst` is the share of a minute's requests that may go at once under continuous refill; the default is all
    of them, as OpenAI and Anthropic document. Tokens always have one minute's worth.
    """

    request_window_s: float | None = None
    token_window_s: float | None = None
    request_burst: float = 1.0


CONTINUOUS = Style()
AZURE = Style(request_window_s=10.0, token_window_s=60.0)

Source = Literal["configured", "learned"]

MINUTE_S = 60.0
_DAY_S = 86_400.0
_SECOND_OF_TOKENS_LASTS_S = 10.0  # the burst of a limit per second: one large call must still fit

PART_OF = {
    "requests_per_min": REQUESTS,
    "requests_per_day": REQUESTS,
    "input_tokens_per_min": INPUT,
    "output_tokens_per_min": OUTPUT,
    "tokens_per_min": TOKENS,
    "concurrency": SLOT,
}
"""Every limit there may be, and which part of a call's cost it counts."""


LimitKind = Literal["bucket", "window", "slots"]
"""A bucket refills all the time, a window starts anew, slots are held and given back."""


class LimitShape(NamedTuple):
    """A limit that other replicas use, too: what it counts, and how large all of it is."""

    name: str
    part: int
    """The part of a call's cost that it counts."""
    rate_per_s: float
    capacity: float
    window_s: float
    """The seconds of its window; 0.0: it has none."""
    lag_s: float
    """Seconds by which others may learn late of a first call."""
    fails_closed: bool


class SharedLimit(Limit, Protocol):
    """This replica's part of a limit that other replicas use, too.

    Where nothing is held here, `wait_s` is None until `want` has leased more: the calls that wait then go.
    """

    kind: LimitKind
    rate_per_s: float

    @property
    def is_answered(self) -> bool:
        """Returns whether it is known what others have left of the limit."""
        ...

    def want(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        """Returns what `wait_s` does, and asks the other replicas for what is lacking."""
        ...

    def is_dry(self, need: float, now: float) -> bool:
        """Returns whether `need` is neither here nor elsewhere, as far as is known."""
        ...

    def raise_by(self, amount: float, now: float) -> None:
        """Adds an amount that turned out to be there, for all replicas."""
        ...

    def fail_closed(self, fails_closed: bool, now: float) -> None:
        """Sets whether nothing goes while replicas cannot share it; that holds at once, also if they cannot now."""
        ...

    def retire(self) -> None:
        """Gives back what is held, because nobody uses the limit here any more."""
        ...


ShareOut: TypeAlias = Callable[[LimitShape, float], SharedLimit]
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

    __slots__ = ("amount", "configured", "limit", "name", "part", "reported_at", "shared", "since")

    def __init__(
        self,
        name: str,
        limit: Limit,
        amount: float,
        configured: float | None,
        since: float,
        shared: SharedLimit | None = None,
    ) -> None:
        self.name = name
        self.part = PART_OF[name]
        self.limit = limit
        self.shared = shared
        """`limit` itself where other replicas use it, too; else None."""
        self.amount = amount
        """The amount per period that the limit is made of."""
        self.configured = configured
        self.since = since
        """When it became known (monotonic seconds)."""
        self.reported_at = inf
        """When an answer reported it last; inf: none has, or its report is forgotten."""

    def most(self, tolerance: float) -> float:
        """Returns how large a call may be to be cut to it: `tolerance` times the operator's number; inf: there is none."""
        return inf if self.configured is None else self.limit.capacity * self.configured / self.amount * tolerance

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
        "_unstated_burst_s",
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
        self._unstated_burst_s: float | None = None
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
        """Puts new numbers of the operator in force. Levels are kept, unless the config has the provider count otherwise now.

        What is no longer named is no longer limited; what was learned stays.
        """
        if style is not None and style != self.style:
            self.style = style
            # A bucket cannot become a window; calls at a time are counted the same in any style.
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
        if (limits.request_burst, limits.unstated_burst_s) != (self._request_burst, self._unstated_burst_s):
            self._request_burst, self._unstated_burst_s = limits.request_burst, limits.unstated_burst_s
            self._begin_burst()
            self.reshape_requests(now)
        for name, amount in wanted.items():
            if amount is not None:
                self.put(name, amount, now, configured=amount)
        for one in self.known:
            if one.shared is not None:
                one.shared.fail_closed(one.name in limits.fail_closed, now)
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
            one = self._make(name, amount, now, configured, reading)
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

    def forget(self, limits: list[KnownLimit]) -> None:
        """Forgets these limits. To be followed by `size_up`."""
        self._keep([one for one in self.known if one not in limits])

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
            limit.rate_per_s
            for one in self.known
            if (one.name == "requests_per_min" if requests else one.part in TOKEN_PARTS)
            and (limit := refilling(one)) is not None
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
                _next_free_s(one, now),
            )
            for one in self.known
        ]

    def _keep(self, limits: list[KnownLimit]) -> None:
        for one in self.known:
            if one not in limits and one.shared is not None:
                one.shared.retire()
        self.known = limits

    def _make(
        self, name: str, amount: float, now: float, configured: float | None, reading: Reading | None
    ) -> KnownLimit:
        rate_per_s, capacity = self._shape(name, amount, reading)
        window_s = self._window_s(name)
        if self._share_out is not None:
            is_closed = name in self._fail_closed
            shape = LimitShape(name, PART_OF[name], rate_per_s, capacity, window_s or 0.0, self._lag_s, is_closed)
            shared = self._share_out(shape, now)
            return KnownLimit(name, shared, amount, configured, now, shared)
        limit: Limit
        if name == "concurrency":
            limit = Slots(capacity)
        elif window_s is None:
            limit = Bucket(rate_per_s, capacity, now, lag_s=self._lag_s)
        else:
            limit = Window(capacity, window_s, now)
            limit.resize(rate_per_s, capacity, now)
        return KnownLimit(name, limit, amount, configured, now)

    def _shape(self, name: str, amount: float, reading: Reading | None) -> tuple[float, float]:
        if name == "concurrency":
            return 0.0, amount
        rate_per_s = amount / period_s(name)
        window_s = self._window_s(name)
        if window_s is not None:
            capacity = rate_per_s * window_s
            # Without the hair, rounding would take a whole request from a window that holds exactly so many.
            return rate_per_s, max(1.0, floor(capacity + 1e-9)) if name == "requests_per_min" else capacity
        if reading is not None and reading.period_s < MINUTE_S:
            is_of_tokens = PART_OF[name] != REQUESTS
            return rate_per_s, max(1.0, rate_per_s * (_SECOND_OF_TOKENS_LASTS_S if is_of_tokens else reading.period_s))
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
        if self._request_burst is not None or self._unstated_burst_s is None or amount is None:
            self.burst = None
            return
        rate_per_s = amount / MINUTE_S
        most = min(rate_per_s * self._unstated_burst_s, amount * self.style.request_burst)
        self.burst = UnwrittenBurst(rate_per_s, max(1.0, most), is_known=self.burst is not None and self.burst.is_known)


def refilling(one: KnownLimit) -> Bucket | SharedLimit | None:
    """Returns the limit if it refills all the time; None: it does so in windows or by releases."""
    if isinstance(one.limit, Bucket):
        return one.limit
    return one.shared if one.shared is not None and one.shared.kind == "bucket" else None


def period_s(name: str) -> float:
    """Returns the seconds over which the amount of the limit `name` is counted."""
    return _DAY_S if name == "requests_per_day" else MINUTE_S


def _next_free_s(one: KnownLimit, now: float) -> float | None:
    least = min(1.0, one.limit.capacity)
    # `wait_s` is None where other replicas have to be asked, which an operator's look does not.
    if one.shared is not None:
        return one.shared.ready_at(least, now) - now
    return one.limit.wait_s(least, now)


# --- a set of limits, taken and given back together ---


_BEFORE_NEVER = 1e300  # a slot, of which nobody knows: longer than any wait with a time, shorter than never
MOST_PROMISED_S = 60.0
"""Seconds for which room is promised to refused calls: not all of them come back."""


class LimitSet:
    """A table of limits, and what calls have taken of each part of a cost.

    A set reserves the estimate before a call is sent and settles to the truth after it. Every granted reservation ends in
    exactly one `settle`. Invariant: all or nothing; a refused reservation changes no level.
    """

    __slots__ = ("_is_shared", "_promised_until", "table", "taken")

    def __init__(
        self,
        limits: Limits,
        now: float,
        style: Style = CONTINUOUS,
        lag_s: float = 0.0,
        share_out: ShareOut | None = None,
    ) -> None:
        """`lag_s` is how late whoever counts them may hear of the first call (0.0: we count them ourselves).

        With `share_out` other replicas use the same limits.
        """
        self.table = LimitTable(limits, now, style, lag_s, share_out)
        self.taken = [0.0, 0.0, 0.0, 0.0, 0.0]
        """What was taken so far of each part of a cost, whether or not a limit counts it yet."""
        self._is_shared = share_out is not None
        self._promised_until = 0.0

    def promise(self, cost: Cost, soonest: float) -> float:
        """Returns when a call that is refused now may come back: at `soonest`, or behind those that were refused before it."""
        turn = min(max(soonest, self._promised_until), soonest + MOST_PROMISED_S)
        self._promised_until = turn + self.drain_s(cost)
        return turn

    def reserve(self, cost: Cost, now: float, keep_percent: float = 0.0) -> float | None:
        """Takes `cost` from every limit and returns 0.0, or takes nothing and returns the wait of `want`."""
        wait_s = self.want(cost, now, keep_percent)
        if wait_s == 0.0:
            self.take(cost, now)
        return wait_s

    def take(self, cost: Cost, now: float) -> None:
        """Takes `cost` from every limit; only to be called when `wait_s` is 0.0."""
        parts = parts_of(cost, 1)
        taken = self.taken
        taken[REQUESTS] += parts[REQUESTS]
        if parts[TOKENS]:
            taken[INPUT] += parts[INPUT]
            taken[OUTPUT] += parts[OUTPUT]
            taken[TOKENS] += parts[TOKENS]
        for one in self.table.known:
            one.limit.take(parts[one.part], now)

    def wait_s(
        self, cost: Cost, now: float, keep_percent: float = 0.0, keep_tokens: float = 0.0, keep_requests: float = 0.0
    ) -> float | None:
        """Returns the seconds until all limits fit at once: 0.0 now, inf never, None when a slot must be given back first.

        `keep_percent` of each limit's capacity must be left over, `keep_tokens` of each token limit and `keep_requests`
        of each of requests; what is too large for that waits for a full limit.
        """
        parts = parts_of(cost, 1)
        longest_s = 0.0
        is_unknown = False
        for one in self.table.known:
            wait_s = one.limit.wait_s(parts[one.part], now, one.keep(keep_percent, keep_tokens, keep_requests))
            if wait_s is None:
                is_unknown = True
            elif wait_s > longest_s:
                longest_s = wait_s
        return None if is_unknown and longest_s < inf else longest_s

    def want(
        self, cost: Cost, now: float, keep_percent: float = 0.0, keep_tokens: float = 0.0, keep_requests: float = 0.0
    ) -> float | None:
        """Asks other replicas for what a call lacks of limits that they share; returns the wait of `wait_s`."""
        wait_s = self.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)
        if wait_s == 0.0 or not self._is_shared:
            return wait_s
        parts = parts_of(cost, 1)
        for one in self.table.known:
            if one.shared is not None:
                one.shared.want(parts[one.part], now, one.keep(keep_percent, keep_tokens, keep_requests))
        return self.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)

    def ready_at(self, cost: Cost, now: float, ahead: Cost = NOTHING, keep_percent: float = 0.0) -> float:
        """Returns when `cost` fits after `ahead` (the sum of those before it) was taken; inf: never.

        Exact while one and the same limit holds up all of them, else the earliest possible; for concurrency an estimate.
        """
        parts, before = parts_of(cost, 1), parts_of(ahead)
        return max(
            (
                one.limit.ready_at(parts[one.part], now, before[one.part], one.limit.capacity * keep_percent / 100)
                for one in self.table.known
            ),
            default=now,
        )

    def drain_s(self, ahead: Cost) -> float:
        """Returns how long the limits take to let `ahead` through, with nothing left over from before."""
        before = parts_of(ahead)
        return max((one.limit.drain_s(before[one.part]) for one in self.table.known), default=0.0)

    def shrink(self, cost: Cost, tolerance: float) -> Cost:
        """Returns `cost`, cut to what the limits can hold where it is no more than `tolerance` times that: estimates err.

        What a provider's headers tell cuts it in any case: they may be of another kind of token, or one odd answer's, and
        only its own words make a call impossible.
        """
        requests, input_tokens, output_tokens = cost
        if input_tokens + output_tokens <= self.table.smallest:
            return cost
        for one in self.table.known:
            capacity = one.limit.capacity
            most = one.most(tolerance)
            if one.part == INPUT and capacity < input_tokens <= most:
                input_tokens = capacity
            elif one.part == OUTPUT and capacity < output_tokens <= most:
                output_tokens = capacity
        for one in self.table.known:  # the joint limit last: what is left after the cuts may fit it
            capacity = one.limit.capacity
            total = input_tokens + output_tokens
            if one.part == TOKENS and capacity < total <= one.most(tolerance):
                input_tokens, output_tokens = input_tokens * capacity / total, output_tokens * capacity / total
        return Cost(requests, input_tokens, output_tokens)

    def settle(self, reserved: Cost, actual: Cost, now: float, reserved_at: float | None = None) -> None:
        """Corrects what was reserved to what was used, and frees the slot; called once for each granted reservation.

        With `reserved_at`, a window takes nothing back from before it began, nor a limit from before it existed.
        """
        before, after = parts_of(reserved, 1), parts_of(actual, 0)
        for one in self.table.known:
            if reserved_at is not None and reserved_at < one.since:
                continue
            more = after[one.part] - before[one.part]
            if more < 0:
                one.limit.give_back(-more, now, reserved_at)
            elif more > 0:
                one.limit.force(more, now)

    def charge(self, cost: Cost, now: float) -> None:
        """Takes what was used, whether it is there or not; neither a request nor a slot."""
        parts = parts_of(cost, 0)
        for one in self.table.known:
            if one.part and parts[one.part] > 0:
                one.limit.force(parts[one.part], now)

    def charge_requests(self, count: int, now: float) -> None:
        """Takes requests that went with another one's leave, whether they are there or not."""
        for one in self.table.known:
            if one.part == REQUESTS:
                one.limit.force(count, now)

    def unsend(self, reserved: Cost) -> None:
        """Notes that nothing was sent: no provider has counted it. To be called beside `settle` with nothing used."""
        self.taken = [taken - part for taken, part in zip(self.taken, parts_of(reserved, 0), strict=True)]

    def which(self, cost: Cost, now: float, keep_percent: float = 0.0) -> str | None:
        """Returns the name of the limit that blocks longest, a slot that must be freed before any clock; None: it fits."""
        parts = parts_of(cost, 1)
        worst, worst_s = None, 0.0
        for one in self.table.known:
            wait_s = one.limit.wait_s(parts[one.part], now, one.limit.capacity * keep_percent / 100)
            order_s = _BEFORE_NEVER if wait_s is None else wait_s
            if order_s > worst_s:
                worst, worst_s = one.name, order_s
        return worst

    def mark(self) -> tuple[float, ...]:
        """Returns how much was taken so far for calls that were sent; kept at a grant, it makes `learn` exact.

        Corrections do not count: what a call really costs, the provider has counted from the start.
        """
        return tuple(self.taken)


# --- what moves levels besides calls: headers, a burst that grows, a refusal, the end of a pause ---


STALE_AFTER_S = 300.0
"""Seconds for which a limit of headers is believed without being sent again; who sends them does so with each answer."""
_NAMES = tuple(PART_OF)
_FEWEST_TOKENS = 100.0
_AT_ONCE_S = 0.2
_FAR_FEWER = 4.0


def learn(
    limits: LimitSet,
    learned: Learned,
    now: float,
    sent_at: float | None = None,
    mark: tuple[float, ...] | None = None,
    in_flight: int = 0,
) -> None:
    """Corrects levels and capacities from an answer's limit headers; a limit nobody configured appears.

    A configured limit is only ever narrowed by the provider. `sent_at` and `mark` are those of the answer's own
    reservation; without them the numbers are taken to be true now. Of the calls `in_flight` those that were sent before
    this one may not have been counted yet: calls on open connections overtake one that waits for its own.
    """
    table, taken = limits.table, limits.taken
    before = 0.0 if mark is None else max(0.0, in_flight - 1 - (taken[REQUESTS] - mark[REQUESTS]))
    share_on_the_way = before / max(1.0, taken[REQUESTS])
    for name, reading in learned.by_limit():
        one = known = table.find(name)
        if reading.limit is not None and reading.limit < (1 if PART_OF[name] == REQUESTS else _FEWEST_TOKENS):
            continue  # nobody could ask for anything: absurd, and nothing could correct it any more
        if reading.limit is not None:
            one = table.put(name, reading.limit * (period_s(name) / reading.period_s), now, reading=reading)
        if one is not None:
            one.reported_at = now
            taken_since = 0.0 if mark is None else taken[one.part] - mark[one.part]
            if learned.requests is reading and table.burst is not None and _has_level(reading):
                _open_as_reported(limits, table.burst, one, reading, now, taken_since)
            if known is None and reading.remaining is not None and reading.period_s >= MINUTE_S:
                # Nothing was known of it: it starts with the least that may be there.
                one.limit.correct(max(0.0, reading.remaining - taken_since), now)
            doubt = None if mark is None else share_on_the_way * taken[one.part]
            _reconcile(one, reading, now, now if sent_at is None else sent_at, taken_since, doubt)
    table.size_up()


def forget_stale(limits: LimitSet, now: float) -> bool:
    """Goes back to the operator's numbers where no answer has reported another for STALE_AFTER_S; returns whether any had.

    To be asked when a limit is in a call's way: what one odd answer has reported would else hold up calls for good.
    """
    table, stale_before = limits.table, now - STALE_AFTER_S
    stale = [one for one in table.known if one.reported_at < stale_before]
    if not stale:
        return False
    table.forget([one for one in stale if one.configured is None])
    for one in stale:
        # Else every call that waits would find it stale again.
        one.reported_at = inf
        if one.configured is not None:
            table.put(one.name, one.configured, now, configured=one.configured)
    table.size_up()
    return True


def grow_burst(
    limits: LimitSet, now: float, let_in: int, in_flight: int, keep_percent: float = 0.0, keep_requests: float = 0.0
) -> bool:
    """Lets more requests go at once where only a guess is in a waiting call's way; returns whether it did.

    `let_in` and `in_flight` as of `UnwrittenBurst.grow`.
    """
    burst = limits.table.burst
    one = None if burst is None else limits.table.find("requests_per_min")
    limit = None if one is None else refilling(one)
    if burst is None or limit is None:
        return False
    if not limit.is_dry(1.0 + limit.capacity * keep_percent / 100 + keep_requests, now):
        return False
    more = burst.grow(now, let_in, in_flight)
    if not more:
        return False
    limits.table.reshape_requests(now)
    limit.raise_by(more, now)
    return True


def burst_refused(limits: LimitSet, now: float, *, is_first: bool, in_flight: float = inf) -> bool:
    """Lets fewer requests go at once after a refusal; returns as `UnwrittenBurst.refused`, False where the burst is written.

    Where far fewer are in flight than may go at once, something else has refused the call, too.
    """
    burst = limits.table.burst
    if burst is None:
        return False
    # By the burst that the call met: the refusal lowers it in the next line.
    is_explained = burst.burst <= _FAR_FEWER * in_flight
    if not burst.refused(now, is_first=is_first):
        return False
    limits.table.reshape_requests(now)
    return is_explained


def adopt_burst(limits: LimitSet, burst: float, now: float) -> None:
    """Takes over how many requests go at once, as another replica has found it."""
    if limits.table.burst is not None:
        limits.table.burst.adopt(burst, now)
        limits.table.reshape_requests(now)


def hold_back(limits: LimitSet, now: float) -> None:
    """Cuts the requests that are free to a fifth of a second's worth at the end of a pause, so that no herd follows.

    Windows are left alone: after a pause the provider's is a new one, too.
    """
    one = limits.table.find("requests_per_min")
    limit = None if one is None else refilling(one)
    if limit is not None:
        few = max(1.0, _AT_ONCE_S * limit.rate_per_s)
        if limit.level_at(now) > few:
            limit.correct(few, now)


def used(limits: LimitSet, now: float) -> tuple[Used, ...]:
    """Returns what of the operator's limits is used up, and not there again yet; nothing of those that replicas share."""
    known = [(_NAMES.index(one.name), one.limit) for one in limits.table.known if one.configured is not None]
    found = [
        Used(index, limit.level_at(now), limit.ready_at(limit.capacity, now))
        for index, limit in known
        if isinstance(limit, Bucket | Window)
    ]
    return tuple(one for one in found if now < one.full_at < inf)


def use_again(limits: LimitSet, used: Iterable[Used], now: float) -> None:
    """Sets the levels to what was used up some time ago of these limits under the same name."""
    for index, level, full_at in used:
        one = limits.table.find(_NAMES[index])
        if one is None or full_at <= now:
            continue
        limit = one.limit
        if isinstance(limit, Bucket):
            level = limit.capacity - (full_at - now) * limit.rate_per_s
        if isinstance(limit, Bucket | Window):
            limit.correct(level, now)


def _open_as_reported(
    limits: LimitSet, burst: UnwrittenBurst, one: KnownLimit, reading: Reading, now: float, taken_since: float
) -> None:
    """Lets go at once what headers say is left."""
    left = (reading.remaining or 0.0) + reading.grain
    more = burst.observe(left, one.amount * limits.table.style.request_burst)
    if not more:
        return
    limits.table.reshape_requests(now)
    if one.shared is not None and one.shared.is_answered:  # whose level no answer raises otherwise
        free = (reading.remaining or 0.0) - taken_since - one.shared.level_at(now)
        one.shared.raise_by(max(0.0, min(more, free)), now)


def _reconcile(
    one: KnownLimit, reading: Reading, now: float, sent_at: float, taken_since: float, doubt: float | None
) -> None:
    limit = one.limit
    if reading.remaining is not None and reading.period_s >= MINUTE_S:
        level = limit.level_at(now)
        limit.reconcile(reading.remaining, now, sent_at, taken_since, reading.grain, doubt)
        if not _may_raise(one, reading) and limit.level_at(now) > level:
            limit.correct(level, now)
    if reading.reset_s is not None and isinstance(limit, Window):
        limit.align(reading.reset_s, now, sent_at)


def _has_level(reading: Reading) -> bool:
    """Returns whether it says how many of a minute's are left: so many may go at once."""
    return reading.limit is not None and reading.remaining is not None and reading.period_s >= MINUTE_S


def _may_raise(one: KnownLimit, reading: Reading) -> bool:
    """Returns whether the provider's bucket is ours: where we use a part of it, its level is no evidence about our part."""
    is_same = one.configured is None or (
        reading.limit is not None and reading.limit * (period_s(one.name) / reading.period_s) <= one.configured
    )
    return is_same and (reading.remaining or 0.0) <= one.limit.capacity


class Used(NamedTuple):
    """Some of a limit is used up: which limit, what is left of it, and when all of it is there again (monotonic seconds)."""

    limit: int
    level: float
    full_at: float
