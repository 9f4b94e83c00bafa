"""The rules of webhooks: the compiled section `webhooks` of the config, when a delivery is tried, and what it says; in this
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

from gateway.core.snapshot import Setting
from gateway.products.jobs.model import (
    DELIVERY_DEADLINE_S,
    MESSAGE_ID,
    REQUEST_URL,
    STATUS,
    Job,
    JobKind,
    JobState,
    NewJob,
    derived_event_ids,
    derived_redelivery_id,
)
from gateway.products.jobs.rules import WEBHOOK_SEGMENT

REQUESTED: Final = "(requests)"
"""Stands for all URLs that requests name, where endpoints of the config have their names: in metrics, and as one segment,
for there may be any number of such URLs. No endpoint of the config has this name.
"""
REQUESTED_SEGMENT: Final = f"{WEBHOOK_SEGMENT}{REQUESTED}"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How webhooks leave; the first two are read at start."""

    egress_proxy: str | None = field(default=None, repr=False)
    """Through which all webhooks go; its URL may hold a password."""
    ca_file: str | None = None
    """Authorities that are trusted besides the system's."""
    request_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Sign what goes to URLs of requests, where the gateway has no keys."""


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """An endpoint that is notified of the ends of jobs."""

    name: str
    origin: str
    """Scheme, host and port of the URL, which may be shown."""
    url: str = field(repr=False)
    """Its path and query may hold a secret."""
    secrets: tuple[bytes, ...] = field(repr=False)
    """Each of them signs, so that receivers can change from one to the other at their leisure."""
    events: tuple[str, ...] = ("*",)
    """Patterns of `fnmatch`."""
    tenants: tuple[str, ...] = ()
    """Empty: of everybody's jobs."""

    @property
    def segment(self) -> str:
        """Returns the segment of its deliveries."""
        return f"{WEBHOOK_SEGMENT}{self.name}"

    def hears(self, event: str, tenant: str) -> bool:
        """Returns whether an event is delivered to it, about a tenant's job; a tenant includes those below it (`acme/x`)."""
        is_subscribed = any(fnmatchcase(event, pattern) for pattern in self.events)
        return is_subscribed and (
            not self.tenants or any(tenant == one or tenant.startswith(f"{one}/") for one in self.tenants)
        )


Webhooks = Mapping[str, WebhookRules]
"""The endpoints by name, in the order of the config."""
WEBHOOKS: Final[Setting[Webhooks]] = Setting("webhooks", {})
"""The receivers of the ends of jobs, by name."""
WEBHOOK_SETTINGS: Final[Setting[WebhookSettings]] = Setting("webhook_settings", WebhookSettings())


# --- when a delivery is tried, and what an endpoint's answer means for it and for the endpoint ---

SCHEDULE_S: Final = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds from the event to the first attempt, and from each attempt to the next: ten attempts over about 75 hours.

Source: the Standard Webhooks specification, "Deliverability and Reliability".
"""
JITTER: Final = 0.2
"""Each wait is as much as this longer or shorter, so that what failed together is not tried again together."""
TIMEOUT_S: Final = 15.0
"""Seconds from the connection to the end of the answer."""
IN_FLIGHT: Final = 4
"""Deliveries to one endpoint that are under way in one gateway."""
REQUESTS_IN_FLIGHT, TENANT_IN_FLIGHT = 64, 16
"""Deliveries to URLs of requests that are under way in one gateway, and those of one tenant among them: whoever names many
slow hosts delays himself.
"""
_LONGEST_RETRY_AFTER_S: Final = 86_400.0
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


def next_attempt_s(attempts: int, draw: float, retry_after_s: float | None = None) -> float | None:
    """Returns how long to wait after so many attempts, at least 1, have failed; None: that was the last one.

    `draw` is uniform from [0, 1). `retry_after_s` is the endpoint's Retry-After, which can only make the wait longer, and at
    most a day: one that asks to be tried at once would see all attempts within seconds.
    """
    if attempts >= len(SCHEDULE_S):
        return None
    wait_s = SCHEDULE_S[attempts] * (1.0 + JITTER * (2.0 * draw - 1.0))
    return wait_s if retry_after_s is None else max(wait_s, min(retry_after_s, _LONGEST_RETRY_AFTER_S))


def rest_s(throttled: int, retry_after_s: float | None = None) -> float:
    """Returns how long an endpoint is left alone that was throttled so many times in a row, at least 1."""
    wait_s = min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(throttled - 1, 16))
    return wait_s if retry_after_s is None else max(wait_s, min(retry_after_s, _LONGEST_RETRY_AFTER_S))


# --- events, in OpenAI's words where it has some: those of batches are its own, those of jobs are ours ---

ENDPOINT: Final = "webhook"
"""The name of the endpoint in `about`."""
EVENT: Final = "event"
OF: Final = "of"
"""The id of the job that has ended."""
TENANT: Final = "tenant"
"""The tenant whose job it was."""
REQUEST_KEY: Final = "webhook_key"
"""The name of the key whose secrets sign the delivery."""
EVENT_AT: Final = "event_at"
"""When the job had ended, in `about` of a delivery that is made again."""
TEST_EVENT: Final = "test"
"""Sent by hand; `data.id` is the endpoint's name."""
_OWN: Final = (ENDPOINT, EVENT, OF, TENANT, REQUEST_URL, REQUEST_KEY, MESSAGE_ID, EVENT_AT)
_BATCH: Final = {
    JobState.SUCCEEDED: "batch.completed",
    JobState.FAILED: "batch.failed",
    JobState.EXPIRED: "batch.expired",
    JobState.CANCELLED: "batch.cancelled",
}
_CALL: Final = {
    JobState.SUCCEEDED: "job.succeeded",
    JobState.FAILED: "job.failed",
    JobState.EXPIRED: "job.expired",
    JobState.CANCELLED: "job.cancelled",
}
_RESPONSE: Final = {
    JobState.SUCCEEDED: "response.completed",
    JobState.FAILED: "response.failed",
    JobState.EXPIRED: "response.failed",
    JobState.CANCELLED: "response.cancelled",
}
_INCOMPLETE: Final = "response.incomplete"
_BY_KIND: Final = {JobKind.CALL: _CALL, JobKind.BATCH: _BATCH, JobKind.RESPONSE: _RESPONSE, JobKind.RUN: _CALL}
EVENTS: Final = (*_BATCH.values(), *dict.fromkeys(_RESPONSE.values()), _INCOMPLETE, *_CALL.values())
"""All events that there are."""


def deliveries_of(ended: Job, webhooks: Webhooks) -> Sequence[NewJob]:
    """Returns the deliveries that follow from a job's end, one for each endpoint that is to hear of it, and for its own URL.

    Always the same for the same job and endpoints. Deliveries themselves end unheard.
    """
    if ended.parent:
        return ()  # a step: its run is what somebody waits for
    event = _BY_KIND.get(ended.kind, {}).get(ended.state)
    if ended.kind is JobKind.RESPONSE and ended.marks.get(STATUS) == "incomplete":
        event = _INCOMPLETE
    url = ended.about.get(REQUEST_URL)
    if event is None or not (webhooks or url):
        return ()
    subscribed = [rules for rules in webhooks.values() if rules.hears(event, ended.tenant)]
    deliveries = [_delivery(ended, event, rules.name, rules.segment) for rules in subscribed]
    if url:
        whose = {REQUEST_URL: url, REQUEST_KEY: ended.key}
        deliveries.append(_delivery(ended, event, REQUESTED, REQUESTED_SEGMENT, whose))
    return deliveries


def _delivery(ended: Job, event: str, name: str, segment: str, whose: Mapping[str, str] | None = None) -> NewJob:
    ended_at = ended.ended_at or ended.created_at
    _, delivery_id = derived_event_ids(ended.id, name)
    about = {ENDPOINT: name, EVENT: event, OF: ended.id, TENANT: ended.tenant, **(whose or {})}
    job = _delivery_job(delivery_id, segment, ended_at, about)
    return NewJob(job, payload=event_body(event, ended.id, ended_at))


def event_body(event: str, of: str, at: float) -> bytes:
    """Returns what is posted: an event about the job `of`, always the same for the same one.

    An event says that something has ended, and whose id to ask for; never what came of it. So a delivery that comes late, twice
    or into the wrong hands says nothing that is out of date or secret. Source: openai-python `types/webhooks`, 2026-11;
    https://github.com/standard-webhooks/standard-webhooks.
    """
    id = derived_event_ids(of, "")[0]
    return orjson.dumps({"id": id, "object": "event", "created_at": int(at), "type": event, "data": {"id": of}})


def redelivery_of(ended: Job, now: float) -> NewJob:
    """Returns the delivery that says again what an ended one was to say, under the same `webhook-id`, with all its attempts.

    Its id follows from the ended one's, so that it is accepted once, however often that is asked for.
    """
    about = {name: value for name, value in ended.about.items() if name in _OWN}
    at = about.setdefault(EVENT_AT, ended.created_at)
    about.setdefault(MESSAGE_ID, ended.id)
    job = _delivery_job(derived_redelivery_id(ended.id), ended.segment, now, about)
    return NewJob(job, payload=event_body(about[EVENT], about[OF], at))


def _delivery_job(id: str, segment: str, now: float, about: Mapping[str, Any]) -> Job:
    return Job(
        id=id,
        kind=JobKind.DELIVERY,
        tenant="",
        key="",
        lane="background",
        segment=segment,
        is_urgent=False,
        model="",
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=now + DELIVERY_DEADLINE_S,
        max_attempts=len(SCHEDULE_S),
        about=about,
    )
