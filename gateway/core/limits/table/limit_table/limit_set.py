"""The limits of one target or key, taken and given back together.

A set reserves the estimate before a call is sent and settles to the truth after it. It must not know which call it is,
who waits, or why. Every granted reservation ends in exactly one `settle`. Invariant: all or nothing; a refused reservation
changes no level.
"""

from __future__ import annotations

from math import inf

from gateway.core.limits.estimate.cost import INPUT, NOTHING, OUTPUT, REQUESTS, TOKENS, Cost, parts_of
from gateway.core.limits.table.limit_table.limit_table import LimitTable, ShareOut
from gateway.core.limits.table.rules import CONTINUOUS, Limits, Style
from gateway.fleet.parts.leased_part import Share

_BEFORE_NEVER = 1e300


class LimitSet:
    """A table of limits, and what calls have taken of each part of a cost."""

    __slots__ = ("_is_shared", "table", "taken")

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
            if isinstance(one.limit, Share):
                one.limit.want(parts[one.part], now, one.keep(keep_percent, keep_tokens, keep_requests))
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

        Learned limits cut it in any case: they may be told of another kind of token, and only a provider's own words make
        a call impossible.
        """
        requests, input_tokens, output_tokens = cost
        if input_tokens + output_tokens <= self.table.smallest:
            return cost
        for one in self.table.known:
            capacity = one.limit.capacity
            most = capacity * tolerance if one.configured is not None else inf
            if one.part == INPUT and capacity < input_tokens <= most:
                input_tokens = capacity
            elif one.part == OUTPUT and capacity < output_tokens <= most:
                output_tokens = capacity
        for one in self.table.known:  # the joint limit last: what is left after the cuts may fit it
            capacity = one.limit.capacity
            total = input_tokens + output_tokens
            most = capacity * tolerance if one.configured is not None else inf
            if one.part == TOKENS and capacity < total <= most:
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

    def settle_tokens(self, reserved: Cost, input_tokens: float, output_tokens: float, now: float, at: float) -> None:
        """Does what `settle` does for a call that was answered, where plain buckets are all there is: its request was used."""
        before = reserved.input_tokens, reserved.output_tokens, reserved.input_tokens + reserved.output_tokens
        after = input_tokens, output_tokens, input_tokens + output_tokens
        for bucket, part, since in self.table.buckets or ():
            if part:
                more = after[part - 1] - before[part - 1]
                if more and at >= since:
                    bucket.adjust(more, now)

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
        """Returns how much was taken so far for calls that were sent; kept at a grant, it makes `levels.learn` exact.

        Corrections do not count: what a call really costs, the provider has counted from the start.
        """
        return tuple(self.taken)
