"""Calls that become jobs where they would be refused: whose, when, and what their callers see of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.errors import StoreUnusable
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import ask, end_of, policies, result_of, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, Response, Running, chat, connect, get, post, until
from tests.e2e.replaying import hold

STRICT_KEY = "strict-canary-key-0123456789abcdef"
KEYS = [
    {"name": "nightly", "key": NIGHTLY_KEY, "lane": "batch", "accepts_202": True},
    {"name": "web", "key": WEB_KEY, "accepts_202": True},
    {"name": "strict", "key": STRICT_KEY, "lane": "batch"},
]
BATCH = {"degrade_to_job": {"lanes": ["batch"]}}
_NUMBERS = count()
ONE = {"gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "max_concurrency": 1}]}}


def of(key: str, *headers: str, **extra: Any) -> bytes:
    """A call of this key; each is another one, so that none waits for another's answer."""
    body = {**chat(**extra), "user": f"{next(_NUMBERS)}"}
    return post("/v1/chat/completions", body, f"authorization: Bearer {key}", *headers)


@pytest.fixture
def start_full(start: StartGateway, tmp_path: Path) -> Any:
    """Starts a gateway where one call may run and one may wait."""

    async def started(rules: Mapping[str, Any] = BATCH) -> Running:
        folder = policies(tmp_path, jobs=rules, queue={"max_calls": 1, "max_percent_per_tenant": 100})
        return await start(with_jobs(tmp_path, keys=KEYS, policies=folder, models=ONE))

    return started


@asynccontextmanager
async def full(gateway: Running) -> AsyncIterator[None]:
    """One call runs and one waits until the end."""
    may_end, before = hold(gateway), gateway.upstream_calls()
    await gateway.emulator.configure(ttft_s=1.0)
    async with connect(gateway.url) as first, connect(gateway.url) as second:
        first.send(of(WEB_KEY, stream=True))
        await until(lambda: gateway.upstream_calls() == before + 1)
        second.send(of(WEB_KEY))
        await until(lambda: gateway.gateway._admission.queue.occupancy.calls == 1)
        yield
        may_end.set()
        assert [(await peer.response()).status for peer in (first, second)] == [200, 200]


def code_of(answer: Response) -> Any:
    """The code of an error."""
    return orjson.loads(answer.body)["error"]["code"]


async def test_a_call_that_would_be_refused_is_a_job_where_its_key_accepts_that(start_full: Any) -> None:
    """In the lanes of the policy only; its answer is there later, and header, log and metric say why."""
    gateway = await start_full()
    async with full(gateway):
        taken = await ask(gateway.url, of(NIGHTLY_KEY, stream=True))
        keyed = of(NIGHTLY_KEY, "idempotency-key: k-1")
        again, twice = await ask(gateway.url, keyed), await ask(gateway.url, keyed)
        refused = [await ask(gateway.url, of(key)) for key in (STRICT_KEY, WEB_KEY)]

    assert [code_of(answer) for answer in refused] == ["queue_full"] * 2
    assert taken.status == 202
    job = orjson.loads(taken.body)
    assert taken.header("location") == f"/v1/jobs/{job['id']}"
    assert taken.header("x-gateway-degraded") == "queue_full"
    assert taken.header("retry-after") is not None
    assert (job["status"], job["lane"]) == ("queued", "batch")
    assert orjson.loads(again.body)["id"] == orjson.loads(twice.body)["id"] != job["id"]
    nightly = f"authorization: Bearer {NIGHTLY_KEY}"
    assert (await end_of(gateway.url, job["id"], nightly))["status"] == "succeeded"
    answer = await result_of(gateway.url, job["id"], nightly)
    assert b"data: [DONE]" in answer.body  # as it was asked for
    numbers = (await ask(gateway.url, get("/metrics"))).body
    assert b'gateway_jobs_degraded_total{code="queue_full"} 2.0' in numbers


@pytest.mark.parametrize("rules", [{}, {"degrade_to_job": {"lanes": ["batch"], "when": ["circuit_open"]}}])
async def test_any_other_refusal_stays_one(start_full: Any, rules: Mapping[str, Any]) -> None:
    """Without the policy, or for a reason that it does not name: the answer is what it was, and there is no job."""
    gateway = await start_full(rules)
    async with full(gateway):
        answer = await ask(gateway.url, of(NIGHTLY_KEY))

    assert (answer.status, code_of(answer)) == (503, "queue_full")
    assert answer.header("x-gateway-degraded") is None
    listed = await ask(gateway.url, get("/v1/jobs", f"authorization: Bearer {NIGHTLY_KEY}"))
    assert orjson.loads(listed.body)["data"] == []


async def test_where_no_job_can_be_taken_the_refusal_stays(start_full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller hears what keeps its call out, and nothing of a store that it did not ask for."""
    gateway = await start_full()

    def unusable(_self: object) -> None:
        raise StoreUnusable("the disk is full")

    monkeypatch.setattr(gateway.gateway._jobs.engine, "_open_store", lambda: unusable(None))
    async with full(gateway):
        answer = await ask(gateway.url, of(NIGHTLY_KEY))

    assert (answer.status, code_of(answer)) == (503, "queue_full")
