"""One `Idempotency-Key` on calls that are served at once and on jobs, in every order: paid for once, found again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.products.jobs.model import JobFlag, NewJob
from gateway.products.jobs.redis import RedisJobStore
from gateway.products.jobs.redis_acceptance import Sent
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import ASYNC, ask, end_of, policies, result_of, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, Response, Running, chat, get, post, until
from tests.e2e.test_degrade import BATCH, KEYS, ONE, code_of, full
from tests.support.redis_servers import RedisServer

NIGHTLY = f"authorization: Bearer {NIGHTLY_KEY}"


def keyed(key: str, *headers: str, query: str = "", **extra: Any) -> bytes:
    """A call under this key."""
    return post(f"/v1/chat/completions{query}", chat(**extra), NIGHTLY, f"idempotency-key: {key}", *headers)


def job_of(answer: Response) -> str:
    """The id of the job that a 202 names."""
    assert answer.status == 202, answer.raw
    return str(orjson.loads(answer.body)["id"])


async def flag(gateway: Running, job_id: str, asked: JobFlag) -> None:
    """As an operator asks it of a job."""
    jobs = gateway.gateway._jobs
    assert jobs is not None
    await jobs.service.flag(job_id, asked)


def running(gateway: Running) -> int:
    """How many jobs run here."""
    jobs = gateway.gateway._jobs
    assert jobs is not None
    return jobs.engine.running


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """One call may run and one may wait; calls of `nightly` become jobs then."""
    queue = {"max_calls": 1, "max_percent_per_tenant": 100}
    folder = policies(tmp_path, jobs=BATCH, queue=queue)
    return await start(with_jobs(tmp_path, keys=KEYS, policies=folder, models=ONE))


async def paused_job(gateway: Running, request: bytes) -> str:
    """The job that a call has become for want of room; it does not run before it is resumed."""
    async with full(gateway):
        job_id = job_of(await ask(gateway.url, request))
        await flag(gateway, job_id, JobFlag.PAUSE)
        await until(lambda: not running(gateway))  # it may be asking for room
    return job_id


@pytest.mark.parametrize("extra", [{}, {"stream": True}])
async def test_a_call_that_has_become_a_job_is_that_job_when_it_is_sent_again(gateway: Running, extra: Any) -> None:
    """Where there is room, too: its place until it is done, then its answer. Another request under its key is refused, and
    counted as such."""
    job_id = await paused_job(gateway, keyed("k", **extra))
    paid = gateway.upstream_calls()

    assert job_of(await ask(gateway.url, keyed("k", **extra))) == job_id
    assert job_of(await ask(gateway.url, keyed("k", ASYNC, **extra))) == job_id
    other = await ask(gateway.url, keyed("k", user="another", **extra))
    assert (other.status, code_of(other)) == (422, "idempotency_key_reused")
    metrics = await ask(gateway.url, get("/metrics"))
    assert b'gateway_requests_refused_total{code="idempotency_key_reused"} 1.0' in metrics.body
    assert gateway.upstream_calls() == paid

    await flag(gateway, job_id, JobFlag.RESUME)
    answer = await result_of(gateway.url, job_id, NIGHTLY)
    again = await ask(gateway.url, keyed("k", **extra))
    assert (again.status, again.body) == (200, answer.body)
    assert again.header("x-gateway-job") == job_id
    assert again.header("idempotent-replayed") == "true"
    assert gateway.upstream_calls() == paid + 1


async def test_a_job_that_came_to_nothing_keeps_no_call_from_being_served(gateway: Running) -> None:
    """Nor from becoming another job, under the same key, where there is no room again."""
    job_id = await paused_job(gateway, keyed("k"))
    await flag(gateway, job_id, JobFlag.CANCEL)
    second = await paused_job(gateway, keyed("k"))
    assert second != job_id
    assert job_of(await ask(gateway.url, keyed("k"))) == second
    await flag(gateway, second, JobFlag.CANCEL)

    paid = gateway.upstream_calls()
    served = await ask(gateway.url, keyed("k"))
    assert (served.status, served.header("x-gateway-job")) == (200, None)
    assert (await ask(gateway.url, keyed("k"))).header("idempotent-replayed") == "true"
    assert gateway.upstream_calls() == paid + 1


async def test_twins_that_are_refused_at_once_are_one_job(gateway: Running) -> None:
    """Also beside one that asks for a job by itself."""
    async with full(gateway):
        twins = [keyed("k"), keyed("k"), keyed("k", ASYNC), keyed("k")]
        ids = {job_of(answer) for answer in await asyncio.gather(*(ask(gateway.url, twin) for twin in twins))}
    (job_id,) = ids
    assert (await end_of(gateway.url, job_id, NIGHTLY))["status"] == "succeeded"
    assert gateway.upstream_calls() == 3


@pytest.mark.parametrize("query", ["", "?api-version=1"])
async def test_a_job_and_a_call_under_one_key_are_paid_for_once(gateway: Running, query: str) -> None:
    """Whichever comes first, also where the job was asked for: the other gets its answer."""
    first = await ask(gateway.url, keyed("a", query=query))
    job_id = job_of(await ask(gateway.url, keyed("a", ASYNC, query=query)))
    assert (await result_of(gateway.url, job_id, NIGHTLY)).body == first.body

    job_id = job_of(await ask(gateway.url, keyed("b", ASYNC, query=query)))
    answer = await result_of(gateway.url, job_id, NIGHTLY)
    again = await ask(gateway.url, keyed("b", query=query))
    assert (again.status, again.body) == (200, answer.body)
    assert gateway.upstream_calls() == 2


async def test_a_job_whose_key_another_request_has_taken_runs_all_the_same(gateway: Running) -> None:
    """It was accepted: what its caller does with the key meanwhile is no reason to fail it."""
    later = post(
        "/v1/jobs",
        {"endpoint": "/v1/chat/completions", "body": chat(), "delay": 0.2},
        NIGHTLY,
        "idempotency-key: k",
    )
    job_id = job_of(await ask(gateway.url, later))
    assert (await ask(gateway.url, keyed("k", user="another"))).status == 200
    assert (await end_of(gateway.url, job_id, NIGHTLY))["status"] == "succeeded"
    assert gateway.upstream_calls() == 2


async def test_a_job_that_a_repeated_call_was_told_of_is_not_taken_back(
    start: StartGateway, tmp_path: Path, a_redis: RedisServer
) -> None:
    """Its first caller heard that it may not have been taken, and sent it again before that was undone."""
    folder = policies(tmp_path, jobs=BATCH, queue={"max_calls": 1, "max_percent_per_tenant": 100})
    jobs = {"store": a_redis.url, "files": "redis"}
    gateway = await start(with_jobs(tmp_path, jobs=jobs, keys=KEYS, policies=folder, models=ONE))
    job_id = await paused_job(gateway, keyed("k"))
    store = await gateway.gateway._jobs.engine.store()  # type: ignore[union-attr]  # it takes jobs
    job = await store.find(job_id, None)
    assert job is not None
    assert isinstance(store, RedisJobStore)
    refused = Sent(NewJob(job), time.time_ns() // 1000)

    assert job_of(await ask(gateway.url, keyed("k"))) == job_id
    await store._acceptance.take_back([refused])
    await flag(gateway, job_id, JobFlag.RESUME)

    assert (await end_of(gateway.url, job_id, NIGHTLY))["status"] == "succeeded"
