"""Keeps what is heard of one target: the times of its answers by kind of call, its silence, and a model it does not know.

All callers of the target share it, whoever pays. It must not know calls, breakers or limits. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from gateway.core.health.detector.suspects import Suspicion
from gateway.core.health.times.latency import Latency

LOST_AFTER = 3
"""The calls in a row that have to be told that a model which has served others is not there, before it counts as lost."""


class Heard:
    """Keeps the answers and the silence of one target."""

    __slots__ = (
        "_answers",
        "_missed",
        "_missed_after",
        "_served_at",
        "_thought",
        "first_byte",
        "last_failure",
        "suspicion",
        "thinks",
        "trials",
        "whole_answer",
    )

    def __init__(self) -> None:
        self.first_byte = Latency()
        """The times to the first event of streams."""
        self.whole_answer = Latency()
        """The times of answers in one piece, apart, because they grow with the length."""
        self._thought: dict[bool, Latency] = {}  # the same of calls that think first, by whether they are streams
        self.thinks = False
        """True if all calls are taken to think first, because the model does."""
        self.last_failure = ""
        """The error class of the last failure that speaks of its health; empty: there was none."""
        self.suspicion: Suspicion | None = None
        """The suspicion that it has fallen silent; None: there is none."""
        self._missed = 0  # calls in a row to which the provider said that it has no such model ...
        self._missed_after = 0  # ... after so many answers
        self.trials: dict[int, float] = {}
        """The calls that have failed before, here or elsewhere, and wait for its answer: since when, oldest first."""
        self._answers = 0
        self._served_at = -inf

    def times(self, *, stream: bool, thinks: bool) -> Latency:
        """Returns the times of calls of this kind."""
        if not thinks and not self.thinks:
            return self.first_byte if stream else self.whole_answer
        times = self._thought.get(stream)
        if times is None:
            times = self._thought[stream] = Latency()
        return times

    def thought(self) -> Mapping[bool, Latency]:
        """Returns the times of calls that think first, by whether they are streams, as far as there were any."""
        return self._thought

    @property
    def answers(self) -> int:
        """The number of calls that were answered well."""
        return self.first_byte.count + self.whole_answer.count + sum([one.count for one in self._thought.values()])

    @property
    def has_lost_model(self) -> bool:
        """Returns whether the provider does not know the target's model any more; the first good answer ends that.

        The first refusal is believed if no call was ever answered. Later a few in a row are needed: one caller's request may
        name another model besides (in a tool, in a provider's own field), and that is not the target's.
        """
        answers = self.answers
        return self._missed >= (LOST_AFTER if answers else 1) and self._missed_after == answers

    def miss_model(self) -> None:
        """Counts a call that was told that there is no such model."""
        answers = self.answers
        if self._missed_after != answers:
            self._missed, self._missed_after = 0, answers
        self._missed += 1

    def unserved_s(self, now: float) -> float:
        """Returns the seconds since an answer was first noticed here; inf: there was none.

        Answers leave no time of their own: a new one is noticed when this is asked next, so it has to be asked now and then.
        """
        answers = self.answers
        if answers != self._answers:
            self._answers, self._served_at = answers, now
        return now - self._served_at
