"""Judges from the ends of its calls whether a target is well: failures in a row, their share, and late first bytes.

A target is ill if its last calls all failed, if too many failed, or if too many were slow; each beyond what is usual
there and what chance would bring about. It must not know states, permits or targets. Invariants: O(1) for each outcome;
a verdict needs at least `consecutive_failures` failures, or `min_calls` calls.
"""

from __future__ import annotations

from gateway.core.health.breaker.state_machine.rules import BreakerRules
from gateway.core.health.detector.baseline import (
    BEYOND_CHANCE,
    BUCKETS,
    Baseline,
    OutcomeCounts,
    OutcomeWindow,
    longest_run,
    surprise,
)

LONGEST_RUN = 20
"""A number of failures in a row that is never usual."""
HIGHEST_PERCENT = 90.0
"""A share of failures that is never usual."""


class FailureDetector:
    """Judges one target by the outcomes of its calls, while calls go there freely."""

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
        """Empties the window and ends the run of failures; what is usual stays."""
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

        `pending` calls were sent before this run of failures began and have not ended: failures come back sooner than
        successes, so as long as these are the more, they may all be well.
        """
        window, rules = self.window, self.rules
        if now >= window.ends_at:
            self._turn(now)
        self.run = run = self.run + 1
        window.present.calls += 1
        window.present.failures += 1
        calls, failures = window.failures()
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


def _is_high(calls: int, failures: int, usual: float, percent: float) -> bool:
    """Returns whether `percent` of the calls that usually succeed have failed, and that was no chance."""
    threshold = max(percent, min(percent + (100 - percent) * usual, HIGHEST_PERCENT))
    share = 100 * failures / calls
    return share >= threshold and (share >= HIGHEST_PERCENT or surprise(calls, failures, usual) >= BEYOND_CHANCE)
