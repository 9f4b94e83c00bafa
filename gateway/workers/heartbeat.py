"""Decides which workers hang: each is asked once a second whether it is there, and one that stays silent is given up.

A process that is stopped, or whose loop never turns again, still has its listener, and the kernel goes on giving it its part
of the connections: nobody but the supervisor can notice. Time comes in as an argument, and nothing is done here: the
supervisor carries out what is decided. Invariant: a worker is given up only for silence that lasted while the supervisor
itself was awake; after a suspended machine everybody starts with a clean slate.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Literal

ASK_S = 1.0
SILENT_S = 5.0
"""A worker that has not answered for so long hangs."""
START_S = 60.0
"""A worker that is not ready so long after it was forked hangs, too."""
LATE_S = 2.0
"""When the supervisor itself comes so late to ask, it was asleep, and so perhaps was everybody else."""

STACK_SIGNAL = signal.SIGUSR2
"""Makes a worker write to standard error what each of its threads is doing, wherever it hangs."""

Order = Literal["ask", "give_up", "kill"]
"""What is to be done with a worker; it is killed one round after it was given up, which leaves it time to tell its stack."""


class Heartbeat:
    """Who was asked since when; `beat` once `due_at` has come. Workers go by their numbers, times are monotonic seconds."""

    def __init__(self) -> None:
        self.due_at = 0.0
        self._asked_at: dict[int, float] = {}
        """When the question was asked that a worker has not answered yet."""
        self._given_up: set[int] = set()

    def heard(self, number: int) -> None:
        """A worker has said something: it is there."""
        self._asked_at.pop(number, None)

    def ended(self, number: int) -> None:
        """A worker's process has ended: what is said from now on about this number is about the next one."""
        self._asked_at.pop(number, None)
        self._given_up.discard(number)

    def beat(self, now: float, ready: Iterable[int], starting: Iterable[tuple[int, float]]) -> list[tuple[int, Order]]:
        """What is to be done now with the workers that are ready, and with those that start, each with its begin."""
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
