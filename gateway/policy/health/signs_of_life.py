"""What is heard of one target: how long its answers take by kind of call, since when nothing came, and what that is taken for.

All who see the target share it, whoever pays. It must not know calls, breakers or limits. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from gateway.policy.health.latency import Latency
from gateway.policy.health.suspects import Suspicion

LOST_AFTER = 3
"""So many calls in a row are told that a model which has served others is not there, before it is taken for lost."""


class Heard:
    """One target, as far as its answers and its silence go."""

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
        """Of streams."""
        self.whole_answer = Latency()
        """Of answers in one piece: their time grows with their length."""
        self._thought: dict[bool, Latency] = {}  # the same of calls that think first, by whether they are streams
        self.thinks = False
        """All its calls are taken to do so: its model does."""
        self.last_failure = ""
        """What failed last that speaks of its health."""
        self.suspicion: Suspicion | None = None
        """It has fallen silent, as far as anybody can tell."""
        self._missed = 0  # calls in a row to which the provider said that it has no such model ...
        self._missed_after = 0  # ... after so many answers
        self.trials: dict[int, float] = {}
        """Calls that have failed before, there or elsewhere, and wait for its answer: since when, the first of them first."""
        self._answers = 0
        self._served_at = -inf

    def times(self, *, stream: bool, thinks: bool) -> Latency:
        """The times of calls of this kind."""
        if not thinks and not self.thinks:
            return self.first_byte if stream else self.whole_answer
        times = self._thought.get(stream)
        if times is None:
            times = self._thought[stream] = Latency()
        return times

    def thought(self) -> Mapping[bool, Latency]:
        """The times of calls that think first: by whether they are streams, as far as there were any."""
        return self._thought

    @property
    def answers(self) -> int:
        """Calls that were answered well."""
        return self.first_byte.count + self.whole_answer.count + sum([one.count for one in self._thought.values()])

    @property
    def has_lost_model(self) -> bool:
        """The provider does not know the target's model, as far as the last calls tell; the first good answer ends that.

        The first call is believed where nobody was ever answered. Later a few in a row are needed: one caller's request may
        name another model besides (in a tool, in a provider's own field), and that is not the target's.
        """
        answers = self.answers
        return self._missed >= (LOST_AFTER if answers else 1) and self._missed_after == answers

    def miss_model(self) -> None:
        """A call was told that there is no such model."""
        answers = self.answers
        if self._missed_after != answers:
            self._missed, self._missed_after = 0, answers
        self._missed += 1

    def unserved_s(self, now: float) -> float:
        """How long it has served nobody, as far as those know who ask now and then; inf: it never has."""
        answers = self.answers
        if answers != self._answers:
            self._answers, self._served_at = answers, now
        return now - self._served_at
