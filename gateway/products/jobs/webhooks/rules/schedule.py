"""When a delivery is tried, and what an endpoint's answer means for it and for the endpoint.

Source of the schedule: the Standard Webhooks specification, "Deliverability and Reliability": ten attempts over about 75 hours.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SCHEDULE_S: Final = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds from the event to the first attempt, and from each attempt to the next."""
JITTER: Final = 0.2
"""Each wait is as much as this longer or shorter, so that what failed together is not tried again together."""
DEADLINE_S: Final = 7 * 86_400.0
"""What was not delivered by then, because its endpoint was disabled, throttled or gone from the config, never is."""
TIMEOUT_S: Final = 15.0
"""From the connection to the end of the answer."""
IN_FLIGHT: Final = 4
"""Deliveries to one endpoint that are under way in one gateway."""
REQUESTS_IN_FLIGHT, TENANT_IN_FLIGHT = 64, 16
"""Deliveries to URLs of requests that are under way in one gateway, and those of one tenant among them: whoever names many
slow hosts delays himself.
"""
_LONGEST_ASKED_S: Final = 86_400.0
_FIRST_REST_S, _LONGEST_REST_S = 5.0, 300.0
_THROTTLING: Final = frozenset((429, 502, 504))


class DeliveryResult(Enum):
    """What an attempt came to. The values are labels of a metric."""

    OK = "ok"
    FAILED = "failed"
    """Any other answer: a redirect, too, which is never followed."""
    THROTTLED = "throttled"
    """The endpoint has too much to do: it is left alone for a while, and gets one at a time until it takes one."""
    GONE = "gone"
    """410: the endpoint wants to hear nothing any more."""
    UNREACHABLE = "unreachable"
    """There was no answer, or none in time."""
    REFUSED = "refused"
    """The guard let nothing out: the URL of a request leads to no public address."""


def result_of(status: int) -> DeliveryResult:
    """Returns what an answer with this status means."""
    if 200 <= status < 300:
        return DeliveryResult.OK
    if status == 410:
        return DeliveryResult.GONE
    return DeliveryResult.THROTTLED if status in _THROTTLING else DeliveryResult.FAILED


def next_attempt_s(attempts: int, draw: float, asked_s: float | None = None) -> float | None:
    """Returns how long to wait after so many attempts, at least 1, have failed; None: that was the last one.

    `draw` is uniform from [0, 1). `asked_s` is the endpoint's Retry-After, which can only make the wait longer, and at most a
    day: one that asks to be tried at once would see all attempts within seconds.
    """
    if attempts >= len(SCHEDULE_S):
        return None
    wait_s = SCHEDULE_S[attempts] * (1.0 + JITTER * (2.0 * draw - 1.0))
    return wait_s if asked_s is None else max(wait_s, min(asked_s, _LONGEST_ASKED_S))


def rest_s(throttled: int, asked_s: float | None = None) -> float:
    """Returns how long an endpoint is left alone that was throttled so many times in a row, at least 1."""
    wait_s = min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(throttled - 1, 16))
    return wait_s if asked_s is None else max(wait_s, min(asked_s, _LONGEST_ASKED_S))
