"""The rules of `breakers.yaml`, and how one target responds: silence, the times of its answers, whose failures it has seen.

First the rules, then the silent targets (`Suspicion`, `StallMoves`), and last what is kept of one target's answers
(`Responsiveness`). It must not know states, permits or targets. Invariants: O(1) in time and space for each outcome; no sample
is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from gateway.core.health.times import Latency
from gateway.core.types import LANES, Lane


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """One set of `breakers.yaml`."""

    is_enabled: bool = True
    consecutive_failures: int = 5
    """The failures in a row that open it; raised to 20 at most where failures are usual at this target."""
    failure_rate_percent: float = 50.0
    """The percentage of the calls that usually succeed whose failure opens it; raised to 90 % of all at most."""
    min_calls: int = 20
    """The calls that have to be in the window before a rate is looked at."""
    window_s: float = 60.0
    """The length of the window in seconds; it is made longer where calls take longer."""
    slow_rate_percent: float = 80.0
    """The percentage of calls that opens it whose first byte came later than is usual here ..."""
    slow_factor: float = 4.0
    """... by this factor over the target's own baseline, within the next two ..."""
    slow_at_least_s: float = 10.0
    slow_at_most_s: float = 120.0
    open_s: float = 2.0
    """The seconds that it is open for the first time; doubled with each further ejection."""
    max_open_s: float = 60.0
    jitter_percent: float = 20.0
    """The largest part of the open time by which a draw shortens it."""
    probes: int = 3
    """The most calls in flight while it is half open; as many successes close it."""
    ramp_s: float = 10.0
    """The seconds of the slow start, over which the calls let through grow once it is closed."""
    hold_for_s: Mapping[Lane, float] = field(default_factory=lambda: dict.fromkeys(LANES, 21600.0))
    """The seconds that a call of each lane is held when all its targets are open; its deadline ends that sooner."""


def account_rules(rules: BreakerRules) -> BreakerRules:
    """Returns the rules of a provider's account: they add up the failures of its targets, and no single one should open it."""
    consecutive = max(10, 2 * rules.consecutive_failures)
    return replace(rules, consecutive_failures=consecutive, min_calls=max(50, 2 * rules.min_calls))


def is_shared(failures: Collection[int], at_least: int, in_flight: int) -> bool:
    """Returns whether `failures` of several callers in a row, counted by caller, are the target's and not their own.

    No caller counts for so many that one failure of another would do. As long as more calls are `in_flight` than have failed,
    these may all be well: failures come back sooner than answers.
    """
    of_one = max(1, at_least - 2)
    return len(failures) > 1 and sum([min(one, of_one) for one in failures]) >= at_least and sum(failures) >= in_flight


# --- silence: when a silent target is suspect, and how fast the calls that hang there move on ---
#
#     several calls, begun one after the other, all without a sign of life for longer than is usual  ->  `Suspicion`
#     one call, without a sign of life for several times what is usual; or some, where nothing is known  ->  `StallMoves`
#
# Invariants: calls that begin together make no target suspect, nor do a few, unless another target has served some of them much
# sooner; a target that has just served somebody is not suspect.


SPAN_S = 2.0
"""Seconds over which the calls must have begun: twenty long ones that were sent at once are no news."""
FIRST_WINDOW = 3
"""The calls that may move at once, until the first of them is answered."""
ANSWERS_PER_MOVE = 1000
"""The answers of a target after which one more call may leave it in vain."""
_LARGEST_WINDOW = 1 << 20


class SilentAttempt(NamedTuple):
    """A call that waits for its target: the time of sending, the seconds of silence, and those that are usual."""

    begun_at: float
    silent_s: float
    usual_s: float


def is_suspect(
    waiting: Sequence[SilentAttempt], at_least: int, unserved_s: float, least_span_s: float = SPAN_S
) -> str | None:
    """Returns why the target is suspect, in words, or None; `unserved_s` is the time since it has served anybody.

    The one that has waited longest must be overdue; the others, who came after it, as good as.
    """
    hanging = [one for one in waiting if one.silent_s >= max(one.usual_s - SPAN_S, one.usual_s / 2)]
    if len(hanging) < at_least:
        return None
    overdue = [one for one in hanging if one.silent_s >= one.usual_s <= unserved_s]
    begun = [one.begun_at for one in hanging]
    span_s = max(begun) - min(begun)
    if not overdue or span_s < least_span_s:
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


class StallMoves:
    """Bounds the calls that leave a target which is not suspect: their answers may be long ones, and are paid twice then.

    A call that another target serves much sooner was rightly moved, and makes room for the next one.
    """

    __slots__ = ("_answers", "_left", "proof_at")

    def __init__(self) -> None:
        self._left = float(FIRST_WINDOW)
        self._answers = 0
        self.proof_at = -inf
        """The time at which another target last served such a call much sooner (monotonic seconds)."""

    def has_room(self, answers: int) -> bool:
        """Returns whether a call may leave now; the target has given so many `answers` in all."""
        self._left = min(self._left + (answers - self._answers) / ANSWERS_PER_MOVE, FIRST_WINDOW)
        self._answers = answers
        return self._left >= 1.0

    def moved(self) -> None:
        """Counts a call that has begun elsewhere."""
        self._left = max(self._left - 1.0, 0.0)

    def proved(self, now: float) -> None:
        """Counts such a call that was served much sooner."""
        self._left += 1.0
        self.proof_at = now


# --- how one target responds ---


MOST_CONTENTS = 256
"""The contents of failed calls that are remembered of a target."""
SERVING_S = 5.0
"""Seconds within which a target must have served somebody to count as serving."""
LOST_AFTER = 3
"""The calls in a row for which a model that has served others has to be missing, before it counts as lost."""


class Responsiveness:
    """Keeps how one target responds: the times of its answers by kind of call, its silence, and a model it does not know.

    All callers of the target share it, whoever pays. Times are monotonic seconds.
    """

    __slots__ = (
        "_answers",
        "_failed_after",
        "_missed",
        "_missed_after",
        "_served_at",
        "_thought",
        "failed_callers",
        "failed_contents",
        "first_byte",
        "last_failure",
        "stall_moves",
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
        self.stall_moves = StallMoves()
        self._missed = 0  # calls in a row to which the provider said that it has no such model ...
        self._missed_after = 0  # ... after so many answers
        self.trials: dict[int, float] = {}
        """The calls that have failed before, here or elsewhere, and wait for its answer: since when, oldest first."""
        self.failed_callers: dict[str, int] = {}
        """The failures of each caller with a credential of his own, since anybody was served as far as `fail_caller` knows."""
        self._failed_after = 0  # so many answers
        self.failed_contents: dict[int, tuple[int, int]] = {}
        """The failed calls that were not served since, by content: the first such call, and the answers until then."""
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
        """Counts a call whose answer was that there is no such model."""
        answers = self.answers
        if self._missed_after != answers:
            self._missed, self._missed_after = 0, answers
        self._missed += 1

    def fail_caller(self, name: str) -> None:
        """Counts a failure of a caller with a credential of his own."""
        answers = self.answers
        if self._failed_after != answers:
            self._failed_after = answers
            self.failed_callers.clear()
        self.failed_callers[name] = self.failed_callers.get(name, 0) + 1

    def is_contents_own(self, content: int, call: int, now: float) -> bool:
        """Counts a failure; returns whether calls of this content fail while the target serves all others.

        So it is where an earlier call of the same content has failed, others have been served since, the last of them not long
        ago, and this content has not.
        """
        # First: it brings up to date the count of answers that is compared below.
        unserved_s = self.unserved_s(now)
        first = self.failed_contents.get(content)
        if first is None:
            if len(self.failed_contents) >= MOST_CONTENTS:
                self.failed_contents.clear()
            self.failed_contents[content] = call, self._answers
            return False
        return first[0] != call and first[1] < self._answers and unserved_s <= SERVING_S

    def unserved_s(self, now: float) -> float:
        """Returns the seconds since an answer was first noticed here; inf: there was none.

        Answers leave no time of their own: a new one is noticed when this is asked next, so it has to be asked now and then.
        """
        answers = self.answers
        if answers != self._answers:
            self._answers, self._served_at = answers, now
        return now - self._served_at
