"""Limits as arithmetic: what a call costs, a bucket that refills all the time, a window that starts anew, slots that are held.

They stand in this order. Pure and sync; `now` comes in as monotonic seconds, and a clock that steps back changes nothing.
It must not know headers, calls or queues (`limit_table.py` puts several of these together). A microsecond early counts as
on time: without it, a caller that waits for exactly `wait_s` might have to wait again because of rounding. The debt is
kept, so it never adds up. Invariant: over any span a bucket grants at most its burst plus what refilled, a window at most
its capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf, isfinite
from typing import Literal, NamedTuple, Protocol, TypeAlias

# --- costs: what one call takes from limits, by the part that each limit counts ---


REQUESTS, INPUT, OUTPUT, TOKENS, SLOT = range(5)
"""The parts of a cost, in the order of `Parts`: each limit counts one of them."""
TOKEN_PARTS = (INPUT, OUTPUT, TOKENS)
Parts: TypeAlias = tuple[float, float, float, float, float]


class Cost(NamedTuple):
    """What one call takes from each limit. A joint token limit takes the sum of both kinds of tokens."""

    requests: float = 1
    input_tokens: float = 0
    output_tokens: float = 0


NOTHING = Cost(0, 0, 0)


def parts_of(cost: Cost, slots: float | None = None) -> Parts:
    """Returns `cost` by the parts that limits count; `slots` None: as many slots as requests."""
    requests, input_tokens, output_tokens = cost
    return requests, input_tokens, output_tokens, input_tokens + output_tokens, requests if slots is None else slots


ChargeRule = Literal["max", "sum", "input", "real"]
"""The rule of what a provider charges for a call when it lets the call in: `charge` says what each means."""


def charge(
    rule: ChargeRule,
    input_tokens: int,
    max_tokens: int | None,
    expected_output: int,
    *,
    cached: int = 0,
    excludes_cached: bool = False,
) -> Cost:
    """Returns what a provider charges for one request at admission; `max_tokens` None: what is expected.

    `max`: the larger of input and max_tokens; `sum`: both; `input`: the input alone; `real`: input and output as they will
    be by estimate, whatever max_tokens allows. The sum of both tokens of the result is the charge of a joint limit.
    """
    if excludes_cached:
        input_tokens = max(0, input_tokens - cached)
    return Cost(1, input_tokens, charged_output(rule, input_tokens, max_tokens, expected_output))


def charged_output(rule: ChargeRule, input_tokens: int, max_tokens: int | None, expected_output: int) -> int:
    """Returns the output tokens that `charge` comes to."""
    if rule == "input":
        return 0
    output_tokens = expected_output if max_tokens is None or rule == "real" else max_tokens
    # A joint limit adds the input, so for `max` only what the output has beyond it may be left here.
    return max(0, output_tokens - input_tokens) if rule == "max" else output_tokens


# --- a limit, and the one that refills all the time ---


EARLY_S = 1e-6
"""Seconds by which a caller may be early and still counts as on time."""
ROUNDING = 1e-12
"""The share of a capacity by which sums of floats may be off."""
_OVERTAKEN_S = 0.1  # calls sent so long before another one may arrive after it
_DOUBT = 0.05  # of the capacity: so much more a provider may have than we think before we believe it


class Limit(Protocol):
    """What all limits can do. Amounts are in the limit's own unit: requests, tokens or slots."""

    capacity: float
    """The most that can ever be free at once; a cost above it never fits."""

    def level_at(self, now: float) -> float:
        """What is free; negative after more was used than reserved."""

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        """Seconds until `cost` fits with `keep` left over: 0.0 now, inf never, None when only a release can tell.

        A cost too large to ever leave `keep` behind waits for all of the capacity instead.
        """

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """When `cost` fits after `ahead` was taken by those before it, each as soon as it could; inf: never."""

    def drain_s(self, ahead: float) -> float:
        """How long it takes to let `ahead` through when nothing is left over from before."""

    def take(self, cost: float, now: float) -> None:
        """Takes `cost`; only to be called when `wait_s` is 0.0."""

    def force(self, cost: float, now: float) -> None:
        """Takes `cost` whether it is there or not: more was used than had been reserved."""

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        """Returns what was taken at `taken_at` (None: just now) and not used; the level never exceeds the capacity."""

    def correct(self, level: float, now: float) -> None:
        """Sets the level, at most to the capacity; what is not a finite number is ignored."""

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        """Moves the level into the range that a provider's `remaining` leaves open, and not further.

        The number was true at some moment between `sent_at` and now, in which `taken_since` was taken, and was rounded
        down to a multiple of `grain`. It may be too high by `doubt`, for what was on the way when it was counted; None: it is
        not known how much that was.
        """

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        """Changes the limit from now on. What is free stays free (of a window: what is used stays used)."""


class Bucket:
    """`rate_per_s` units flow in all the time until `burst` are there; full at the start unless `level` says less.

    A provider's bucket begins to refill when the first call arrives, ours would when it is sent: with `lag_s` a full one
    begins so much later, lest the calls behind the burst come a moment too early.
    Raises ValueError for a negative rate, a burst that is not positive, or numbers that are not finite.
    """

    __slots__ = ("_at", "_full_at", "_lag_s", "_level", "_slack", "capacity", "rate_per_s")

    def __init__(
        self, rate_per_s: float, burst: float, now: float, level: float | None = None, lag_s: float = 0.0
    ) -> None:
        self._at = now
        self._lag_s = lag_s
        self._full_at = -inf
        self._level = burst
        self._shape(rate_per_s, burst)
        if level is not None:
            self.correct(level, now)

    def level_at(self, now: float) -> float:
        # `_at` may lie ahead: a full bucket begins to refill only when the provider has had its first call (`take`).
        if now > self._at:
            level = self._level + (now - self._at) * self.rate_per_s
            if level >= self.capacity:
                if self._level < self.capacity:
                    self._full_at = now - (level - self.capacity) / self.rate_per_s
                level = self.capacity
            self._level = level
            self._at = now
        return self._level

    def is_dry(self, need: float, now: float) -> bool:
        """Whether so much is not there."""
        return self.level_at(now) + self._slack < need

    def raise_by(self, amount: float, now: float) -> None:
        """So much more is there, as has turned out."""
        self.give_back(amount, now)

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float:
        capacity = self.capacity
        if cost > capacity:
            return inf
        need = cost + keep
        # A full bucket gives whatever fits it: what is to be left over makes no call wait for ever.
        missing = (need if need < capacity else capacity) - self.level_at(now)
        if missing <= self._slack:
            return 0.0
        return self._late_s(now) + missing / self.rate_per_s if self.rate_per_s else inf

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """Exact when those ahead go in order: the bucket never overflows while somebody waits for it."""
        if cost > self.capacity:
            return inf
        missing = ahead + min(cost + keep, self.capacity) - self.level_at(now)
        if missing <= self._slack:
            return now
        return now + self._late_s(now) + missing / self.rate_per_s if self.rate_per_s else inf

    def drain_s(self, ahead: float) -> float:
        return ahead / self.rate_per_s if self.rate_per_s else inf if ahead else 0.0

    def take(self, cost: float, now: float) -> None:
        level = self.level_at(now)
        if self._lag_s and level >= self.capacity and now - self._full_at >= self._lag_s:
            self._at = now + self._lag_s  # it was idle; whoever waited until it was full is no first call
        self._level = level - cost

    force = take

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        self._level = min(self.capacity, self.level_at(now) + cost)

    def correct(self, level: float, now: float) -> None:
        self.level_at(now)
        if isfinite(level):
            self._level = min(level, self.capacity)

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        # Either the provider counted when the call arrived, and since then refilled and gave to the calls behind it, or
        # it counted when it answered; calls on the way overtake each other. Down the highest of these is believed, up
        # the lowest: else every answer would raise the level a little, until calls are refused.
        then = remaining + (now - sent_at) * self.rate_per_s - taken_since
        high = then if then > remaining else remaining
        doubt = _DOUBT * self.capacity if doubt is None else doubt
        low = min(then, remaining - taken_since) - doubt - _OVERTAKEN_S * self.rate_per_s
        self.correct(min(max(self.level_at(now), low), high + grain), now)

    def _late_s(self, now: float) -> float:
        """How long until it begins to refill."""
        return self._at - now if self._lag_s and self._at > now else 0.0

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        self.level_at(now)
        self._shape(rate_per_s, capacity)
        self._level = min(self._level, capacity)

    def _shape(self, rate_per_s: float, capacity: float) -> None:
        if not 0 <= rate_per_s < inf or not 0 < capacity < inf:
            raise ValueError(f"no bucket has rate {rate_per_s} and burst {capacity}")
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self._slack = rate_per_s * EARLY_S + capacity * ROUNDING


def take_all(
    buckets: Iterable[tuple[Bucket, int, float]],
    taken: list[float],
    cost: Sequence[float],
    keep_tokens: float,
    now: float,
    keep_percent: float = 0.0,
) -> bool:
    """Takes from every bucket its part of `cost`, or nothing from any; whether all had room. What went is added to `taken`.

    The same as `wait_s(...) == 0.0` of each and then `take` of each, with one look at each level: what every call pays.
    Beside a bucket stands which part of `cost` it counts (0: requests, others are tokens), and since when it is known.
    `keep_tokens` must be left over of tokens, and `keep_percent` of every capacity.
    """
    for bucket, part, _ in buckets:
        capacity, level = bucket.capacity, bucket._level
        if now > bucket._at:
            level += (now - bucket._at) * bucket.rate_per_s
            if level >= capacity:
                if bucket._level < capacity:
                    bucket._full_at = now - (level - capacity) / bucket.rate_per_s
                level = capacity
            bucket._level, bucket._at = level, now
        amount = cost[part]
        need = amount + keep_tokens if part else amount
        if keep_percent:
            need += capacity * keep_percent / 100
        if amount > capacity or (need if need < capacity else capacity) - level > bucket._slack:
            return False
    for bucket, part, _ in buckets:
        if bucket._lag_s and bucket._level >= bucket.capacity and now - bucket._full_at >= bucket._lag_s:
            bucket._at = now + bucket._lag_s  # as in `take`
        bucket._level -= cost[part]
    requests, input_tokens, output_tokens, tokens = cost
    taken[0] += requests
    if tokens:
        taken[1] += input_tokens
        taken[2] += output_tokens
        taken[3] += tokens
    return True


def settle_all(
    buckets: Iterable[tuple[Bucket, int, float]],
    reserved: Sequence[float],
    actual: Sequence[float],
    now: float,
    taken_at: float,
) -> None:
    """Corrects every bucket from what `take_all` took at `taken_at` to what was used, by the parts that each counts.

    The last value beside a bucket is when it became known: it gives nothing back from before that.
    """
    for bucket, part, since in buckets:
        more = actual[part] - reserved[part]
        if not more or taken_at < since:
            continue
        if more > 0:
            bucket.take(more, now)
            continue
        level = bucket.level_at(now) - more
        bucket._level = level if level < bucket.capacity else bucket.capacity


# --- limits that do not refill all the time: windows, and calls at a time ---


_FIRST_RELEASES = 20


class Window:
    """`capacity` units in each `window_s` seconds. A window opens with its first use and is forgotten when it ends.

    Nothing of it is carried over: neither what was left, nor what was used too much. Raises ValueError as `Bucket`.
    """

    __slots__ = ("_at", "_ends_at", "_shortest_s", "_used", "capacity", "window_s")

    def __init__(self, capacity: float, window_s: float, now: float) -> None:
        _check_capacity(capacity)
        if not 0 < window_s < inf:
            raise ValueError(f"no window is {window_s} seconds long")
        self.capacity = capacity
        self.window_s = self._shortest_s = window_s
        self._at = now
        self._used = 0.0
        self._ends_at = -inf

    def level_at(self, now: float) -> float:
        if now > self._at:
            self._at = now
        if self._at + EARLY_S >= self._ends_at:
            self._used = 0.0
            self._ends_at = -inf
        return self.capacity - self._used

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float:
        if cost > self.capacity:
            return inf
        # A full window is fresh and gives anything that fits at all, so only one in use can make a caller wait.
        if min(cost + keep, self.capacity) <= self.level_at(now) + self.capacity * ROUNDING:
            return 0.0
        return self._ends_at - self._at

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """Exact when those ahead fill each window to the brim; larger calls leave gaps and take longer."""
        if cost > self.capacity:
            return inf
        need = min(cost + keep, self.capacity)
        slack = self.capacity * ROUNDING
        left = self.level_at(now) - ahead
        if need <= left + slack:
            return now
        ends_at = self._ends_at if self._ends_at > -inf else self._at + self.window_s
        further = max(0, ceil((-left - slack) / self.capacity))  # windows that those ahead still fill, in whole or part
        if further and need <= left + further * self.capacity + slack:
            further -= 1
        return ends_at + further * self.window_s

    def drain_s(self, ahead: float) -> float:
        return ahead / self.capacity * self.window_s

    def take(self, cost: float, now: float) -> None:
        self.level_at(now)
        if self._ends_at == -inf:
            self._ends_at = self._at + self.window_s
        self._used += cost

    force = take

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        """Does nothing for what was taken in a window that has ended."""
        self.level_at(now)
        if taken_at is None or self._began_by(taken_at):
            self._used = max(0.0, self._used - cost)

    def correct(self, level: float, now: float) -> None:
        self.level_at(now)
        if isfinite(level):
            self._used = max(0.0, self.capacity - level)
            if self._used and self._ends_at == -inf:
                self._ends_at = self._at + self.window_s

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        level = self.level_at(now)
        if self._began_by(sent_at):
            self.correct(min(max(level, remaining - taken_since), remaining + grain), now)

    def align(self, reset_s: float, now: float, sent_at: float) -> None:
        """Moves the end of the open window to where the provider says it is.

        `reset_s` is in whole seconds, rounded up, and was true at some moment between `sent_at` and now.
        """
        self.level_at(now)
        if self._ends_at > -inf and reset_s <= self.window_s + 1.0 and self._began_by(sent_at):
            self._ends_at = min(max(self._ends_at, sent_at + reset_s - 1.0), now + reset_s)

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        """`rate_per_s` only matters below one unit per window: then the next window lasts as long as that unit takes."""
        _check_capacity(capacity)
        self.level_at(now)
        self.capacity = capacity
        self.window_s = max(self._shortest_s, 1 / rate_per_s) if rate_per_s and capacity <= 1 else self._shortest_s

    def _began_by(self, moment: float) -> bool:
        return moment >= self._ends_at - self.window_s - EARLY_S > -inf


class Slots:
    """At most `capacity` at a time. When all are held nobody knows when one comes free: `wait_s` is None.

    Whoever gets None waits for the next `give_back`, not for a timer. `ready_at` is an estimate from how long slots
    are held on average, and `now` as long as none was ever given back. Raises ValueError as `Bucket`.
    """

    __slots__ = ("_at", "_busy_s", "_hold_s", "_releases", "_used", "capacity")

    def __init__(self, capacity: float) -> None:
        _check_capacity(capacity)
        self.capacity = capacity
        self._used = 0.0
        self._at = inf  # no time passes before the first use
        self._busy_s = 0.0
        self._hold_s = 0.0
        self._releases = 0

    def level_at(self, now: float) -> float:
        """Negative after a resize to fewer than are held."""
        return self.capacity - self._used

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        if cost > self.capacity:
            return inf
        return 0.0 if min(cost + keep, self.capacity) <= self.capacity - self._used else None

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        if cost > self.capacity:
            return inf
        releases = ahead + min(cost + keep, self.capacity) - self.level_at(now)
        return now + max(0.0, releases) * self._hold_s / self.capacity

    def drain_s(self, ahead: float) -> float:
        return ahead * self._hold_s / self.capacity

    def take(self, cost: float, now: float) -> None:
        self._pass(now)
        self._used += cost

    force = take

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        self._pass(now)
        self._used = max(0.0, self._used - cost)
        # Slot-seconds per release are the mean time a slot is held (Little's law); nobody's start need be remembered.
        # A plain mean at first; later each release weighs a twentieth, so old ones fade.
        self._releases = min(self._releases + 1, _FIRST_RELEASES)
        self._hold_s += (self._busy_s - self._hold_s) / self._releases
        self._busy_s = 0.0

    def correct(self, level: float, now: float) -> None:
        """Does nothing: what is held is known here better than anywhere."""

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        """Does nothing, for the same reason."""

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        """`rate_per_s` means nothing here; what is held stays held."""
        _check_capacity(capacity)
        self.capacity = capacity

    def _pass(self, now: float) -> None:
        if now > self._at:
            self._busy_s += self._used * (now - self._at)
        self._at = now


def _check_capacity(capacity: float) -> None:
    if not 0 < capacity < inf:
        raise ValueError(f"no limit has capacity {capacity}")
