"""What this gateway has learned of the endpoints of webhooks: which are throttled, and which want to hear nothing any more.

Kept in memory: a restart, or a change of the endpoint's entry in the config, gives it a fresh start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.policy.jobs.rules import SegmentRules
from gateway.policy.webhooks.rules import WebhookRules, Webhooks
from gateway.policy.webhooks.schedule import IN_FLIGHT, DeliveryResult, rest_s

log = logging.getLogger("gateway.jobs")


@dataclass(slots=True)
class _Standing:
    """Of one endpoint, as long as its entry is the same."""

    rules: WebhookRules
    is_gone: bool = False
    throttled: int = 0
    """So many times in a row."""
    rests_until: float = 0.0


class Endpoints:
    """The endpoints in force, and how many deliveries each may be given now."""

    def __init__(self, webhooks: Callable[[], Webhooks], monotonic: Callable[[], float]) -> None:
        """`webhooks` gives those in force."""
        self._webhooks = webhooks
        self._monotonic = monotonic
        self._standings: dict[str, _Standing] = {}

    def find(self, name: str) -> WebhookRules | None:
        """Returns an endpoint that is in force."""
        return self._webhooks().get(name)

    def segments(self) -> Sequence[SegmentRules]:
        """Returns the segments of deliveries that may be claimed now."""
        now = self._monotonic()
        return [
            SegmentRules(rules.segment, concurrency=1 if standing.throttled else IN_FLIGHT)
            for rules in self._webhooks().values()
            if not (standing := self._standing(rules)).is_gone and standing.rests_until <= now
        ]

    def may_hear(self, rules: WebhookRules) -> bool:
        """Tells whether what was claimed for an endpoint may still be sent to it."""
        standing = self._standing(rules)
        return not standing.is_gone and standing.rests_until <= self._monotonic()

    def note(self, rules: WebhookRules, result: DeliveryResult, asked_s: float | None = None) -> None:
        """Learns from an attempt; `asked_s` is the endpoint's Retry-After."""
        standing = self._standing(rules)
        if result is DeliveryResult.OK:
            standing.throttled = 0
        elif result is DeliveryResult.THROTTLED:
            standing.throttled += 1
            standing.rests_until = self._monotonic() + rest_s(standing.throttled, asked_s)
        elif result is DeliveryResult.GONE and not standing.is_gone:
            standing.is_gone = True
            log.warning(
                "webhook %s answered 410 Gone: it gets nothing any more until its entry in the config changes, or the "
                "gateway starts again; what is for it waits",
                rules.name,
            )

    def _standing(self, rules: WebhookRules) -> _Standing:
        standing = self._standings.get(rules.name)
        if standing is None or standing.rules != rules:
            standing = self._standings[rules.name] = _Standing(rules)
        return standing
