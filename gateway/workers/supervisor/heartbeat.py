"""Decides which workers hang: each is pinged once a second, and one that stays silent is given up.

A process that is stopped, or whose loop is blocked, still has its listener, and the kernel goes on giving it its part of the
connections: only the supervisor can notice. Time comes in as an argument, and the supervisor carries out the decisions.
Invariant: a worker is given up only for silence that lasted while the supervisor itself was awake; after the machine was
suspended, all workers start with a clean slate.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Literal

ASK_S = 1.0
SILENT_S = 5.0
"""Seconds without an answer after which a worker hangs."""
START_S = 60.0
"""Seconds after its fork by which a worker has to be ready, or it hangs."""
LATE_S = 2.0
"""Seconds of delay of its own ping after which the supervisor, and perhaps all workers, were suspended."""

STACK_SIGNAL = signal.SIGUSR2
"""The signal that makes a worker write the stack of each of its threads to standard error, wherever it hangs."""

Order = Literal["ask", "give_up", "kill"]
"""The action for a worker; it is killed one round after it was given up, which leaves it time to write its stacks."""


class Heartbeat:
    """The pings of all workers, by number, in monotonic seconds; call `beat` once `due_at` has come."""

    def __init__(self) -> None:
        self.due_at = 0.0
        self._asked_at: dict[int, float] = {}
        """The time of each worker's unanswered ping."""
        self._given_up: set[int] = set()

    def heard(self, number: int) -> None:
        """Notes any message of a worker as its answer."""
        self._asked_at.pop(number, None)

    def ended(self, number: int) -> None:
        """Forgets a worker whose process has ended, because its number goes to the next one."""
        self._asked_at.pop(number, None)
        self._given_up.discard(number)

    def beat(self, now: float, ready: Iterable[int], starting: Iterable[tuple[int, float]]) -> list[tuple[int, Order]]:
        """Returns the actions that are due, for the ready workers and for the starting ones with their times of fork."""
        if now - self.due_at > LATE_S:
            self._asked_at.clear()
        self.due_at = now + ASK_S
        orders: list[tuple[int, Order]] = [(number, "kill") for number in sorted(self._given_up)]
        for number in ready:
            asked_at = self._asked_at.get(number)
            if asked_at is None:
                self._asked_at[number] = now
                orders.append((number, "ask"))
            elif now - asked_at >= SILENT_S:
                orders.append((number, "give_up"))
        late = (number for number, since in starting if now - since >= START_S and number not in self._given_up)
        orders += [(number, "give_up") for number in late]
        self._given_up.update(number for number, order in orders if order == "give_up")
        return orders
