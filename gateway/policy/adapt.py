"""Finding a rate that nobody tells, and keeping away from a target that asked for a pause.

For targets with limits neither in the config nor in headers: additive increase, multiplicative decrease (Chiu and Jain,
1989), after a search that grows by factors. It must not know why an attempt failed, only that it was refused for its rate.
Invariants: a pause never moves back; in any second at most 1.2 times the rate is granted (or one call, if that is more).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gateway.policy.bucket import Bucket


class Pause:
    """Until when a target is left alone (monotonic seconds). Of several hints the latest wins."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = -inf

    def extend(self, until: float) -> None:
        """Moves the end of the pause to `until`, never back; what is not a finite number is ignored."""
        if self.until < until < inf:
            self.until = until

    def left_s(self, now: float) -> float:
        """Seconds to go; 0.0 when there is no pause."""
        return self.until - now if self.until > now else 0.0


@dataclass(frozen=True, slots=True)
class AimdPolicy:
    """Rates are requests per second."""

    first_rate: float = 50.0
    min_rate: float = 0.05
    max_rate: float = 10_000.0
    increase_percent: float = 5.0
    """Added for each second with successes, of the rate right after the last cut (at least `min_rate`)."""
    growth: float = 1.5
    """Multiplies the rate for each second with successes, until the first refusal."""
    cut: float = 0.5
    """Multiplies the rate at a refusal."""
    burst_s: float = 0.2
    """So many seconds of the rate may go at once (at least one request); bounds the first second after a pause, too."""


class Aimd:
    """The request rate of one target, and the bucket that enforces it.

    The rate grows only while somebody waits for it: an idle target teaches nothing. One refusal cuts once, together with
    all the others for requests that were sent before that cut.
    """

    __slots__ = ("_bucket", "_cut_at", "_is_pressed", "_is_searching", "_policy", "_raised_at", "_step", "rate_per_s")

    def __init__(self, now: float, policy: AimdPolicy | None = None) -> None:
        self._policy = policy or AimdPolicy()
        self.rate_per_s = self._policy.first_rate
        self._bucket = Bucket(self.rate_per_s, self._burst(), now)
        self._step = 0.0
        self._raised_at = now
        self._cut_at = -inf
        self._is_searching = True
        self._is_pressed = False

    def wait_s(self, now: float) -> float:
        """Seconds until one more request may go; 0.0 now. Somebody waits for what is not 0.0."""
        wait_s = self._bucket.wait_s(1.0, now)
        if wait_s:
            self._is_pressed = True
        return wait_s

    def ready_at(self, now: float, ahead: float = 0.0) -> float:
        """When one more may go after `ahead` others, at the present rate."""
        return self._bucket.ready_at(1.0, now, ahead)

    def take(self, now: float) -> None:
        """One request goes; only to be called when `wait_s` is 0.0."""
        self._bucket.take(1.0, now)

    def give_back(self, now: float) -> None:
        """It did not go after all."""
        self._bucket.give_back(1.0, now)

    def succeeded(self, now: float) -> None:
        """A request was served: once a second, while somebody waits, the rate grows."""
        if now - self._raised_at < 1.0:
            return
        if self._is_pressed:
            rate = self.rate_per_s * self._policy.growth if self._is_searching else self.rate_per_s + self._step
            self._set(min(rate, self._policy.max_rate), now)
        self._raised_at = now
        self._is_pressed = False

    def refused(self, sent_at: float, now: float) -> None:
        """A request was refused for its rate; `sent_at` is when it went."""
        if sent_at < self._cut_at:
            return
        self._set(max(self.rate_per_s * self._policy.cut, self._policy.min_rate), now)
        self._step = max(self.rate_per_s * self._policy.increase_percent / 100, self._policy.min_rate)
        self._cut_at = self._raised_at = now
        self._is_searching = False

    def _set(self, rate_per_s: float, now: float) -> None:
        self.rate_per_s = rate_per_s
        self._bucket.resize(rate_per_s, self._burst(), now)

    def _burst(self) -> float:
        return max(1.0, self.rate_per_s * self._policy.burst_s)
