"""The limits of one target or key, taken and given back together.

A set reserves the estimate before a call is sent and settles to the truth after it. It must not know which call it is,
who waits, or why. Every granted reservation ends in exactly one `settle` or `cancel`. Invariant: all or nothing; a
refused reservation changes no level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor, inf
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

from gateway.policy.fleet.leased_part import Share
from gateway.policy.limits.bucket import Bucket, Limit
from gateway.policy.limits.idle_gates import Used
from gateway.policy.limits.provider_headers import Learned, Reading
from gateway.policy.limits.rules import Limits
from gateway.policy.limits.unwritten_burst import UntoldBurst
from gateway.policy.limits.windows import Slots, Window

Source = Literal["configured", "learned"]

_MINUTE_S = 60.0
_DAY_S = 86_400.0
_REQUESTS, _INPUT, _OUTPUT, _TOKENS, _SLOT = range(5)

_TOKEN_PARTS = (_INPUT, _OUTPUT, _TOKENS)

_PART_OF = {
    "requests_per_min": _REQUESTS,
    "requests_per_day": _REQUESTS,
    "input_tokens_per_min": _INPUT,
    "output_tokens_per_min": _OUTPUT,
    "tokens_per_min": _TOKENS,
    "concurrency": _SLOT,
}
_PARTS = tuple(_PART_OF)
_FEWEST_TOKENS = 100.0
_SECOND_OF_TOKENS_LASTS_S = 10.0  # the burst of a limit told per second: one large call must still fit


class Cost(NamedTuple):
    """What one call takes from each limit. A joint token limit takes the sum of both."""

    requests: float = 1
    input_tokens: float = 0
    output_tokens: float = 0


NOTHING = Cost(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Style:
    """How a provider counts: in windows of so many seconds, or (None) by continuous refill.

    `request_burst` is the share of a minute's requests that may go at once under continuous refill; the default is all
    of them, as OpenAI and Anthropic document. Tokens always have one minute's worth.
    """

    request_window_s: float | None = None
    token_window_s: float | None = None
    request_burst: float = 1.0


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
CONTINUOUS = Style()
AZURE = Style(request_window_s=10.0, token_window_s=60.0)


class LimitRow(NamedTuple):
    """One limit as an operator sees it; `next_free_s` is when one more unit fits, None when only a release can tell."""

    name: str
    level: float
    capacity: float
    source: Source
    next_free_s: float | None


class _LimitState:
    """One limit of a set, which part of a cost it counts, and the operator's own number (None: learned)."""

    __slots__ = ("amount", "configured", "limit", "name", "part", "since")

    def __init__(self, name: str, limit: Limit, amount: float, configured: float | None, since: float) -> None:
        self.name = name
        self.part = _PART_OF[name]
        self.limit = limit
        self.amount = amount
        self.configured = configured
        self.since = since

    def keep(self, percent: float, tokens: float, requests: float) -> float:
        """What is to be left over of it: so many percent, and so many tokens or requests besides."""
        keep = self.limit.capacity * percent / 100 if percent else 0.0
        if tokens and _INPUT <= self.part <= _TOKENS:
            return keep + tokens
        return keep + requests if requests and self.part == _REQUESTS else keep


class LimitSet:
    """Requests and tokens per minute, requests per day and concurrency: whichever of them are known.

    Rates are per minute (per day). Input and output tokens may be limited apart, beside or instead of the joint limit.
    """

    __slots__ = (
        "_burst",
        "_fail_closed",
        "_lag_s",
        "_rows",
        "_share_out",
        "_style",
        "_untold_burst_s",
        "buckets",
        "smallest",
        "taken",
        "untold",
    )

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
        self._style = style
        self._share_out = share_out
        self._lag_s = lag_s
        self._burst: float | None = None
        self._untold_burst_s: float | None = None
        self.untold: UntoldBurst | None = None
        """How many requests go at once, where nobody has written it down."""
        self._fail_closed: frozenset[str] = frozenset()
        self.smallest = inf
        """The capacity of the smallest token limit: what is below fits them all."""
        self.buckets: tuple[tuple[Bucket, int, float], ...] | None = ()
        """Every limit, its part of a cost and since when it is known, where all are plain buckets of our own; else None."""
        self._rows: list[_LimitState] = []
        self.taken = [0.0, 0.0, 0.0, 0.0, 0.0]
        """What was taken so far of each part of a cost, whether or not a limit counts it yet."""
        self.configure(limits, now)

    def configure(self, limits: Limits, now: float, style: Style | None = None) -> None:
        """Puts new numbers of the operator in force. Levels are kept, unless the provider is said to count otherwise.

        What is no longer named is no longer limited; what was learned stays.
        """
        if style is not None and style != self._style:
            self._style = style
            self._keep_rows([row for row in self._rows if row.name == "concurrency"])
        wanted = {
            "requests_per_min": limits.requests_per_min,
            "tokens_per_min": limits.tokens_per_min,
            "input_tokens_per_min": limits.input_tokens_per_min,
            "output_tokens_per_min": limits.output_tokens_per_min,
            "requests_per_day": limits.requests_per_day,
            "concurrency": limits.max_concurrency,
        }
        self._fail_closed = limits.fail_closed
        self._keep_rows([row for row in self._rows if row.configured is None or wanted[row.name] is not None])
        if (limits.request_burst, limits.untold_burst_s) != (self._burst, self._untold_burst_s):
            self._burst, self._untold_burst_s = limits.request_burst, limits.untold_burst_s
            self._begin_burst()
            self._reshape_requests(now)
        for name, amount in wanted.items():
            if amount is not None:
                self._put(name, amount, now, configured=amount)
        for row in self._rows:
            if isinstance(row.limit, Share):
                row.limit.fail_closed(row.name in limits.fail_closed, now)
        self._size_up()

    def retire(self) -> None:
        """Nobody uses these limits any more; what is held of those that are shared goes back."""
        self._keep_rows([])
        self._size_up()

    def _keep_rows(self, rows: list[_LimitState]) -> None:
        for row in self._rows:
            if row not in rows and isinstance(row.limit, Share):
                row.limit.retire()
        self._rows = rows

    @property
    def concurrency(self) -> float | None:
        """How many calls may be in flight; None: as many as the rates let in."""
        row = self._find("concurrency")
        return None if row is None else row.amount

    def reserve(self, cost: Cost, now: float, keep_percent: float = 0.0) -> float | None:
        """Takes `cost` from every limit and returns 0.0, or takes nothing and returns the wait of `want`."""
        wait_s = self.want(cost, now, keep_percent)
        if wait_s == 0.0:
            self.take(cost, now)
        return wait_s

    def take(self, cost: Cost, now: float) -> None:
        """Takes `cost`; only to be called when `wait_s` is 0.0."""
        parts = _parts(cost, 1)
        taken = self.taken
        taken[_REQUESTS] += parts[_REQUESTS]
        if parts[_TOKENS]:
            taken[_INPUT] += parts[_INPUT]
            taken[_OUTPUT] += parts[_OUTPUT]
            taken[_TOKENS] += parts[_TOKENS]
        for row in self._rows:
            row.limit.take(parts[row.part], now)

    def wait_s(
        self, cost: Cost, now: float, keep_percent: float = 0.0, keep_tokens: float = 0.0, keep_requests: float = 0.0
    ) -> float | None:
        """Seconds until all limits fit at once: 0.0 now, inf never, None when a slot must be given back first.

        `keep_percent` of each limit's capacity must be left over, `keep_tokens` of each token limit and `keep_requests`
        of each of requests; what is too large for that waits for a full limit.
        """
        parts = _parts(cost, 1)
        longest_s = 0.0
        is_unknown = False
        for row in self._rows:
            wait_s = row.limit.wait_s(parts[row.part], now, row.keep(keep_percent, keep_tokens, keep_requests))
            if wait_s is None:
                is_unknown = True
            elif wait_s > longest_s:
                longest_s = wait_s
        return None if is_unknown and longest_s < inf else longest_s

    def want(
        self, cost: Cost, now: float, keep_percent: float = 0.0, keep_tokens: float = 0.0, keep_requests: float = 0.0
    ) -> float | None:
        """A call wants to go: the wait of `wait_s`, and what it lacks of limits that replicas share is asked for."""
        wait_s = self.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)
        if wait_s == 0.0 or self._share_out is None:
            return wait_s
        parts = _parts(cost, 1)
        for row in self._rows:
            if isinstance(row.limit, Share):
                row.limit.want(parts[row.part], now, row.keep(keep_percent, keep_tokens, keep_requests))
        return self.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)

    def ready_at(self, cost: Cost, now: float, ahead: Cost = NOTHING, keep_percent: float = 0.0) -> float:
        """When `cost` fits after `ahead` (the sum of those before it) was taken; inf: never.

        Exact while one and the same limit holds up all of them, else the earliest possible; for concurrency an estimate.
        """
        parts, before = _parts(cost, 1), _parts(ahead, ahead.requests)
        return max(
            (
                row.limit.ready_at(parts[row.part], now, before[row.part], row.limit.capacity * keep_percent / 100)
                for row in self._rows
            ),
            default=now,
        )

    def drain_s(self, ahead: Cost) -> float:
        """How long the limits take to let `ahead` through, with nothing left over from before."""
        before = _parts(ahead, ahead.requests)
        return max((row.limit.drain_s(before[row.part]) for row in self._rows), default=0.0)

    def shrink(self, cost: Cost, tolerance: float) -> Cost:
        """`cost`, cut to what the limits can hold where it is no more than `tolerance` times that: estimates err.

        Learned limits cut it in any case: they may be told of another kind of token, and only a provider's own words make
        a call impossible.
        """
        requests, input_tokens, output_tokens = cost
        if input_tokens + output_tokens <= self.smallest:
            return cost
        for row in self._rows:
            capacity = row.limit.capacity
            most = capacity * tolerance if row.configured is not None else inf
            if row.part == _INPUT and capacity < input_tokens <= most:
                input_tokens = capacity
            elif row.part == _OUTPUT and capacity < output_tokens <= most:
                output_tokens = capacity
        for row in self._rows:
            capacity = row.limit.capacity
            total = input_tokens + output_tokens
            most = capacity * tolerance if row.configured is not None else inf
            if row.part == _TOKENS and capacity < total <= most:
                input_tokens, output_tokens = input_tokens * capacity / total, output_tokens * capacity / total
        return Cost(requests, input_tokens, output_tokens)

    def knows(self, *names: str) -> bool:
        """Whether one of these limits is known."""
        return any(row.name in names for row in self._rows)

    def settle(self, reserved: Cost, actual: Cost, now: float, reserved_at: float | None = None) -> None:
        """Corrects what was reserved to what was used, and frees the slot; called once for each granted reservation.

        With `reserved_at`, a window takes nothing back from before it began, nor a limit from before it existed.
        """
        before, after = _parts(reserved, 1), _parts(actual, 0)
        for row in self._rows:
            if reserved_at is not None and reserved_at < row.since:
                continue
            more = after[row.part] - before[row.part]
            if more < 0:
                row.limit.give_back(-more, now, reserved_at)
            elif more > 0:
                row.limit.force(more, now)

    def settle_tokens(self, reserved: Cost, input_tokens: float, output_tokens: float, now: float, at: float) -> None:
        """As `settle` of a call that was answered, where `buckets` are all there is: its request was used, of course."""
        before = reserved.input_tokens, reserved.output_tokens, reserved.input_tokens + reserved.output_tokens
        after = input_tokens, output_tokens, input_tokens + output_tokens
        for bucket, part, since in self.buckets or ():
            if part:
                more = after[part - 1] - before[part - 1]
                if more and at >= since:
                    bucket.adjust(more, now)

    def unsend(self, reserved: Cost) -> None:
        """Nothing was sent: no provider has counted it. To be called beside `settle` with nothing used."""
        self.taken = [taken - part for taken, part in zip(self.taken, _parts(reserved, 0), strict=True)]

    def which(self, cost: Cost, now: float, keep_percent: float = 0.0) -> str | None:
        """The name of the limit that blocks longest, a slot that must be freed before any clock; None: it fits."""
        parts = _parts(cost, 1)
        worst, worst_s = None, 0.0
        for row in self._rows:
            wait_s = row.limit.wait_s(parts[row.part], now, row.limit.capacity * keep_percent / 100)
            order_s = 1e300 if wait_s is None else wait_s  # after every finite wait, before never
            if order_s > worst_s:
                worst, worst_s = row.name, order_s
        return worst

    def mark(self) -> tuple[float, ...]:
        """How much was taken so far for calls that were sent; kept at a grant, it makes `learn` exact for its answer.

        Corrections do not count: what a call really costs, the provider has counted from the start.
        """
        return tuple(self.taken)

    def learn(
        self, learned: Learned, now: float, sent_at: float | None = None, mark: tuple[float, ...] | None = None
    ) -> None:
        """Corrects levels and capacities from an answer's limit headers; a limit nobody configured appears.

        A configured limit is only ever narrowed by the provider. `sent_at` and `mark` are those of the answer's own
        reservation; without them the numbers are taken to be true now.
        """
        for name, reading in learned.by_limit():
            row = known = self._find(name)
            if reading.limit is not None and reading.limit < (1 if _PART_OF[name] == _REQUESTS else _FEWEST_TOKENS):
                continue  # nobody could ask for anything: absurd, and nothing could correct it any more
            if reading.limit is not None:
                row = self._put(name, reading.limit * (_period_s(name) / reading.period_s), now, reading=reading)
            if row is not None:
                if learned.requests is reading and self.untold is not None and _tells_level(reading):
                    self._open_as_told(self.untold, row, reading, now, mark)
                if known is None and reading.remaining is not None and reading.period_s >= _MINUTE_S:
                    # Nothing was known of it: it starts with the least that may be there.
                    row.limit.correct(max(0.0, reading.remaining - self._taken_since(row, mark)), now)
                self._reconcile(row, reading, now, sent_at, mark)
        self._size_up()

    def grow(
        self, now: float, let_in: int, in_flight: int, keep_percent: float = 0.0, keep_requests: float = 0.0
    ) -> bool:
        """To be called when a call has to wait: whether more may go at once, because only a guess is in its way.

        `let_in` and `in_flight` as of `UntoldBurst.grow`.
        """
        row = None if self.untold is None else self._find("requests_per_min")
        if self.untold is None or row is None or not _refills(row.limit):
            return False
        limit = row.limit
        if not limit.is_dry(1.0 + limit.capacity * keep_percent / 100 + keep_requests, now):
            return False
        more = self.untold.grow(now, let_in, in_flight)
        if not more:
            return False
        limit.resize(*self._shape(row.name, row.amount, None), now)
        limit.raise_by(more, now)
        return True

    def burst_refused(self, now: float, *, is_first: bool) -> bool:
        """As `UntoldBurst.refused`; False where the burst is written down."""
        if self.untold is None or not self.untold.refused(now, is_first=is_first):
            return False
        self._reshape_requests(now)
        return True

    def hear_burst(self, burst: float, now: float) -> None:
        """Another replica has found how many requests go at once."""
        if self.untold is not None:
            self.untold.heard(burst, now)
            self._reshape_requests(now)

    def slow_start(self, now: float) -> None:
        """To be called when a pause ends: at most a fifth of a second's requests go at once, so no herd follows.

        Windows are left alone: after a pause the provider's is a new one, too.
        """
        for row in self._rows:
            limit = row.limit
            if row.name == "requests_per_min" and _refills(limit):
                few = max(1.0, 0.2 * limit.rate_per_s)
                if limit.level_at(now) > few:
                    limit.correct(few, now)

    def used(self, now: float) -> tuple[Used, ...]:
        """What of the operator's own limits is used up, and not there again yet; nothing of those that replicas share."""
        known = [(_PARTS.index(row.name), row.limit) for row in self._rows if row.configured is not None]
        found = [
            Used(index, limit.level_at(now), limit.ready_at(limit.capacity, now))
            for index, limit in known
            if isinstance(limit, Bucket | Window)
        ]
        return tuple(one for one in found if now < one.full_at < inf)

    def use_again(self, used: Iterable[Used], now: float) -> None:
        """Sets the levels to what `used` has told, some time ago, of these limits under the same name."""
        for index, level, full_at in used:
            row = self._find(_PARTS[index])
            if row is None or full_at <= now:
                continue
            limit = row.limit
            if isinstance(limit, Bucket):
                level = limit.capacity - (full_at - now) * limit.rate_per_s
            if isinstance(limit, Bucket | Window):
                limit.correct(level, now)

    def refills_per_s(self, *, requests: bool) -> float:
        """The slowest refill among the requests or the tokens per minute, of those that refill all the time; inf: none."""
        rates = [
            row.limit.rate_per_s
            for row in self._rows
            if _refills(row.limit) and (row.name == "requests_per_min" if requests else row.part in _TOKEN_PARTS)
        ]
        return min(rates, default=inf)

    def rows(self, now: float) -> list[LimitRow]:
        """Every limit, for `/admin/limits` and the gauges."""
        return [
            LimitRow(
                row.name,
                row.limit.level_at(now),
                row.limit.capacity,
                "learned" if row.configured is None else "configured",
                _next_free_s(row.limit, now),
            )
            for row in self._rows
        ]

    def _taken_since(self, row: _LimitState, mark: tuple[float, ...] | None) -> float:
        return 0.0 if mark is None else self.taken[row.part] - mark[row.part]

    def _size_up(self) -> None:
        """To be called when limits have come, gone or changed."""
        self.smallest = min([row.limit.capacity for row in self._rows if row.part in _TOKEN_PARTS], default=inf)
        plain = [(row.limit, row.part, row.since) for row in self._rows if isinstance(row.limit, Bucket)]
        self.buckets = tuple(plain) if len(plain) == len(self._rows) else None

    def _find(self, name: str) -> _LimitState | None:
        for row in self._rows:
            if row.name == name:
                return row
        return None

    def _put(
        self, name: str, amount: float, now: float, *, configured: float | None = None, reading: Reading | None = None
    ) -> _LimitState:
        """Makes or resizes the limit `name` to `amount` per its period."""
        row = self._find(name)
        if row is None:
            if name == "requests_per_min":
                self._begin_burst(amount)
            row = _LimitState(name, self._make(name, amount, now, reading), amount, configured, now)
            self._rows.append(row)
            return row
        if configured is not None:
            row.configured = configured
        elif row.configured is not None:
            amount = min(amount, row.configured)
            if reading is not None and reading.period_s >= _MINUTE_S:
                reading = None  # a lower rate is no word on how many go at once
        if amount != row.amount:
            row.amount = amount
            if name == "requests_per_min":
                self._begin_burst()
            row.limit.resize(*self._shape(name, amount, reading), now)
        return row

    def _make(self, name: str, amount: float, now: float, reading: Reading | None) -> Limit:
        rate_per_s, capacity = self._shape(name, amount, reading)
        window_s = self._window_s(name)
        if self._share_out is not None:
            is_closed = name in self._fail_closed
            shared = Shared(name, _PART_OF[name], rate_per_s, capacity, window_s or 0.0, self._lag_s, is_closed)
            return self._share_out(shared, now)
        if name == "concurrency":
            return Slots(capacity)
        if window_s is None:
            return Bucket(rate_per_s, capacity, now, lag_s=self._lag_s)
        window = Window(capacity, window_s, now)
        window.resize(rate_per_s, capacity, now)
        return window

    def _shape(self, name: str, amount: float, reading: Reading | None) -> tuple[float, float]:
        """Refill per second, and capacity."""
        if name == "concurrency":
            return 0.0, amount
        rate_per_s = amount / _period_s(name)
        window_s = self._window_s(name)
        if window_s is not None:
            capacity = rate_per_s * window_s
            return rate_per_s, max(1.0, floor(capacity + 1e-9)) if name == "requests_per_min" else capacity
        if reading is not None and reading.period_s < _MINUTE_S:
            tells_tokens = _PART_OF[name] != _REQUESTS
            return rate_per_s, max(1.0, rate_per_s * (_SECOND_OF_TOKENS_LASTS_S if tells_tokens else reading.period_s))
        if name != "requests_per_min":
            return rate_per_s, max(1.0, amount)
        if self._burst is not None:
            return rate_per_s, max(1.0, self._burst)
        return rate_per_s, max(1.0, amount * self._style.request_burst if self.untold is None else self.untold.burst)

    def _begin_burst(self, amount: float | None = None) -> None:
        """It has changed what is known of the rate, or what is written down of the burst."""
        if amount is None:
            row = self._find("requests_per_min")
            amount = None if row is None else row.amount
        if self._burst is not None or self._untold_burst_s is None or amount is None:
            self.untold = None
            return
        rate_per_s = amount / _MINUTE_S
        most = min(rate_per_s * self._untold_burst_s, amount * self._style.request_burst)
        self.untold = UntoldBurst(rate_per_s, max(1.0, most), is_told=self.untold is not None and self.untold.is_told)

    def _open_as_told(
        self, untold: UntoldBurst, row: _LimitState, reading: Reading, now: float, mark: tuple[float, ...] | None
    ) -> None:
        """What headers say is left may go at once."""
        left = (reading.remaining or 0.0) + reading.grain
        more = untold.told(left, row.amount * self._style.request_burst)
        if not more:
            return
        self._reshape_requests(now)
        if isinstance(row.limit, Share) and row.limit.is_heard:  # whose level no answer raises otherwise
            free = (reading.remaining or 0.0) - self._taken_since(row, mark) - row.limit.level_at(now)
            row.limit.raise_by(max(0.0, min(more, free)), now)

    def _reshape_requests(self, now: float) -> None:
        """It has changed how many requests may go at once; what is free stays free."""
        row = self._find("requests_per_min")
        if row is not None:
            row.limit.resize(*self._shape(row.name, row.amount, None), now)

    def _window_s(self, name: str) -> float | None:
        if name in ("requests_per_day", "concurrency"):
            return None
        return self._style.request_window_s if name == "requests_per_min" else self._style.token_window_s

    def _reconcile(
        self, row: _LimitState, reading: Reading, now: float, sent_at: float | None, mark: tuple[float, ...] | None
    ) -> None:
        limit = row.limit
        taken_since = self._taken_since(row, mark)
        sent_at = now if sent_at is None else sent_at
        if reading.remaining is not None and reading.period_s >= _MINUTE_S:
            level = limit.level_at(now)
            limit.reconcile(reading.remaining, now, sent_at, taken_since, reading.grain)
            if not _may_raise(row, reading) and limit.level_at(now) > level:
                limit.correct(level, now)
        if reading.reset_s is not None and isinstance(limit, Window):
            limit.align(reading.reset_s, now, sent_at)


def _next_free_s(limit: Limit, now: float) -> float | None:
    least = min(1.0, limit.capacity)
    if isinstance(limit, Share):  # to look at it is no reason to lease more
        return limit.ready_at(least, now) - now
    return limit.wait_s(least, now)


def _tells_level(reading: Reading) -> bool:
    """Whether it says how many of a minute's are left: so many may go at once."""
    return reading.limit is not None and reading.remaining is not None and reading.period_s >= _MINUTE_S


def _refills(limit: Limit) -> TypeGuard[Bucket | Share]:
    return isinstance(limit, Bucket) or (isinstance(limit, Share) and limit.kind == "bucket")


def parts_of(cost: Cost) -> tuple[float, float, float, float, float]:
    """What calls of this cost take, by the parts that limits count: as many slots as requests."""
    return _parts(cost, cost.requests)


def _parts(cost: Cost, slots: float) -> tuple[float, float, float, float, float]:
    requests, input_tokens, output_tokens = cost
    return requests, input_tokens, output_tokens, input_tokens + output_tokens, slots


def _may_raise(row: _LimitState, reading: Reading) -> bool:
    """Whether the provider's bucket is ours. Where we are to use less of it, its level says nothing about our share."""
    is_same = row.configured is None or (
        reading.limit is not None and reading.limit * (_period_s(row.name) / reading.period_s) <= row.configured
    )
    return is_same and (reading.remaining or 0.0) <= row.limit.capacity


def _period_s(name: str) -> float:
    return _DAY_S if name == "requests_per_day" else _MINUTE_S
