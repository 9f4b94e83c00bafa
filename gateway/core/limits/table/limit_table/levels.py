"""What moves the levels of a set of limits besides calls: a provider's headers, a burst that grows, a refusal, a pause's end.

    learn        an answer's headers correct levels and capacities; a limit nobody configured appears
    grow_burst   a call waits for nothing but a guess of how many requests go at once
    burst_refused, burst_heard      a refusal, or another replica, has told how many do
    hold_back    a pause has ended: no herd
    used, use_again                 an idle gate goes, and comes back

It must not know headers as bytes, calls or gates. Invariant: an operator's limit is never raised above the operator's number.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from gateway.core.limits.bucket.bucket import Bucket
from gateway.core.limits.bucket.windows import Window
from gateway.core.limits.estimate.cost import REQUESTS
from gateway.core.limits.headers.provider_headers import Learned, Reading
from gateway.core.limits.learning.unwritten_burst import UnwrittenBurst
from gateway.core.limits.table.limit_table.limit_set import LimitSet
from gateway.core.limits.table.limit_table.limit_table import MINUTE_S, PART_OF, KnownLimit, period_s, refills
from gateway.core.limits.target_limits.idle_gates import Used
from gateway.fleet.parts.leased_part import Share

_NAMES = tuple(PART_OF)
_FEWEST_TOKENS = 100.0
_AT_ONCE_S = 0.2


def learn(
    limits: LimitSet, learned: Learned, now: float, sent_at: float | None = None, mark: tuple[float, ...] | None = None
) -> None:
    """Corrects levels and capacities from an answer's limit headers; a limit nobody configured appears.

    A configured limit is only ever narrowed by the provider. `sent_at` and `mark` are those of the answer's own
    reservation; without them the numbers are taken to be true now.
    """
    table = limits.table
    for name, reading in learned.by_limit():
        one = known = table.find(name)
        if reading.limit is not None and reading.limit < (1 if PART_OF[name] == REQUESTS else _FEWEST_TOKENS):
            continue  # nobody could ask for anything: absurd, and nothing could correct it any more
        if reading.limit is not None:
            one = table.put(name, reading.limit * (period_s(name) / reading.period_s), now, reading=reading)
        if one is not None:
            taken_since = 0.0 if mark is None else limits.taken[one.part] - mark[one.part]
            if learned.requests is reading and table.burst is not None and _tells_level(reading):
                _open_as_told(limits, table.burst, one, reading, now, taken_since)
            if known is None and reading.remaining is not None and reading.period_s >= MINUTE_S:
                # Nothing was known of it: it starts with the least that may be there.
                one.limit.correct(max(0.0, reading.remaining - taken_since), now)
            _reconcile(one, reading, now, now if sent_at is None else sent_at, taken_since)
    table.size_up()


def grow_burst(
    limits: LimitSet, now: float, let_in: int, in_flight: int, keep_percent: float = 0.0, keep_requests: float = 0.0
) -> bool:
    """Lets more requests go at once where only a guess is in a waiting call's way; returns whether it did.

    `let_in` and `in_flight` as of `UnwrittenBurst.grow`.
    """
    burst = limits.table.burst
    one = None if burst is None else limits.table.find("requests_per_min")
    if burst is None or one is None or not refills(one.limit):
        return False
    limit = one.limit
    if not limit.is_dry(1.0 + limit.capacity * keep_percent / 100 + keep_requests, now):
        return False
    more = burst.grow(now, let_in, in_flight)
    if not more:
        return False
    limits.table.reshape_requests(now)
    limit.raise_by(more, now)
    return True


def burst_refused(limits: LimitSet, now: float, *, is_first: bool) -> bool:
    """Lets fewer requests go at once after a refusal; returns as `UnwrittenBurst.refused`, False where the burst is written."""
    burst = limits.table.burst
    if burst is None or not burst.refused(now, is_first=is_first):
        return False
    limits.table.reshape_requests(now)
    return True


def burst_heard(limits: LimitSet, burst: float, now: float) -> None:
    """Takes over how many requests go at once, as another replica has found it."""
    if limits.table.burst is not None:
        limits.table.burst.heard(burst, now)
        limits.table.reshape_requests(now)


def hold_back(limits: LimitSet, now: float) -> None:
    """Cuts the requests that are free to a fifth of a second's worth at the end of a pause, so that no herd follows.

    Windows are left alone: after a pause the provider's is a new one, too.
    """
    one = limits.table.find("requests_per_min")
    if one is not None and refills(one.limit):
        few = max(1.0, _AT_ONCE_S * one.limit.rate_per_s)
        if one.limit.level_at(now) > few:
            one.limit.correct(few, now)


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
    """Sets the levels to what `used` has told, some time ago, of these limits under the same name."""
    for index, level, full_at in used:
        one = limits.table.find(_NAMES[index])
        if one is None or full_at <= now:
            continue
        limit = one.limit
        if isinstance(limit, Bucket):
            level = limit.capacity - (full_at - now) * limit.rate_per_s
        if isinstance(limit, Bucket | Window):
            limit.correct(level, now)


def _open_as_told(
    limits: LimitSet, burst: UnwrittenBurst, one: KnownLimit, reading: Reading, now: float, taken_since: float
) -> None:
    """Lets go at once what headers say is left."""
    left = (reading.remaining or 0.0) + reading.grain
    more = burst.told(left, one.amount * limits.table.style.request_burst)
    if not more:
        return
    limits.table.reshape_requests(now)
    if isinstance(one.limit, Share) and one.limit.is_heard:  # whose level no answer raises otherwise
        free = (reading.remaining or 0.0) - taken_since - one.limit.level_at(now)
        one.limit.raise_by(max(0.0, min(more, free)), now)


def _reconcile(one: KnownLimit, reading: Reading, now: float, sent_at: float, taken_since: float) -> None:
    limit = one.limit
    if reading.remaining is not None and reading.period_s >= MINUTE_S:
        level = limit.level_at(now)
        limit.reconcile(reading.remaining, now, sent_at, taken_since, reading.grain)
        if not _may_raise(one, reading) and limit.level_at(now) > level:
            limit.correct(level, now)
    if reading.reset_s is not None and isinstance(limit, Window):
        limit.align(reading.reset_s, now, sent_at)


def _tells_level(reading: Reading) -> bool:
    """Returns whether it says how many of a minute's are left: so many may go at once."""
    return reading.limit is not None and reading.remaining is not None and reading.period_s >= MINUTE_S


def _may_raise(one: KnownLimit, reading: Reading) -> bool:
    """Returns whether the provider's bucket is ours: where we use a part of it, its level says nothing about our part."""
    is_same = one.configured is None or (
        reading.limit is not None and reading.limit * (period_s(one.name) / reading.period_s) <= one.configured
    )
    return is_same and (reading.remaining or 0.0) <= one.limit.capacity
