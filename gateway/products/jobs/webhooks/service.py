"""Deliveries of webhooks, to endpoints of the config and to URLs that requests name.

In this order: signatures; the health of one endpoint; the endpoints of the config; the URLs of requests; and the life of a
delivery.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from standardwebhooks import Webhook

from gateway.core.clock import Clock
from gateway.core.limits.headers import parse_retry_after
from gateway.drivers.outward import FetchRefused, NotPublic, Outward, Unreachable, read_public_url
from gateway.products.jobs.model import MESSAGE_ID, REQUEST_URL, Job, JobEnd, JobError, JobState
from gateway.products.jobs.rules import WEBHOOK_SEGMENT, SegmentRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.webhooks.rules import (
    ENDPOINT,
    EVENT,
    IN_FLIGHT,
    OF,
    REQUEST_KEY,
    REQUESTED,
    REQUESTED_SEGMENT,
    REQUESTS_IN_FLIGHT,
    TENANT,
    TENANT_IN_FLIGHT,
    TIMEOUT_S,
    DeliveryResult,
    WebhookRules,
    Webhooks,
    next_attempt_s,
    rest_s,
    result_of,
)
from gateway.products.jobs.worker import RunningWork

# --- signatures of deliveries ---

USER_AGENT: Final = b"llm-gateway-sidecar"
"""Many a firewall refuses requests that have none."""


def signed_headers(secrets: Sequence[bytes], id: str, body: bytes, now: float) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a delivery: `id` is the same for each attempt, `now` is wall-clock seconds.

    Each secret signs, so that a receiver with either of them can verify it.

    Source: https://github.com/standard-webhooks/standard-webhooks, whose own library signs.
    """
    at = datetime.fromtimestamp(int(now), UTC)
    signatures = " ".join(Webhook(secret).sign(id, at, body.decode()) for secret in secrets)
    return [
        (b"content-type", b"application/json"),
        (b"user-agent", USER_AGENT),
        (b"webhook-id", id.encode()),
        (b"webhook-timestamp", b"%d" % int(now)),
        (b"webhook-signature", signatures.encode()),
    ]


# --- the health of one endpoint, and what it may be sent now; kept in memory ---

LAST_RESULTS: Final = 10
"""The attempts that are remembered, for operators."""
LONGEST_LINE_S: Final = 60.0
_LATEST: Final = 0.3
"""The weight of the latest attempt in how long one takes."""


class AttemptResult(NamedTuple):
    """What an attempt came to."""

    result: DeliveryResult
    why: str
    retry_after_s: float | None = None
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
    """The name, as metrics have it."""
    shown: str
    """The name, as the log may have it: a name of the config, or the origin of a URL."""
    url: str = field(repr=False)
    secrets: tuple[bytes, ...] = field(repr=False)
    outward: Outward
    gone_ends_it: bool
    """An answer that nobody is there any more ends the delivery; else it waits for its endpoint to come back."""
    end: Callable[[AttemptResult | None], None]
    """Gives the turn back, with what came of it; None: it was broken off."""


@dataclass(slots=True)
class EndpointHealth:
    """How one endpoint does."""

    in_flight: int = 0
    is_gone: bool = False
    is_disabled: bool = False
    """An operator has disabled it."""
    throttled: int = 0
    """The times in a row that it was throttled."""
    rests_until: float = 0.0
    last: deque[AttemptResult] = field(default_factory=lambda: deque(maxlen=LAST_RESULTS))
    took_s: float = 1.0
    """About how long an attempt takes."""
    line_ends_at: float = 0.0
    """When the last of those that were put off is to be tried."""

    @property
    def is_off(self) -> bool:
        """Returns whether it is sent nothing until somebody allows it."""
        return self.is_gone or self.is_disabled

    @property
    def most(self) -> int:
        """Returns how many deliveries it may have at a time: after a rest one, until it takes one."""
        return 1 if self.throttled else IN_FLIGHT

    def may_begin(self, now: float) -> bool:
        """Returns whether another delivery may be sent to it."""
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
            self.rests_until = now + rest_s(self.throttled, attempt.retry_after_s)

    def enable(self) -> None:
        """Gives it a fresh start."""
        self.is_gone = self.is_disabled = False
        self.throttled, self.rests_until, self.line_ends_at = 0, 0.0, 0.0


# --- the endpoints of the config: which are throttled, disabled, or want no more deliveries ---

ENDPOINT_RECHECK_S = 5.0
"""A delivery that was claimed in the moment in which its endpoint began to rest, or went, is looked at again so much later."""
log = logging.getLogger("gateway.jobs")


class Endpoints:
    """The endpoints in force, and how many deliveries each may be given now.

    Kept in memory: a restart, or a change of the endpoint's entry in the config, gives it a fresh start.
    """

    def __init__(self, webhooks: Callable[[], Webhooks], monotonic: Callable[[], float], outward: Outward) -> None:
        """`webhooks` gives those in force; what they are sent leaves by `outward`."""
        self._webhooks = webhooks
        self._monotonic = monotonic
        self.outward = outward
        self._standings: dict[str, tuple[WebhookRules, EndpointHealth]] = {}

    def find(self, name: str) -> WebhookRules | None:
        """Returns an endpoint that is in force."""
        return self._webhooks().get(name)

    def segments(self) -> Sequence[SegmentRules]:
        """Returns the segments of deliveries, with how many may run now: none of an endpoint that rests, or is off."""
        found, now = [], self._monotonic()
        for rules in self._webhooks().values():
            standing = self.standing(rules)
            is_silent = standing.is_off or standing.rests_until > now
            found.append(SegmentRules(rules.segment, concurrency=0 if is_silent else standing.most))
        return found

    def turn(self, job: Job) -> DeliveryTurn | float:
        """Returns the right to send a delivery, or for how many seconds it is put off."""
        rules = self.find(job.about[ENDPOINT])
        if rules is None:
            return ENDPOINT_RECHECK_S
        standing, now = self.standing(rules), self._monotonic()
        if standing.is_off or standing.rests_until > now:
            return ENDPOINT_RECHECK_S
        standing.in_flight += 1

        def end(attempt: AttemptResult | None) -> None:
            standing.in_flight -= 1
            if attempt is not None:
                self._note(rules, standing, attempt, now)

        return DeliveryTurn(rules.name, rules.name, rules.url, rules.secrets, self.outward, gone_ends_it=False, end=end)

    def standing(self, rules: WebhookRules) -> EndpointHealth:
        """Returns how an endpoint does, as long as its entry is the same."""
        known = self._standings.get(rules.name)
        if known is None or known[0] != rules:
            known = self._standings[rules.name] = rules, EndpointHealth()
        return known[1]

    def _note(self, rules: WebhookRules, standing: EndpointHealth, attempt: AttemptResult, began_at: float) -> None:
        standing.note(attempt, began_at, self._monotonic())
        if attempt.result is DeliveryResult.GONE and not standing.is_gone:
            standing.is_gone = True
            log.warning(
                "webhook %s answered 410 Gone: it gets nothing any more until its entry in the config changes, the gateway "
                "starts again, or `gateway webhooks enable` says so; what is for it waits",
                rules.name,
            )


# --- URLs that requests name ---

MOST_HOSTS: Final = 4096
"""Hosts that are remembered, because something is under way to them, or they rest."""
KEY_RECHECK_S: Final = 300.0
"""A delivery of a key that is gone, or has no secrets any more, is looked at again so much later."""
_UNREADABLE: Final = "no public URL"

Place = tuple[str, str]
"""Tenant and origin: what one tenant's endpoint has earned does not concern another's at the same host."""


class RequestedUrls:
    """What may be sent to URLs of requests now.

    There may be any number of them: each host delays only itself, and each tenant only himself. They share one segment of jobs,
    so that stores and metrics know nothing of their number. What cannot be sent now is put off, each next delivery to the same
    host a little longer. Bounded: of a host nothing is remembered while there is nothing worth remembering, and of the others
    only so many.
    """

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
        self._standings: OrderedDict[Place, EndpointHealth] = OrderedDict()
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
        """Returns whether requests may name URLs."""
        return self._is_allowed()

    def segments(self) -> Sequence[SegmentRules]:
        """Returns their segment; while URLs are not allowed, what was taken before waits."""
        return [SegmentRules(REQUESTED_SEGMENT, concurrency=REQUESTS_IN_FLIGHT if self._is_allowed() else 0)]

    def turn(self, job: Job) -> DeliveryTurn | float:
        """Returns the right to send a delivery, or for how many seconds it is put off."""
        url, tenant = job.about[REQUEST_URL], job.about[TENANT]
        secrets = self._secrets_of(job.about[REQUEST_KEY])
        if not secrets or not self._is_allowed():
            return KEY_RECHECK_S
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
            # a host that takes what it gets, and gets nothing now, needs no memory; nor does one whose line is over
            is_plain = not standing.in_flight and not standing.throttled and standing.line_ends_at <= self._monotonic()
            if is_plain and self._standings.get(place) is standing:
                del self._standings[place]

        return DeliveryTurn(REQUESTED, f"at {origin}", url, secrets, self._outward, gone_ends_it=True, end=end)

    def _standing(self, place: Place) -> EndpointHealth:
        standing = self._standings.get(place)
        if standing is None:
            if len(self._standings) >= MOST_HOSTS:
                self._forget_one()
            standing = self._standings[place] = EndpointHealth()
        self._standings.move_to_end(place)
        return standing

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


# --- the life of a delivery: posted to one endpoint until it is taken, or was tried as often as may be ---


def delivery_segments(endpoints: Endpoints, requested: RequestedUrls, store: JobStore) -> Sequence[SegmentRules]:
    """Returns all segments of deliveries, those that rest, are off or have left the config with no room: what waits there is
    not even looked at."""
    known = [*endpoints.segments(), *requested.segments()]
    names = {one.name for one in known}
    gone = {segment for segment, _, _ in store.depth() if segment.startswith(WEBHOOK_SEGMENT)} - names
    return [*known, *(SegmentRules(segment, concurrency=0) for segment in sorted(gone))]


class Deliveries:
    """Runs jobs of kind `delivery`.

    A delivery is at least once: one that was cut off may have arrived, and comes again under the same `webhook-id`. What it is
    signed with, and where it goes, is looked up anew for each attempt.
    """

    def __init__(
        self,
        store: JobStore,
        endpoints: Endpoints,
        requested: RequestedUrls,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._store = store
        self._endpoints = endpoints
        self._requested = requested
        self._clock = clock
        self._draw = draw

    async def run(self, running: RunningWork) -> None:
        """Tries a delivery once, and ends its claim."""
        job = running.work.job
        places = self._requested if job.about[ENDPOINT] == REQUESTED else self._endpoints
        turn = places.turn(job)
        if not isinstance(turn, DeliveryTurn):
            # the endpoint may not be sent anything for so many seconds; that is no attempt
            await running.give_back(self._store, self._clock.wall() + turn)
            return
        attempt: AttemptResult | None = None
        try:
            attempt = await self._post(turn, running)
        finally:
            turn.end(attempt)
        if running.meter is not None:
            running.meter.delivered(turn.name, attempt.result.value)
        if attempt.result is DeliveryResult.OK:
            await running.finish(self._store, JobEnd(JobState.SUCCEEDED, is_attempt=True))
        else:
            await self._failed(running, turn, attempt)

    async def _post(self, turn: DeliveryTurn, running: RunningWork) -> AttemptResult:
        """Returns what came of an attempt."""
        work, now = running.work, self._clock.wall()
        event, of = work.job.about[EVENT], work.job.about[OF]
        receivers_now = now - self._clock.ahead_s  # they refuse what is signed by another time than theirs
        headers = signed_headers(turn.secrets, work.job.about.get(MESSAGE_ID, work.job.id), work.payload, receivers_now)
        try:
            answer = await turn.outward.post(turn.url, headers, work.payload, TIMEOUT_S)
        except FetchRefused as error:
            return AttemptResult(DeliveryResult.REFUSED, str(error), None, now, event, of)
        except Unreachable as error:
            return AttemptResult(DeliveryResult.UNREACHABLE, str(error), None, now, event, of)
        retry_after_s = parse_retry_after(answer.retry_after, receivers_now) if answer.retry_after else None
        return AttemptResult(result_of(answer.status), f"the answer was {answer.status}", retry_after_s, now, event, of)

    async def _failed(self, running: RunningWork, turn: DeliveryTurn, attempt: AttemptResult) -> None:
        job, now = running.work.job, self._clock.wall()
        error = JobError(f"webhook_{attempt.result.value}", attempt.why, now)
        attempts = job.attempts + 1
        wait_s = next_attempt_s(attempts, self._draw(), attempt.retry_after_s)
        is_last = attempt.result is DeliveryResult.REFUSED or (
            attempt.result is DeliveryResult.GONE and turn.gone_ends_it
        )
        if wait_s is None or is_last or running.ends_as is not None:
            log.warning(
                "webhook %s was not told of %s (%s) in %d attempts: %s",
                *(turn.shown, job.about[OF], job.about[EVENT], attempts, attempt.why),
            )
            await running.finish(self._store, JobEnd(running.ends_as or JobState.FAILED, error, is_attempt=True))
            return
        await running.give_back(self._store, now + wait_s, error, is_attempt=True)
