"""The URLs that requests name: any number of them, of which each host delays only itself, and each tenant only himself.

They share one segment of jobs, so that stores and metrics know nothing of their number. What cannot be sent now is put off,
each next delivery to the same host a little longer. Bounded: of a host nothing is remembered while there is nothing worth
remembering, and of the others only so many.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.errors import InvalidRequest
from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.rules import JobRules, SegmentRules
from gateway.products.jobs.webhooks.outward.job_ports_outward import Outward
from gateway.products.jobs.webhooks.outward.public_address import NotPublic, read_public_url
from gateway.products.jobs.webhooks.rules.events import REQUEST_KEY, REQUEST_URL, TENANT
from gateway.products.jobs.webhooks.rules.rules import REQUESTED, REQUESTED_SEGMENT
from gateway.products.jobs.webhooks.rules.schedule import REQUESTS_IN_FLIGHT, TENANT_IN_FLIGHT
from gateway.products.jobs.webhooks.service.standing import LAST_RESULTS, AttemptResult, DeliveryTurn, HookStanding

MOST_HOSTS: Final = 4096
"""Hosts that are remembered, because something is under way to them, or they rest."""
LOOK_AGAIN_S: Final = 300.0
"""A delivery of a key that is gone, or has no secrets any more, is looked at again so much later."""
_UNREADABLE: Final = "no public URL"

Place = tuple[str, str]
"""Tenant and origin: what one tenant's endpoint has earned does not concern another's at the same host."""


class WebhookNotAllowed(InvalidRequest):
    """Requests may not name URLs here, or those of this key may not."""

    code = "webhook_not_allowed"


def refuse_request_url(url: str, rules: JobRules, key: Key) -> None:
    """Raises WebhookNotAllowed where a request named a URL, and may not; an empty one was not named."""
    if url and not rules.allow_request_urls:
        raise WebhookNotAllowed(
            "URLs in requests ('webhook', x-gateway-webhook) are not allowed here; set allow_request_urls: true in "
            "policies/jobs.yaml, or name the endpoint in the config's section 'webhooks'.",
            param="webhook",
        )
    if url and not key.webhook_secrets:
        raise WebhookNotAllowed(
            f"Nothing would sign what the URL in 'webhook' is told: give the key '{key.name}' webhook_secrets in the "
            "config, or webhook_settings.request_secrets where there are no keys.",
            param="webhook",
        )


class RequestedUrls:
    """What may be sent to URLs of requests now."""

    def __init__(
        self,
        is_allowed: Callable[[], bool],
        secrets_of: Callable[[str], tuple[bytes, ...]],
        monotonic: Callable[[], float],
        outward: Outward,
    ) -> None:
        """`secrets_of` gives those of a key, by its name, none where it is gone; `outward` is guarded."""
        self._is_allowed = is_allowed
        self._secrets_of = secrets_of
        self._monotonic = monotonic
        self._outward = outward
        self._standings: OrderedDict[Place, HookStanding] = OrderedDict()
        self._by_tenant: Counter[str] = Counter()
        self.last: deque[AttemptResult] = deque(maxlen=LAST_RESULTS)
        """The last attempts at all of them."""

    def __len__(self) -> int:
        return len(self._standings)

    @property
    def in_flight(self) -> int:
        """Returns how many deliveries are under way."""
        return self._by_tenant.total()

    @property
    def resting(self) -> int:
        """Returns how many hosts are left alone for a while."""
        now = self._monotonic()
        return sum(standing.rests_until > now for standing in self._standings.values())

    @property
    def is_allowed(self) -> bool:
        """Tells whether requests may name URLs."""
        return self._is_allowed()

    def segments(self) -> Sequence[SegmentRules]:
        """Returns their segment; while URLs are not allowed, what was taken before waits."""
        return [SegmentRules(REQUESTED_SEGMENT, concurrency=REQUESTS_IN_FLIGHT if self._is_allowed() else 0)]

    def turn(self, job: Job) -> DeliveryTurn | float:
        """Returns the right to send a delivery, or for how many seconds it is put off."""
        url, tenant = job.about[REQUEST_URL], job.about[TENANT]
        secrets = self._secrets_of(job.about[REQUEST_KEY])
        if not secrets or not self._is_allowed():
            return LOOK_AGAIN_S
        origin, now = _origin_of(url), self._monotonic()
        place = tenant, origin
        standing = self._standing(place)
        if not standing.may_begin(now) or self._by_tenant[tenant] >= TENANT_IN_FLIGHT:
            return standing.line_up(now)
        standing.in_flight += 1
        self._by_tenant[tenant] += 1

        def end(attempt: AttemptResult | None) -> None:
            standing.in_flight -= 1
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
            if attempt is not None:
                standing.note(attempt, now, self._monotonic())
                self.last.append(attempt)
            self._forget_if_plain(place, standing)

        return DeliveryTurn(REQUESTED, f"at {origin}", url, secrets, self._outward, gone_ends_it=True, end=end)

    def _standing(self, place: Place) -> HookStanding:
        standing = self._standings.get(place)
        if standing is None:
            if len(self._standings) >= MOST_HOSTS:
                self._forget_one()
            standing = self._standings[place] = HookStanding()
        self._standings.move_to_end(place)
        return standing

    def _forget_if_plain(self, place: Place, standing: HookStanding) -> None:
        """A host that takes what it gets, and gets nothing now, needs no memory; nor does one whose line is over."""
        is_plain = not standing.in_flight and not standing.throttled and standing.line_ends_at <= self._monotonic()
        if is_plain and self._standings.get(place) is standing:
            del self._standings[place]

    def _forget_one(self) -> None:
        """Forgets the host that was in use longest ago, never one that something is under way to: these are few."""
        place = next((place for place, standing in self._standings.items() if not standing.in_flight), None)
        if place is not None:
            del self._standings[place]


def _origin_of(url: str) -> str:
    try:
        return read_public_url(url).origin
    except NotPublic:  # it was taken under other rules; the guard refuses it once more
        return _UNREADABLE
