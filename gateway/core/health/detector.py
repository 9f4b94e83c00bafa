"""Judges a target's outcomes by what is usual there and by the rules of `breakers.yaml`, and finds targets that are silent.

    outcomes -> `OutcomeWindow` (the last minute, or longer where calls are) -> what leaves it -> `Baseline`

So the present is judged by the past, and an outage that opens the breaker never teaches. The baseline moves slowly and
within bounds: what fails more often than `MOST_USUAL` is sick, however long it has been so. After the rules, window and
baseline come the verdict (`FailureDetector`), the silent targets (`Suspicion`, `StallMoves`) and what is kept of one
target's answers (`Responsiveness`). It must not know states, permits or targets. Invariants: O(1) in time and space for
each outcome; no sample is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log
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


BUCKETS = 12
"""The number of buckets in a window, which forgets one at a time."""
BEYOND_CHANCE = log(1e8)
"""The `surprise` in nats from which failures are not put down to chance: it brings about as many once in 1e8 times."""
MOST_USUAL = 0.25
"""The largest share of failures that can become the rule."""
MOST_AT_FIRST = 0.1
"""The largest share of failures that can become the rule while little is known."""
ENOUGH_CALLS = 1000
"""The number of calls that show what is usual; from then on it moves slowly ..."""
SLOWLY_S = 600.0
"""... with this time constant."""
DURATIONS = 3.0
"""The length of a window in durations of a call ..."""
LONGEST_WINDOW_S = 600.0
"""... up to this length."""
_DOUBT_CALLS = 50
_LEAST_USUAL = 1e-8


class OutcomeCounts:
    """Counts outcomes of calls. `busy_s` sums the durations of successes, `first_byte_s` the first bytes of the `timed`."""

    __slots__ = ("busy_s", "calls", "failures", "first_byte_s", "slow", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = self.failures = self.timed = self.slow = 0
        self.busy_s = self.first_byte_s = 0.0

    def add(self, other: OutcomeCounts) -> None:
        self.calls += other.calls
        self.failures += other.failures
        self.timed += other.timed
        self.slow += other.slow
        self.busy_s += other.busy_s
        self.first_byte_s += other.first_byte_s


class OutcomeWindow:
    """Holds the last `span_s` seconds in a ring of buckets. Outcomes go to `present` until `ends_at`; then it has to `turn`."""

    __slots__ = ("_began_at", "_buckets", "_index", "ends_at", "present", "span_s")

    def __init__(self, span_s: float, now: float) -> None:
        self._buckets = [OutcomeCounts()]  # the others are made as time passes: most breakers of callers never see it
        self.restart(span_s, now)

    def restart(self, span_s: float, now: float) -> None:
        del self._buckets[1:]
        self._buckets[0].clear()
        self.span_s = span_s
        self._began_at = now
        self._index = 0
        self.present = self._buckets[0]
        self.ends_at = now + span_s / BUCKETS

    def turn(self, span_s: float, now: float) -> OutcomeCounts:
        """Begins the bucket that `now` belongs to, with the length `span_s` from here on; returns what has left the window."""
        self.span_s = span_s
        step_s = span_s / BUCKETS
        steps = int((now - self.ends_at) / step_s) + 1
        gone = OutcomeCounts()
        for _ in range(min(steps, BUCKETS)):
            if len(self._buckets) < BUCKETS:
                self._buckets.append(OutcomeCounts())
            self._index = (self._index + 1) % BUCKETS
            self.present = self._buckets[self._index]
            gone.add(self.present)
            self.present.clear()
        self.ends_at += steps * step_s
        return gone

    def total(self) -> OutcomeCounts:
        total = OutcomeCounts()
        for bucket in self._buckets:
            total.add(bucket)
        return total

    def recent(self) -> Iterator[tuple[float, int, int]]:
        """Yields seconds, calls and failures of the present bucket, of the last two, and so on up to the whole window."""
        calls = failures = 0
        for age in range(BUCKETS):
            if age < len(self._buckets):
                bucket = self._buckets[self._index - age]
                calls += bucket.calls
                failures += bucket.failures
            yield (age + 1) * self.span_s / BUCKETS, calls, failures

    def failures(self) -> tuple[int, int]:
        calls = failures = 0
        for bucket in self._buckets:
            calls += bucket.calls
            failures += bucket.failures
        return calls, failures

    def failures_at(self, span_s: float, now: float) -> tuple[int, int]:
        """Returns the calls and failures that will be left when the window turns at `now`, to the length `span_s`."""
        gone = int((now - self.ends_at) * BUCKETS / span_s) + 1 if now >= self.ends_at else 0
        left = [self._buckets[self._index - age] for age in range(min(BUCKETS - gone, len(self._buckets)))]
        return sum([bucket.calls for bucket in left]), sum([bucket.failures for bucket in left])

    def slow(self) -> tuple[int, int]:
        """Returns the calls whose first byte was timed, and how many of them were slow."""
        return sum(bucket.timed for bucket in self._buckets), sum(bucket.slow for bucket in self._buckets)

    def calls_per_s(self, now: float) -> float:
        """Returns the rate at which calls ended, over the window or as much of it as has passed."""
        return self.failures()[0] / min(max(now - self._began_at, 1.0), self.span_s)


class Baseline:
    """Describes one target when it is well. Times are running means in seconds; 0.0: unknown."""

    __slots__ = ("call_s", "failure_share", "first_byte_s", "known_calls")

    def __init__(self) -> None:
        self.failure_share = 0.0
        self.first_byte_s = 0.0
        self.call_s = 0.0
        self.known_calls = 0

    def learn(self, seen: OutcomeCounts, span_s: float) -> None:
        """Takes these outcomes, of `span_s` seconds, for usual; only outcomes that led to no ejection may be given."""
        if seen.calls <= 0:
            return
        is_settled = self.known_calls >= ENOUGH_CALLS
        self.known_calls = min(self.known_calls + seen.calls, ENOUGH_CALLS)
        weight = min(seen.calls / self.known_calls, span_s / SLOWLY_S if is_settled else 1.0)
        share = self.failure_share + (seen.failures / seen.calls - self.failure_share) * weight
        self.failure_share = min(share, MOST_USUAL)
        if seen.timed:
            self.first_byte_s = _towards(self.first_byte_s, seen.first_byte_s / seen.timed, weight)
        if seen.calls > seen.failures:
            self.call_s = _towards(self.call_s, seen.busy_s / (seen.calls - seen.failures), weight)

    def usual_failures(self, calls: int, failures: int) -> float:
        """Returns the share of calls that usually fail; `calls` and `failures`, the ones since, count while little is known."""
        share = self.failure_share
        if self.known_calls < ENOUGH_CALLS:
            known = share * self.known_calls + failures
            share = min(MOST_AT_FIRST, known / (_DOUBT_CALLS + self.known_calls + calls))
        return max(share, _LEAST_USUAL)

    def window_s(self, at_least_s: float) -> float:
        """Returns the length of a window that is longer than calls here usually take."""
        return max(at_least_s, min(DURATIONS * self.call_s, LONGEST_WINDOW_S))

    def slow_after_s(self, factor: float, at_least_s: float, at_most_s: float) -> float:
        """Returns the seconds after which a first byte is slow; `at_most_s`, as long as nothing is known."""
        if not self.first_byte_s:
            return at_most_s
        return min(max(factor * self.first_byte_s, at_least_s), at_most_s)


def surprise(calls: int, failures: int, usual: float) -> float:
    """Returns how far so many failures are from what is usual, in nats: chance brings as many once in e**surprise times.

    It is `calls` times the Kullback-Leibler divergence of the share of failures from the usual one (Chernoff's bound); for
    failures in a row that is -calls * log(usual). It is 0.0 where no more fail than usual.
    """
    share = failures / calls
    if share <= usual:
        return 0.0
    well = (1 - share) * log((1 - share) / (1 - usual)) if failures < calls else 0.0
    return calls * (share * log(share / usual) + well)


def longest_run(usual: float) -> int:
    """Returns the number of failures in a row that is beyond chance."""
    return ceil(BEYOND_CHANCE / -log(usual) - 1e-9)


def _towards(mean: float, value: float, weight: float) -> float:
    return mean + (value - mean) * weight if mean else value


# --- the verdict: failures in a row, their share, and late first bytes ---


LONGEST_RUN = 20
"""A number of failures in a row that is never usual."""
HIGHEST_PERCENT = 90.0
"""A share of failures that is never usual."""


class FailureDetector:
    """Judges one target by the outcomes of its calls, while calls go there freely.

    A target is ill if its last calls all failed, if too many failed, or if too many were slow; each beyond what is usual
    there and what chance would bring about. Invariant: a verdict needs at least `consecutive_failures` failures, or
    `min_calls` calls.
    """

    __slots__ = ("baseline", "rules", "run", "slow_after_s", "window")

    def __init__(self, rules: BreakerRules, now: float) -> None:
        self.baseline = Baseline()
        self.window = OutcomeWindow(rules.window_s, now)
        self.run = 0
        """The number of failures in a row."""
        self.configure(rules)

    def configure(self, rules: BreakerRules) -> None:
        """Puts other rules in force; what was seen and learned stays."""
        self.rules = rules
        self.slow_after_s = self.baseline.slow_after_s(rules.slow_factor, rules.slow_at_least_s, rules.slow_at_most_s)

    def restart(self, now: float) -> None:
        self.run = 0
        self.window.restart(self.baseline.window_s(self.rules.window_s), now)

    def succeeded(self, took_s: float, now: float, first_byte_s: float | None) -> str | None:
        """Counts a call that was served; returns what is wrong with the target all the same, in words, or None."""
        window = self.window
        if now >= window.ends_at:
            self._turn(now)
        present = window.present
        present.calls += 1
        present.busy_s += took_s
        self.run = 0
        if first_byte_s is None:
            return None
        present.timed += 1
        if first_byte_s > self.slow_after_s:
            return self._was_slow(present)
        present.first_byte_s += first_byte_s
        return None

    def failed(self, now: float, why: str, pending: int = 0) -> str | None:
        """Counts a call that failed for `why`; returns what is wrong with the target, in words, or None.

        `pending` calls have not ended: failures come back sooner than successes, so as long as these are the more, they may
        all be well.
        """
        window, rules = self.window, self.rules
        if now >= window.ends_at:
            self._turn(now)
        self.run = run = self.run + 1
        window.present.calls += 1
        window.present.failures += 1
        calls, failures = window.failures()
        # Without the run, which is in question and must not make itself usual.
        usual = self.baseline.usual_failures(calls - run, failures - run)
        if run >= max(rules.consecutive_failures, min(longest_run(usual), LONGEST_RUN), pending):
            self._learn_all(but=run)
            return f"{run} failures in a row ({why})"
        percent = rules.failure_rate_percent
        for span_s, ended, failures in window.recent():  # the latest calls first: health long past hides nothing
            calls = ended + pending
            if (
                failures * 100 >= calls * percent
                and calls >= rules.min_calls
                and _is_high(calls, failures, usual, percent)
            ):
                return f"{100 * failures / calls:.0f} % of {calls} calls failed in {span_s:.0f} s ({why})"
        return None

    def outcomes(self, now: float) -> tuple[int, int]:
        """Returns the calls that ended within the window, and how many of them failed."""
        return self.window.failures_at(self.baseline.window_s(self.rules.window_s), now)

    def catch_up(self, now: float) -> None:
        """Drops the outcomes that have left the window, and learns from them."""
        if now >= self.window.ends_at:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Begins the next bucket; outcomes that leave the window led to no ejection, and become part of what is usual."""
        gone = self.window.turn(self.baseline.window_s(self.rules.window_s), now)
        self._learn(gone, self.window.span_s / BUCKETS)

    def _was_slow(self, present: OutcomeCounts) -> str | None:
        """Counts a slow first byte, which teaches no more than what is still usual; returns what is wrong, or None."""
        rules, slow_after_s = self.rules, self.slow_after_s
        present.slow += 1
        present.first_byte_s += slow_after_s
        timed, slow = self.window.slow()
        if timed < rules.min_calls or slow * 100 < timed * rules.slow_rate_percent:
            return None
        self._learn_all()
        return f"{100 * slow / timed:.0f} % of {timed} calls got their first byte after more than {slow_after_s:.0f} s"

    def _learn_all(self, but: int = 0) -> None:
        """Learns the whole window, `but` for the run of failures at its end.

        A target that has become somewhat worse, or slower, for good is thus not ejected for ever.
        """
        seen = self.window.total()
        seen.calls -= but
        seen.failures -= but
        self._learn(seen, self.window.span_s)

    def _learn(self, seen: OutcomeCounts, span_s: float) -> None:
        if self.rules.is_enabled:
            self.baseline.learn(seen, span_s)
            self.configure(self.rules)


def is_shared(failures: Collection[int], at_least: int, in_flight: int) -> bool:
    """Returns whether `failures` of several callers in a row, counted by caller, are the target's and not their own.

    No caller counts for so many that one failure of another would do. As long as more calls are `in_flight` than have failed,
    these may all be well: failures come back sooner than answers.
    """
    of_one = max(1, at_least - 2)
    return len(failures) > 1 and sum([min(one, of_one) for one in failures]) >= at_least and sum(failures) >= in_flight


def _is_high(calls: int, failures: int, usual: float, percent: float) -> bool:
    """Returns whether `percent` of the calls that usually succeed have failed, and that was no chance."""
    threshold = max(percent, min(percent + (100 - percent) * usual, HIGHEST_PERCENT))
    share = 100 * failures / calls
    return share >= threshold and (share >= HIGHEST_PERCENT or surprise(calls, failures, usual) >= BEYOND_CHANCE)


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
