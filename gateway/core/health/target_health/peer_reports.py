"""Keeps what other replicas report about one target apart from what was seen here, and for how long the latter outranks it.

It must not know states, nor how replicas talk. Invariant: what a peer has said goes with the
ejection that it was about.
"""

from __future__ import annotations

OWN_SUCCESS_SPANS = 2
"""The multiple of the longest open time for which the success of own probes outranks what peers report."""


class PeerReports:
    """The reports of peers about one breaker, and the own evidence that outranks them. Times are monotonic seconds."""

    __slots__ = ("failure_rate", "open_until", "own_success_until")

    def __init__(self) -> None:
        self.failure_rate: float | None = None
        """The share of failures seen by the peer whose report opened the breaker; None: what was seen here opened it."""
        self.open_until: float | None = None
        """The time until which peers leave the target alone, if only their report opened it here; None: it failed here, too."""
        self.own_success_until: float | None = None
        """The time until which the success of own probes outranks reports; None: there was none of late."""

    def forget(self) -> None:
        """Drops both sides' evidence: the breaker opens, and for that one reason."""
        self.open_until = self.own_success_until = None

    def remember_own_success(self, max_open_s: float, now: float) -> None:
        """Notes that own probes have succeeded; a peer that errs repeats its report within the longest open time."""
        self.own_success_until = now + OWN_SUCCESS_SPANS * max_open_s

    def has_own_success(self, now: float) -> bool:
        """Returns whether own probes have found the target well, and nothing has failed since."""
        return self.own_success_until is not None and now < self.own_success_until
