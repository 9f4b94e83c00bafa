"""Until when a target is left alone after refusals, and how calls come back to it.

    refused -> pause -> (it is over, and a call comes) -> the resume cap for a second -> normal
    refused in several epochs, served in none between -> one call at a time, until one is not refused

An epoch ends with a refusal: the calls of one epoch were sent before they could learn of it, so that all their refusals count
as one. It must not know limits, headers or calls. Invariants: a pause never moves back; nothing goes while one lasts.
"""

from __future__ import annotations

from math import inf

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 8.0
"""The pause after a refusal that asks for none: twice as long with each epoch that was refused."""
LONGEST_DOUBT_S = 1.0
"""A provider that asks for shorter pauses, again and again, is not taken at its word: the back-off up to this is added."""
REFUSED_WITHIN_S = 1.0
"""A refusal comes fast: a probe that has not been refused after so long was let in, however long its answer takes."""
RESUME_S = 1.0
"""So long the resume cap lasts."""
_AT_ONCE_S = 0.2
_MOST_DOUBLINGS = 10


class ResumeCap:
    """The second behind a pause: at most 1.2 times the target's rate, whatever its level has come to meanwhile.

    `rate_per_s` flows in, behind a fifth of a second's worth that is there at once. A call goes while anything is left and
    takes what it costs, debt included: a large one need not wait until so much has flowed in, the next one waits instead.
    """

    __slots__ = ("_at", "_ends_at", "_level", "_rate_per_s", "counts_requests")

    def __init__(self, rate_per_s: float, now: float, *, counts_requests: bool) -> None:
        self.counts_requests = counts_requests
        """It counts requests rather than tokens."""
        self._rate_per_s = rate_per_s
        self._level = rate_per_s * _AT_ONCE_S - 1e-9
        self._at = now
        self._ends_at = now + RESUME_S

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next call may go, whatever it costs; 0.0 now."""
        if self.is_over(now):
            return 0.0
        level = self._level + (now - self._at) * self._rate_per_s
        return 0.0 if level > 0 else min(-level / self._rate_per_s, self._ends_at - now) + 1e-6

    def take(self, cost: float, now: float) -> None:
        """Notes that a call goes."""
        self._level += (now - self._at) * self._rate_per_s - cost
        self._at = now

    def is_over(self, now: float) -> bool:
        """Returns whether the target is back to its limits alone."""
        return now >= self._ends_at


class Pauses:
    """The pauses of one target. All times are monotonic seconds; of several hints the latest wins."""

    __slots__ = (
        "count",
        "epoch",
        "is_resume_due",
        "probed_at",
        "quota_until",
        "refusals_in_a_row",
        "resume_cap",
        "sent_in_epoch",
        "until",
    )

    def __init__(self) -> None:
        self.until = -inf
        """When the pause ends that a refusal has asked for, or a back-off; in the past: there is none."""
        self.quota_until = -inf
        """When an account whose quota is spent is tried again."""
        self.count = 0
        """How often it was paused, for the metrics."""
        self.epoch = 0
        """Counts the refusals that ended an epoch."""
        self.sent_in_epoch = 0
        """Calls of this epoch that have not ended."""
        self.refusals_in_a_row = 0
        """Epochs that were refused, with no call served between."""
        self.probed_at = -inf
        """When a call was sent last."""
        self.is_resume_due = False
        """A pause has begun, and no call has come since it ended."""
        self.resume_cap: ResumeCap | None = None
        """Lets calls through in the second behind a pause; None: that is over."""

    @property
    def ends_at(self) -> float:
        """When the target may be used again; in the past: it may."""
        return max(self.until, self.quota_until)

    def pause_until(self, until: float, now: float) -> None:
        """Leaves the target alone until then; an end that is no finite number, or before the present one, moves nothing."""
        if self.until <= now < until:
            self.count += 1
        if self.until < until < inf:
            self.until = until
        self.is_resume_due = True

    def spend_until(self, until: float) -> None:
        """Leaves the target alone until then because its account is spent; then one call goes first."""
        self.quota_until = until
        self._begin_epoch()
        self.refusals_in_a_row = max(self.refusals_in_a_row, 2)

    def end(self) -> None:
        """Ends whatever it was left alone for, by hand."""
        self.until = self.quota_until = -inf
        self.refusals_in_a_row = 0

    def refused(self, epoch: int) -> bool:
        """Notes a refusal of a call of this epoch; returns whether it is the first, which ends the epoch."""
        if epoch != self.epoch:
            return False
        self._begin_epoch()
        self.refusals_in_a_row += 1
        return True

    @property
    def backoff_s(self) -> float:
        """How long to leave the target alone after a refusal that asks for no pause."""
        doublings = min(self.refusals_in_a_row - 1, _MOST_DOUBLINGS)
        return min(FIRST_BACKOFF_S * 2.0**doublings, LONGEST_BACKOFF_S)

    def believed_s(self, delay_s: float) -> float:
        """Returns how long to leave the target alone after a refusal that asks for `delay_s`."""
        return delay_s if self.refusals_in_a_row < 2 else max(delay_s, min(self.backoff_s, LONGEST_DOUBT_S))

    def probe_wait_s(self, now: float) -> float:
        """Returns the seconds until one more call may find out whether it is still refused; 0.0 now, or nothing is probed."""
        if self.refusals_in_a_row > 1 and self.sent_in_epoch:
            return max(0.0, self.probed_at + REFUSED_WITHIN_S - now)
        return 0.0

    def end_probing(self, now: float) -> None:
        """Ends the probing if the last probe has not been refused for so long that it was let in."""
        if self.refusals_in_a_row > 1 and self.sent_in_epoch and now - self.probed_at >= REFUSED_WITHIN_S:
            self.refusals_in_a_row = 1

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.sent_in_epoch = 0
