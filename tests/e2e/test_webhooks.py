"""Webhooks over the wire: a real gateway, a real receiver, and the verifiers of OpenAI's SDK and of Standard Webhooks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.webhooks import BatchCompletedWebhookEvent
from standardwebhooks import Webhook, WebhookVerificationError

from tests.e2e.batches import begin, end_of, line
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import WEB, ask, becomes, new_job, take, with_jobs
from tests.e2e.harness import get, until
from tests.receiver import OK, Receiver, receiver

NEW, OLD = bytes(range(32)), b"the secret of the year before this one"
NEW_TEXT = "whsec_" + base64.b64encode(NEW).decode()


def telling(there: Receiver, **fields: Any) -> dict[str, Any]:
    """The section `webhooks` with one endpoint."""
    return {"crm": {"url": there.url, "secrets": [NEW_TEXT, OLD.decode()], **fields}}


def parts(request: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body of what was received."""
    head, _, body = request.partition(b"\r\n\r\n")
    fields = (line.decode().partition(": ")[::2] for line in head.split(b"\r\n")[1:])
    return {name.lower(): value for name, value in fields}, body


def types(there: Receiver) -> dict[str, str]:
    """What was told, by the id of the job."""
    events = [orjson.loads(parts(request)[1]) for request in there.requests]
    return {event["data"]["id"]: event["type"] for event in events}


async def test_the_official_sdk_unwraps_what_is_told(start: StartGateway, tmp_path: Path) -> None:
    """With either secret; and the library of Standard Webhooks verifies the same bytes. A changed body is refused."""
    async with receiver(OK) as there:
        gateway = await start(with_jobs(tmp_path, webhooks=telling(there)))
        async with gateway.sdk() as sdk:
            batch = await end_of(sdk, (await begin(sdk, [line("a"), line("b")])).id)
        job = await take(gateway.url, new_job())
        await until(lambda: len(there.requests) == 2)
        metrics = (await ask(gateway.url, get("/metrics", WEB))).body.decode()

    assert types(there) == {batch.id: "batch.completed", job["id"]: "job.succeeded"}
    headers, body = next(parts(one) for one in there.requests if batch.id.encode() in one)
    assert headers["user-agent"]
    for secret in (NEW_TEXT, OLD.decode()):
        client = openai.OpenAI(api_key="unused", webhook_secret=secret)
        event = client.webhooks.unwrap(body, headers)
        assert isinstance(event, BatchCompletedWebhookEvent)
        assert (event.data.id, event.object) == (batch.id, "event")
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body + b" ", headers)
    for key in (NEW, OLD):
        assert Webhook(key).verify(body, headers)["type"] == "batch.completed"
    with pytest.raises(WebhookVerificationError):
        Webhook(b"some other secret of no use").verify(body, headers)
    assert 'gateway_webhook_deliveries_total{endpoint="crm",result="ok"}' in metrics


async def test_what_was_not_taken_before_a_restart_is_told_after_it(start: StartGateway, tmp_path: Path) -> None:
    """Under the same id: the receiver may have heard of it already."""
    async with receiver(None) as there:
        config = with_jobs(tmp_path, webhooks=telling(there))
        first = await start(config)
        job = await take(first.url, new_job())
        await until(lambda: len(there.requests) == 1)
        await first.stop()
        there.answer = OK
        await start(config)
        await until(lambda: len(there.requests) == 2)

    before, after = (parts(one) for one in there.requests)
    assert before[1] == after[1]
    assert before[0]["webhook-id"] == after[0]["webhook-id"]
    assert types(there) == {job["id"]: "job.succeeded"}


async def test_only_those_who_asked_hear_of_it(start: StartGateway, tmp_path: Path) -> None:
    """By event and by tenant; and callers never meet deliveries."""
    async with receiver(OK) as there:
        hooks = {
            "batches": {**telling(there)["crm"], "events": ["batch.*"]},
            "nightly": {**telling(there)["crm"], "tenants": ["nightly"]},
            "web": {**telling(there)["crm"], "tenants": ["web"], "events": ["job.cancelled", "job.succeeded"]},
        }
        gateway = await start(with_jobs(tmp_path, webhooks=hooks))
        job = await take(gateway.url, new_job())
        await becomes(gateway.url, job["id"], "succeeded")
        await until(lambda: len(there.requests) >= 1)
        late = await take(gateway.url, new_job(delay=3600))
        async with gateway.sdk() as sdk:
            await sdk.post(f"/jobs/{late['id']}/cancel", cast_to=object)
            await until(lambda: len(there.requests) >= 2)
            listed: Any = await sdk.get("/jobs", cast_to=object)

    assert types(there) == {job["id"]: "job.succeeded", late["id"]: "job.cancelled"}
    assert len(there.requests) == 2
    assert {one["id"] for one in listed["data"]} == {job["id"], late["id"]}
