"""When a target that nobody hears anything of is suspect, and how fast the calls that hang there move on.

    several calls, begun one after the other, all without a sign of life for longer than is usual  ->  `Suspicion`

It must not know calls or targets. Invariants: calls that begin together suspect nobody, and neither do a few; a target that
has just served somebody is not suspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SPAN_S = 2.0
"""Calls that began within less may all be of one kind: twenty long ones at once are no news."""
FIRST_WINDOW = 3
"""So many calls move at once, until the first of them is answered."""
_LARGEST_WINDOW = 1 << 20


class SilentAttempt(NamedTuple):
    """One call that waits for its target: when it was sent, since when it has shown no sign of life, how long that is usual."""

    begun_at: float
    silent_s: float
    usual_s: float


def is_suspect(waiting: Sequence[SilentAttempt], at_least: int, unserved_s: float) -> str | None:
    """Why the target is suspect, in words; None: it is not. `unserved_s` is the time since it has served anybody.

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
    """One target that is suspect, and the calls that are on their way to others."""

    __slots__ = ("moving", "reason", "since", "window")

    def __init__(self, reason: str, since: float) -> None:
        self.reason = reason
        self.since = since
        """Monotonic seconds."""
        self.moving = 0
        """Calls that have begun elsewhere, and have no answer yet."""
        self.window = FIRST_WINDOW
        """So many may be moving."""

    @property
    def free(self) -> int:
        """So many more may move now."""
        return max(0, self.window - self.moving)

    def moved(self) -> None:
        """A call has begun elsewhere."""
        self.moving += 1

    def ended(self, *, is_answered: bool) -> None:
        """It has its answer, which doubles the window, or none."""
        self.moving -= 1
        if is_answered:
            self.window = min(self.window * 2, _LARGEST_WINDOW)
