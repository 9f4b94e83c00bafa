"""Decides how long an attempt is waited for before its call tries another target, and what a long wait says of the target.

All are pure functions of what is usual at a target for calls of that kind, and of the time that a caller has set. It must not
know calls, attempts or clocks. Times are seconds.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from gateway.core.health.times.latency import Latency

MIN_SAMPLES = 10
"""Fewer answers do not tell what is usual."""
UNKNOWN_MEDIAN_S = 2.0
"""Seconds that the next target is taken to need, if its times are unknown."""
LEAST_ROOM_S = 1.0
"""Seconds that an attempt gets at least, if the times of its target are unknown."""
_SHARE, _SHARE_THINKING = 0.5, 0.75
_BEYOND_USUAL, _DESERTED = 1.5, 3.0
_FIRST_EVENT_FACTOR = 4.0
_FIRST_EVENT_S, _FIRST_EVENT_THINKING_S = (10.0, 120.0), (30.0, 300.0)
_UNKNOWN_EVENT_S, _UNKNOWN_EVENT_THINKING_S = 60.0, 300.0
_UNKNOWN_STREAM_S, _UNKNOWN_THINKING_S = 10.0, 120.0
_UNKNOWN_WHOLE_S = (10.0, 120.0)
_DEADLINE_SHARE = 3.0
_SHORTEST_SILENCE_S = 2.0
_FIRST_PROBE_S, _PROBE_GROWTH = 2.0, 1.5
_PROBE_S, _PROBE_THINKING_S = 10.0, 30.0


class UsualTimes(NamedTuple):
    """The time that calls of one kind usually take at a target until something is there for the client; None: unknown."""

    median_s: float | None
    late_s: float | None
    """The time by which all but one in twenty are answered."""


UNKNOWN = UsualTimes(None, None)


def usual_of(times: Latency | None) -> UsualTimes:
    """Returns what is usual by the answers that were measured; `UNKNOWN` where they are too few."""
    if times is None or times.count < MIN_SAMPLES:
        return UNKNOWN
    return UsualTimes(times.quantile(0.5, MIN_SAMPLES), times.quantile(0.95, MIN_SAMPLES))


def room_s(left_s: float, usual: UsualTimes, following: UsualTimes, *, thinks: bool) -> float:
    """Returns the seconds that an attempt may take of the caller's `left_s` while another target is untried; inf: all.

    It is half of them (three quarters for a call that thinks, where nothing is known), or one and a half times what is usual,
    if that is more; but the time that is usual at the target that follows is left over. A target is never left before the time
    by which it usually has answered: a deadline that has no room for both is not divided.
    """
    most_s = left_s - (UNKNOWN_MEDIAN_S if following.median_s is None else following.median_s)
    if most_s < (LEAST_ROOM_S if usual.late_s is None else usual.late_s):
        return inf
    if usual.late_s is None:
        return min(left_s * (_SHARE_THINKING if thinks else _SHARE), most_s)
    return min(max(left_s * _SHARE, usual.late_s * _BEYOND_USUAL), most_s)


def first_event_s(usual: UsualTimes, *, thinks: bool) -> float:
    """Returns the seconds that the first event of a stream may take (`first_event: auto`)."""
    if usual.late_s is None:
        return _UNKNOWN_EVENT_THINKING_S if thinks else _UNKNOWN_EVENT_S
    least_s, most_s = _FIRST_EVENT_THINKING_S if thinks else _FIRST_EVENT_S
    return min(max(usual.late_s * _FIRST_EVENT_FACTOR, least_s), most_s)


def silence_s(usual: UsualTimes, factor: float, *, stream: bool, thinks: bool, shortest_deadline_s: float) -> float:
    """Returns the seconds without a sign of life after which several calls make their target suspect.

    `shortest_deadline_s` is that of the calls in flight there, as far as their callers set one; else inf.
    """
    if usual.late_s is not None:
        return max(usual.late_s * factor, _SHORTEST_SILENCE_S)
    if thinks:
        return _UNKNOWN_THINKING_S
    if stream:
        return _UNKNOWN_STREAM_S
    least_s, most_s = _UNKNOWN_WHOLE_S
    return min(max(shortest_deadline_s / _DEADLINE_SHARE, least_s), most_s)


def probe_s(usual: UsualTimes, ejections: int, *, thinks: bool) -> float:
    """Returns the seconds that a probe waits for a target which had fallen silent, after `ejections` in a row.

    Where nothing is known the probe waits longer each time, so that one that is only slow is found well, but never for long.
    """
    if usual.late_s is not None:
        return max(usual.late_s * _BEYOND_USUAL, _FIRST_PROBE_S)
    longest_s = _PROBE_THINKING_S if thinks else _PROBE_S
    return min(_FIRST_PROBE_S * _PROBE_GROWTH ** min(max(ejections - 1, 0), 30), longest_s)


def is_evidence(waited_s: float, usual: UsualTimes, *, thinks: bool, unserved_s: float = 0.0) -> bool:
    """Returns whether a deadline that passed after `waited_s` without a sign of life tells that the target is not well.

    Where nothing is known, a short wait only tells something of a target that has served nobody for long: `unserved_s`.
    """
    if usual.late_s is not None:
        return waited_s >= usual.late_s * _BEYOND_USUAL
    long_s = _UNKNOWN_THINKING_S if thinks else _UNKNOWN_STREAM_S
    return waited_s >= long_s or (unserved_s >= long_s and waited_s >= LEAST_ROOM_S)


def is_deserted(waited_s: float, usual: UsualTimes, *, thinks: bool) -> bool:
    """Returns whether a client that left after `waited_s` of silence tells it: most leave for reasons of their own."""
    if usual.late_s is not None:
        return waited_s >= max(usual.late_s * _DESERTED, _SHORTEST_SILENCE_S)
    return is_evidence(waited_s, usual, thinks=thinks)
