"""Decides when the gateway sheds load, and whose: the lowest lane first, so that the others stay fast.

Housekeeping feeds it once a second with what the process holds and how late the loop runs. It acts on nothing itself; the edge
asks it before a body is read. Invariants: the level moves by one step at a time; a lane is never shed while a lower one is
served; `critical` is never shed.
"""

from __future__ import annotations

import os
from pathlib import Path

from gateway.call import LANES, Lane
from gateway.errors import GatewayOverloaded
from gateway.policy.snapshot import QueueBounds

MAX_LEVEL = 3
SHED_AT: dict[Lane, int] = {"background": 1, "batch": 2, "interactive": 3, "critical": MAX_LEVEL + 1}
HELD_SHARE = 0.9
"""Of the bytes that the queue may hold: what is left is for the lanes that are still let in."""
EASY = 0.8
"""Of each limit: below it there is room for a lane more, between the two the level stays where it is."""
CALM_S = 3.0
"""How long it has to be easy before one more lane is let in."""
GROWTH = 0.01
"""Of the memory limit: growth rather than noise."""


class Overload:
    """How much is shed right now, from level 0, nothing, to level 3, all but `critical`."""

    __slots__ = ("_calm_since", "_grown_to_bytes", "_memory_bytes", "level", "shed_total")

    def __init__(self, memory_bytes: int | None = None) -> None:
        """`memory_bytes` is the limit where the policy names none; None: memory is not watched."""
        self._memory_bytes = memory_bytes
        self.level = 0
        self.shed_total: dict[Lane, int] = dict.fromkeys(LANES, 0)
        """Requests refused, by lane."""
        self._calm_since = float("-inf")
        self._grown_to_bytes = 0

    def sheds(self, lane: Lane) -> bool:
        """Whether requests of this lane are refused now."""
        return self.level >= SHED_AT[lane]

    def refusal(self, lane: Lane) -> GatewayOverloaded:
        """Count a request of this lane as shed; returns what it is to be answered with."""
        self.shed_total[lane] += 1
        wait_s = float(2 ** (self.level - 1))
        message = f"The gateway is overloaded and takes no {lane} calls for now; try again in {wait_s:g} s."
        return GatewayOverloaded(message, retry_after_s=wait_s)

    def observe(
        self, now: float, resident_bytes: int | None, held_bytes: int, loop_lag_s: float, bounds: QueueBounds
    ) -> None:
        """Take in the state of the process, about once a second: the level rises by a step, falls by one, or stays.

        `now` is monotonic seconds; `resident_bytes` None: not known; `loop_lag_s`: the worst since the last time.
        """
        strain = max(
            self._memory_strain(resident_bytes, bounds.shed_memory_bytes or self._memory_bytes),
            held_bytes / max(1.0, HELD_SHARE * bounds.max_bytes),
            loop_lag_s / bounds.shed_loop_lag_s,
        )
        if strain > EASY:
            self._calm_since = now
        if strain > 1:
            self.level = min(MAX_LEVEL, self.level + 1)
        elif self.level and now - self._calm_since >= CALM_S:
            self.level -= 1
            self._calm_since = now

    def _memory_strain(self, resident_bytes: int | None, limit: int | None) -> float:
        """The part of its limit that memory takes; above it, memory that does not grow calls for no more than level 2.

        Freed memory is not always given back: it would keep people out for ever, although their calls fit into it.
        """
        if resident_bytes is None or not limit:
            return 0.0
        grows = resident_bytes > self._grown_to_bytes + GROWTH * limit
        if grows or resident_bytes < self._grown_to_bytes:
            self._grown_to_bytes = resident_bytes
        strain = resident_bytes / limit
        if grows or self.level < MAX_LEVEL - 1:
            return strain
        return min(strain, EASY if self.level == MAX_LEVEL else 1.0)


class LoopLag:
    """The worst delay of the event loop since it was last asked for, from whatever ticks in it."""

    __slots__ = ("_worst_s",)

    def __init__(self) -> None:
        self._worst_s = 0.0

    def note(self, late_s: float) -> None:
        """Something ran so many seconds later than it was due."""
        if late_s > self._worst_s:
            self._worst_s = late_s

    def take(self) -> float:
        """The worst in seconds; starts anew."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


def resident_bytes() -> int | None:
    """The memory that this process has in RAM; None where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def container_bytes(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Four fifths of the memory that the container may use (cgroup v2); None where it is not limited."""
    try:
        limit = limit_file.read_text().strip()
    except OSError:
        return None
    return int(limit) * 4 // 5 if limit.isdigit() else None
