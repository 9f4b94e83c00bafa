"""What webhooks are told, in OpenAI's words where OpenAI has some: the events of batches are its own, those of jobs are ours.

An event says that something has ended, and whose id to ask for; never what came of it. So a delivery that comes late, twice or
into the wrong hands tells nothing that is out of date or secret.
Source: openai-python `types/webhooks`, 2026-11; https://github.com/standard-webhooks/standard-webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.products.jobs.model.ids import derived_event_ids, derived_redelivery_id
from gateway.products.jobs.model.job import Job, JobKind, JobState, NewJob
from gateway.products.jobs.webhooks.rules.rules import REQUESTED, REQUESTED_SEGMENT, Webhooks
from gateway.products.jobs.webhooks.rules.schedule import DEADLINE_S, SCHEDULE_S
from gateway.products.responses.rules.response_object.stored_response import STATUS

ENDPOINT: Final = "webhook"
"""The name of the endpoint in `about`."""
EVENT: Final = "event"
OF: Final = "of"
"""The id of the job that has ended."""
TENANT: Final = "tenant"
"""Whose job it was."""
REQUEST_URL: Final = "webhook_url"
"""The URL that a request named, in `about` of its job and of the delivery."""
REQUEST_KEY: Final = "webhook_key"
"""The name of the key whose secrets sign the delivery."""
MESSAGE_ID: Final = "webhook_id"
"""The `webhook-id` of a delivery that is made again, in `about`; of the first one it is the job's own."""
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
    hearing = [rules for rules in webhooks.values() if rules.hears(event, ended.tenant)]
    deliveries = [_delivery(ended, event, rules.name, rules.segment) for rules in hearing]
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
    """Returns what is posted: an event about the job `of`, always the same for the same one."""
    id = derived_event_ids(of, "")[0]
    return orjson.dumps({"id": id, "object": "event", "created_at": int(at), "type": event, "data": {"id": of}})


def redelivery_of(ended: Job, now: float) -> NewJob:
    """Returns the delivery that tells again what an ended one was to tell, under the same `webhook-id`, with all its attempts.

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
        deadline=now + DEADLINE_S,
        max_attempts=len(SCHEDULE_S),
        about=about,
    )
