"""Decides when a silent target is suspect, and how fast the calls that hang there move on.

    several calls, begun one after the other, all without a sign of life for longer than is usual  ->  `Suspicion`

It must not know calls or targets. Invariants: calls that begin together make no target suspect, nor do a few; a target that has
just served somebody is not suspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SPAN_S = 2.0
"""Seconds over which the calls must have begun: twenty long ones that were sent at once are no news."""
FIRST_WINDOW = 3
"""The calls that may move at once, until the first of them is answered."""
_LARGEST_WINDOW = 1 << 20


class SilentAttempt(NamedTuple):
    """A call that waits for its target: the time of sending, the seconds of silence, and those that are usual."""

    begun_at: float
    silent_s: float
    usual_s: float


def is_suspect(waiting: Sequence[SilentAttempt], at_least: int, unserved_s: float) -> str | None:
    """Returns why the target is suspect, in words, or None; `unserved_s` is the time since it has served anybody.

    The one that has waited longest must be overdue; the others, who came after it, as good as.
    """
    hanging = [one for one in waiting if one.silent_s >= max(one.usual_s - SPAN_S, one.usual_s / 2)]
    if len(hanging) < at_least:
        return None
    overdue = [one for one in hanging if one.silent_s >= one.usual_s <= unserved_s]
    begun = [one.begun_at for one in hanging]
    span_s = max(begun) - min(begun)
    if not overdue or span_s < SPAN_S:
        return None
    longest_s = max([one.silent_s for one in overdue])
    return f"{len(hanging)} calls, begun over {span_s:.0f} s, have shown no sign of life for up to {longest_s:.0f} s"


class Suspicion:
    """Counts the calls that move away from a suspect target, and bounds them."""

    __slots__ = ("moving", "reason", "since", "window")

    def __init__(self, reason: str, since: float) -> None:
        self.reason = reason
        self.since = since
        """The time at which it became suspect (monotonic seconds)."""
        self.moving = 0
        """The calls that have begun elsewhere, and have no answer yet."""
        self.window = FIRST_WINDOW
        """The most calls that may be moving."""

    @property
    def free(self) -> int:
        """The number of further calls that may move now."""
        return max(0, self.window - self.moving)

    def moved(self) -> None:
        """Counts a call that has begun elsewhere."""
        self.moving += 1

    def ended(self, *, is_answered: bool) -> None:
        """Counts the end of such a call; an answer doubles the window."""
        self.moving -= 1
        if is_answered:
            self.window = min(self.window * 2, _LARGEST_WINDOW)
