"""The endpoints of the config: which are throttled, disabled, or want to hear nothing any more.

Kept in memory: a restart, or a change of the endpoint's entry in the config, gives it a fresh start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.products.jobs.model.job import Job
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.webhooks.outward.job_ports_outward import Outward
from gateway.products.jobs.webhooks.rules.events import ENDPOINT
from gateway.products.jobs.webhooks.rules.rules import WebhookRules, Webhooks
from gateway.products.jobs.webhooks.rules.schedule import DeliveryResult
from gateway.products.jobs.webhooks.service.standing import AttemptResult, DeliveryTurn, HookStanding

LOOK_AGAIN_S = 5.0
"""A delivery that was claimed in the moment in which its endpoint began to rest, or went, is looked at again so much later."""
log = logging.getLogger("gateway.jobs")


class Endpoints:
    """The endpoints in force, and how many deliveries each may be given now."""

    def __init__(self, webhooks: Callable[[], Webhooks], monotonic: Callable[[], float], outward: Outward) -> None:
        """`webhooks` gives those in force; what they are told leaves by `outward`."""
        self._webhooks = webhooks
        self._monotonic = monotonic
        self.outward = outward
        self._standings: dict[str, tuple[WebhookRules, HookStanding]] = {}

    def find(self, name: str) -> WebhookRules | None:
        """Returns an endpoint that is in force."""
        return self._webhooks().get(name)

    def segments(self) -> Sequence[SegmentRules]:
        """Returns the segments of deliveries, with how many may run now: none of an endpoint that rests, or is off."""
        now = self._monotonic()
        return [self._segment(rules, now) for rules in self._webhooks().values()]

    def turn(self, job: Job) -> DeliveryTurn | float:
        """Returns the right to send a delivery, or for how many seconds it is put off."""
        rules = self.find(job.about[ENDPOINT])
        if rules is None:
            return LOOK_AGAIN_S
        standing, now = self.standing(rules), self._monotonic()
        if standing.is_off or standing.rests_until > now:
            return LOOK_AGAIN_S
        standing.in_flight += 1

        def end(attempt: AttemptResult | None) -> None:
            standing.in_flight -= 1
            if attempt is not None:
                self._note(rules, standing, attempt, now)

        return DeliveryTurn(rules.name, rules.name, rules.url, rules.secrets, self.outward, gone_ends_it=False, end=end)

    def standing(self, rules: WebhookRules) -> HookStanding:
        """Returns how an endpoint does, as long as its entry is the same."""
        known = self._standings.get(rules.name)
        if known is None or known[0] != rules:
            known = self._standings[rules.name] = rules, HookStanding()
        return known[1]

    def _segment(self, rules: WebhookRules, now: float) -> SegmentRules:
        standing = self.standing(rules)
        is_silent = standing.is_off or standing.rests_until > now
        return SegmentRules(rules.segment, concurrency=0 if is_silent else standing.most)

    def _note(self, rules: WebhookRules, standing: HookStanding, attempt: AttemptResult, began_at: float) -> None:
        standing.note(attempt, began_at, self._monotonic())
        if attempt.result is DeliveryResult.GONE and not standing.is_gone:
            standing.is_gone = True
            log.warning(
                "webhook %s answered 410 Gone: it gets nothing any more until its entry in the config changes, the gateway "
                "starts again, or `gateway webhooks enable` says so; what is for it waits",
                rules.name,
            )
