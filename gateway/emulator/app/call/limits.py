"""Limits as arithmetic: a bucket that refills all the time, and a window that starts anew.

Pure and sync; `now` comes in as seconds on any monotonic clock. It must not know headers or bodies (`dialects.py`).
Invariant: over any span a bucket grants at most its capacity plus what refilled, a window at most its capacity.
"""

from __future__ import annotations

import math


class EmulatedBucket:
    """`per_minute` units that refill continuously up to `burst` (by default a minute's worth); full at the start.

    A level may go below zero by `spend`.
    """

    __slots__ = ("_level", "_rate", "_updated_at", "capacity", "per_minute")

    def __init__(self, per_minute: int, now: float, burst: int | None = None) -> None:
        self.per_minute = per_minute
        self.capacity = burst or per_minute
        self._rate = per_minute / 60.0
        self._level = float(self.capacity)
        self._updated_at = now

    def level(self, now: float) -> float:
        """Units left at `now`."""
        if now > self._updated_at:
            self._level = min(float(self.capacity), self._level + (now - self._updated_at) * self._rate)
            self._updated_at = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Returns the seconds until `amount` units are there; 0 when they are. A nanounit of rounding is forgiven."""
        missing = amount - self.level(now)
        return missing / self._rate if missing > 1e-9 * self.capacity else 0.0

    def spend(self, amount: float, now: float) -> None:
        """Takes `amount` whether it is there or not."""
        self._level = self.level(now) - amount

    def remaining(self, now: float) -> int:
        """Returns the whole units left, at least 0."""
        return max(0, math.floor(self.level(now) + 1e-6))

    def used(self, now: float) -> int:
        """Returns the whole units gone."""
        return self.per_minute - self.remaining(now)

    def full_in_s(self, now: float) -> float:
        """Returns the seconds until the bucket is full: what OpenAI's reset headers tell."""
        return (self.capacity - self.level(now)) / self._rate


class EmulatedWindow:
    """`capacity` units in each window of `length_s` seconds; windows are aligned to the clock."""

    __slots__ = ("_index", "_used", "capacity", "length_s")

    def __init__(self, capacity: int, length_s: float) -> None:
        self.capacity = capacity
        self.length_s = length_s
        self._index = -1
        self._used = 0

    def remaining(self, now: float) -> int:
        """Returns the units left in the window of `now`."""
        index = math.floor((now + 1e-6) / self.length_s)  # a caller that waited exactly as told is in the next one
        if index != self._index:
            self._index, self._used = index, 0
        return max(0, self.capacity - self._used)

    def spend(self, amount: int, now: float) -> None:
        """Takes `amount` from the window of `now`."""
        self.remaining(now)
        self._used += amount

    def ends_in_s(self, now: float) -> float:
        """Returns the seconds until the next window."""
        return self.length_s - (now + 1e-6) % self.length_s


def go_duration(seconds: float) -> str:
    """Returns a duration as Go prints it, to the millisecond: `120ms`, `1s`, `7.66s`, `2m59.56s`, `6m0s`, `1h0m0s`."""
    millis = round(seconds * 1000)
    if millis <= 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes < 60:
        return f"{minutes}m{text}" if minutes else text
    return f"{minutes // 60}h{minutes % 60}m{text}"
