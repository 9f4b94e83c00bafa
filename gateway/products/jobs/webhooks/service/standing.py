"""What this gateway has learned of one endpoint of webhooks, and what it may be sent now. Kept in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.products.jobs.webhooks.outward.job_ports_outward import Outward
from gateway.products.jobs.webhooks.rules.schedule import IN_FLIGHT, TIMEOUT_S, DeliveryResult, rest_s

LAST_RESULTS: Final = 10
"""Attempts that are remembered, for operators."""
LONGEST_LINE_S: Final = 60.0
_LATEST: Final = 0.3
"""The weight of the latest attempt in how long one takes."""


class AttemptResult(NamedTuple):
    """What an attempt came to."""

    result: DeliveryResult
    why: str
    asked_s: float | None = None
    """The endpoint's Retry-After."""
    at: float = 0.0
    """Wall-clock seconds."""
    event: str = ""
    of: str = ""
    """The id of the job that the event is about."""


@dataclass(frozen=True, slots=True)
class DeliveryTurn:
    """The right to send one delivery now, and all that it takes."""

    name: str
    """As metrics have it."""
    shown: str
    """As the log may have it: a name of the config, or the origin of a URL."""
    url: str = field(repr=False)
    secrets: tuple[bytes, ...] = field(repr=False)
    outward: Outward
    gone_ends_it: bool
    """Told that nobody is there any more, the delivery ends; else it waits for its endpoint to come back."""
    end: Callable[[AttemptResult | None], None]
    """Gives the turn back, with what came of it; None: it was broken off."""


@dataclass(slots=True)
class HookStanding:
    """How one endpoint does."""

    in_flight: int = 0
    is_gone: bool = False
    is_disabled: bool = False
    """By an operator."""
    throttled: int = 0
    """So many times in a row."""
    rests_until: float = 0.0
    last: deque[AttemptResult] = field(default_factory=lambda: deque(maxlen=LAST_RESULTS))
    took_s: float = 1.0
    """About how long an attempt takes."""
    line_ends_at: float = 0.0
    """When the last of those that were put off is to be tried."""

    @property
    def is_off(self) -> bool:
        """Tells whether it is to hear nothing until somebody says otherwise."""
        return self.is_gone or self.is_disabled

    @property
    def most(self) -> int:
        """Returns how many deliveries it may have at a time: after a rest one, until it takes one."""
        return 1 if self.throttled else IN_FLIGHT

    def may_begin(self, now: float) -> bool:
        """Tells whether another delivery may be sent to it."""
        return not self.is_off and self.rests_until <= now and self.in_flight < self.most

    def line_up(self, now: float) -> float:
        """Returns for how many seconds a delivery is put off that cannot be sent now: each next one for a little longer, as
        long as those before it will take. A line longer than `LONGEST_LINE_S` begins anew: an endpoint that was slow may be
        fast again."""
        begins_at = max(now, self.rests_until)
        if not begins_at <= self.line_ends_at < begins_at + LONGEST_LINE_S:
            self.line_ends_at = begins_at
        self.line_ends_at += self.took_s / self.most
        return self.line_ends_at - now

    def note(self, attempt: AttemptResult, began_at: float, now: float) -> None:
        """Learns from an attempt."""
        self.last.append(attempt)
        self.took_s += _LATEST * (min(now - began_at, TIMEOUT_S) - self.took_s)
        if attempt.result is DeliveryResult.OK:
            self.throttled = 0
        elif attempt.result is DeliveryResult.THROTTLED:
            self.throttled += 1
            self.rests_until = now + rest_s(self.throttled, attempt.asked_s)

    def enable(self) -> None:
        """Gives it a fresh start."""
        self.is_gone = self.is_disabled = False
        self.throttled, self.rests_until, self.line_ends_at = 0, 0.0, 0.0
