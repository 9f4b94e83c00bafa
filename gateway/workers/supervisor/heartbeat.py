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
LAST_SILENT_S = 2.0
"""The same once the grace of a stop is over: whoever still runs then is only closing, and nothing waits for it."""
START_S = 60.0
"""Seconds after its fork by which a worker has to be ready, or it hangs; once the grace of a stop is over: none."""
STACKS_S = 0.5
"""Seconds that a worker which was given up has to write its stacks before it is killed."""
LATE_S = 2.0
"""Seconds of delay of its own ping after which the supervisor, and perhaps all workers, were suspended."""

STACK_SIGNAL = signal.SIGUSR2
"""The signal that makes a worker write the stack of each of its threads to standard error, wherever it hangs."""

Order = Literal["ask", "give_up", "kill"]
"""The action for a worker; it is killed in the round after the one that gives it up."""


class Heartbeat:
    """The pings of all workers, by number, in monotonic seconds; call `beat` once `due_at` has come."""

    def __init__(self) -> None:
        self.due_at = 0.0
        self._sent_at: dict[int, float] = {}
        """The time of each worker's unanswered ping."""
        self._given_up: set[int] = set()

    def note_answer(self, number: int) -> None:
        """Notes any message of a worker as its answer."""
        self._sent_at.pop(number, None)

    def silent_s(self, number: int, now: float) -> float:
        """Returns the seconds for which a worker's ping is unanswered."""
        return now - self._sent_at.get(number, now)

    def ended(self, number: int) -> None:
        """Forgets a worker whose process has ended, because its number goes to the next one."""
        self._sent_at.pop(number, None)
        self._given_up.discard(number)

    def beat(
        self,
        now: float,
        ready: Iterable[int],
        starting: Iterable[tuple[int, float]],
        grace_ends_at: float | None = None,
    ) -> list[tuple[int, Order]]:
        """Returns the actions that are due, for the ready workers and for the starting ones with their times of fork.

        `grace_ends_at`: the end of the grace for running calls; None while the gateway is not stopping.
        """
        if now - self.due_at > LATE_S:
            self._sent_at.clear()
        is_grace_over = grace_ends_at is not None and now >= grace_ends_at
        silent_s, start_s = (LAST_SILENT_S, 0.0) if is_grace_over else (SILENT_S, START_S)
        orders: list[tuple[int, Order]] = [(number, "kill") for number in sorted(self._given_up)]
        for number in ready:
            sent_at = self._sent_at.get(number)
            if sent_at is None:
                self._sent_at[number] = now
                orders.append((number, "ask"))
            elif now - sent_at >= silent_s:
                orders.append((number, "give_up"))
        late = (number for number, since in starting if now - since >= start_s and number not in self._given_up)
        orders += [(number, "give_up") for number in late]
        given_up = {number for number, order in orders if order == "give_up"}
        self._given_up |= given_up
        self.due_at = now + (STACKS_S if given_up else ASK_S)
        if grace_ends_at is not None and now < grace_ends_at:
            self.due_at = min(self.due_at, grace_ends_at)  # who is silent then is not waited for any longer
        return orders
