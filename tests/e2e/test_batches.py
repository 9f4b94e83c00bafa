"""The Batch API over the wire: the official SDK, a real gateway with its jobs in a file, providers that fail on the way."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.core.clock import SteadyClock
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_rule
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.e2e.batches import CHAT, asked_of, begin, check_end, end_of, input_of, line, names
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, QUICK, WEB, ask, policies, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, PROVIDER_KEY, WEB_KEY, Running, get, post, until
from tests.e2e.replaying import hold

RECORDED = EmulatorConfig(recorded_requests=100_000, recorded_bytes=64 * 1024 * 1024)
AT_ONCE = {"attempts": 1}
"""For retries.yaml: what tries again is the job."""


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with jobs."""
    return await start(with_jobs(tmp_path), emulator=RECORDED)


async def test_a_batch_from_the_upload_to_its_answers(gateway: Running) -> None:
    """Lines of several models, some of which the provider refuses: two files in the order of the input, and true counts."""
    await gateway.emulator.configure(faults=(parse_rule({"fault": "context_length", "model": "too-small"}),))
    custom_ids = names(120)
    async with gateway.sdk() as sdk:
        lines = [line(name, "too-small" if number % 10 == 3 else "gpt-4o") for number, name in enumerate(custom_ids)]
        made = await begin(sdk, lines, metadata={"night": "1"})
        done = await end_of(sdk, made.id)
        files = await check_end(sdk, done, custom_ids)
        file = await sdk.files.retrieve(done.output_file_id or "")
        head = await sdk.files.with_raw_response.content(
            done.output_file_id or "", extra_headers={"range": "bytes=0-9"}
        )

    assert made.status == "validating"
    assert (done.status, done.metadata, done.endpoint) == ("completed", {"night": "1"}, CHAT)
    assert len(files.errors) == 12
    assert {one["response"]["status_code"] for one in files.errors} == {400}
    assert {one["response"]["body"]["error"]["code"] for one in files.errors} == {"context_length_exceeded"}
    assert all(one["error"] is None for one in files.errors)
    assert asked_of(gateway.emulator.emulator.recorder) == dict.fromkeys(custom_ids, 1)
    assert done.usage is not None
    assert done.usage.output_tokens == 108 * 60
    assert (file.purpose, file.status) == ("batch_output", "processed")
    assert (head.http_response.status_code, len(head.content)) == (206, 10)
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(one for one in times if one is not None)


async def test_a_batch_of_embeddings(gateway: Running) -> None:
    """Any endpoint whose answers are JSON."""
    body = {"model": "text-embedding-3-small", "input": "words"}
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body} for name in ("b", "a", "c")]
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, lines, endpoint="/v1/embeddings")).id)
        content = (await sdk.files.content(done.output_file_id or "")).content.splitlines()

    assert done.status == "completed"
    assert [orjson.loads(one)["custom_id"] for one in content] == ["b", "a", "c"]
    assert all(orjson.loads(one)["response"]["body"]["data"][0]["embedding"] for one in content)


async def test_a_batch_of_nothing_but_refusals_is_completed(gateway: Running) -> None:
    """As at OpenAI: there is no output file then."""
    await gateway.emulator.configure(faults=(parse_rule({"fault": "content_filter"}),))
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, [line("a"), line("b")])).id)
        await check_end(sdk, done, ["a", "b"])

    assert (done.status, done.output_file_id) == ("completed", None)


async def test_bad_input_is_told_line_by_line(gateway: Running) -> None:
    """By a batch that has failed, before anything was sent to a provider."""
    lines = [line("a"), line("a"), line("b", "gpt-4o") | {"url": "/v1/embeddings"}, line("c", stream=True)]
    async with gateway.sdk() as sdk:
        failed = await end_of(sdk, (await begin(sdk, lines)).id)

    assert failed.status == "failed"
    assert failed.errors is not None
    told = [(one.line, one.code) for one in failed.errors.data or []]
    assert told[:2] == [(2, "duplicate_custom_id"), (3, "url_mismatch")]
    assert told[2][0] == 4
    assert gateway.upstream_calls() == 0


async def test_lists_have_pages(gateway: Running) -> None:
    """The SDK walks through batches and files, newest first, each once."""
    async with gateway.sdk() as sdk:
        made = [(await begin(sdk, [line(f"{number}")])).id for number in range(5)]
        for batch_id in made:
            await end_of(sdk, batch_id)
        batches = [one.id async for one in sdk.batches.list(limit=2)]
        inputs = [one.id async for one in sdk.files.list(limit=2, purpose="batch", order="asc")]
        outputs = [one.id async for one in sdk.files.list(limit=3, purpose="batch_output")]

    assert batches == made[::-1]
    assert len(set(inputs)) == len(set(outputs)) == 5


async def test_a_tenants_batches_and_files_are_its_own(gateway: Running) -> None:
    """Another's are answered byte for byte as those that never were, and nobody runs another's file."""
    async with gateway.sdk() as sdk, gateway.sdk(NIGHTLY_KEY) as other:
        done = await end_of(sdk, (await begin(sdk, [line("a")])).id)
        with pytest.raises(openai.BadRequestError) as refused:
            await other.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")
        listed = [one.id async for one in other.batches.list()], [one.id async for one in other.files.list()]
    places = [f"/v1/batches/{done.id}", f"/v1/files/{done.input_file_id}", f"/v1/files/{done.output_file_id}"]
    for place in (*places, f"{places[2]}/content"):
        foreign = await ask(gateway.url, get(place, NIGHTLY))
        absent = await ask(gateway.url, get(place.replace("gw", "gw0"), NIGHTLY))
        assert (foreign.status, foreign.error["code"]) == (404, "object_not_found")
        assert foreign.body == absent.body
    own = await ask(gateway.url, get(places[0], WEB))

    assert listed == ([], [])
    assert refused.value.param == "input_file_id"
    assert own.status == 200


async def test_a_batch_is_made_once_for_an_idempotency_key(gateway: Running) -> None:
    """A client whose answer was lost asks again, and pays once."""
    async with gateway.sdk() as sdk:
        file = await sdk.files.create(file=("in.jsonl", input_of([line("a")])), purpose="batch")
        made = [
            await sdk.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h", extra_headers={"idempotency-key": "k"}
            )
            for _ in range(2)
        ]
        await end_of(sdk, made[0].id)

    assert made[0].id == made[1].id
    assert gateway.upstream_calls() == 1


async def test_a_cancelled_batch_keeps_what_it_has(gateway: Running) -> None:
    """What runs may finish, nothing more begins, and every line is told of."""
    custom_ids, may_end = names(200), hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    async with gateway.sdk() as sdk:
        made = await begin(sdk, map(line, custom_ids))
        await until(lambda: gateway.emulator.emulator.stats.active >= 32)
        cancelling = await sdk.batches.cancel(made.id)
        begun = gateway.upstream_calls()
        may_end.set()
        done = await end_of(sdk, made.id)
        files = await check_end(sdk, done, custom_ids)
        with pytest.raises(openai.ConflictError) as refused:
            await sdk.batches.cancel(made.id)

    assert (cancelling.status, done.status) == ("cancelling", "cancelled")
    assert refused.value.code == "batch_not_cancellable"
    assert len(files.output) == gateway.upstream_calls()
    assert gateway.upstream_calls() - begun <= 64  # what had begun when the worker heard of it
    assert files.codes() == {"batch_cancelled": 200 - len(files.output)}


async def test_a_batch_whose_window_is_over_expires(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it has; the others say why they have none."""
    ahead_s = [0.0]
    monkeypatch.setattr(SteadyClock, "wall", lambda _clock: time.time() + ahead_s[0])
    gateway = await start(
        with_jobs(tmp_path, policies=policies(tmp_path, jobs={"batches": {"cancel_grace": "0s"}})), emulator=RECORDED
    )
    custom_ids = names(100)
    async with gateway.sdk() as sdk:
        hold(gateway)
        await gateway.emulator.configure(ttft_s=1.0, faults=())
        made = await begin(sdk, map(line, custom_ids), completion_window="10m")
        await until(lambda: gateway.emulator.emulator.stats.active >= 32)
        ahead_s[0] = 601.0
        done = await end_of(sdk, made.id)
        files = await check_end(sdk, done, custom_ids)

    assert (done.status, done.expired_at is not None) == ("expired", True)
    assert files.codes() == {"batch_expired": 100 - len(files.output)}
    await until(lambda: gateway.emulator.emulator.stats.active == 0)


async def test_a_target_that_dies_costs_no_line(start: StartGateway, tmp_path: Path) -> None:
    """Three share a batch; one is gone in the middle of it, and the others take over."""
    providers = [EmulatorServer(RECORDED) for _ in range(3)]
    for one in providers:
        await one.start()
        await one.configure(ttft_s=0.02)
    entries = {
        f"p{number}": {"dialect": "openai", "base_url": one.base_url, "api_key": PROVIDER_KEY}
        for number, one in enumerate(providers)
    }
    targets = [f"{name}/gpt-4o" for name in entries]
    gateway = await start(
        with_jobs(
            tmp_path,
            providers=entries,
            models={"gpt-4o": {"targets": targets}},
            policies=policies(tmp_path, jobs=QUICK),
        )
    )
    custom_ids = names(400)
    async with gateway.sdk() as sdk:
        made = await begin(sdk, map(line, custom_ids))
        await until(lambda: providers[1].emulator.stats.total >= 40)
        await providers[1].stop()
        done = await end_of(sdk, made.id)
        files = await check_end(sdk, done, custom_ids)
    asked = asked_of(*(one.emulator.recorder for one in providers))
    shares = [one.emulator.stats.total for one in providers]
    for one in providers:
        await one.stop()

    assert done.status == "completed"
    assert files.errors == []
    assert min(shares) >= 40
    assert sum(asked.values()) - 400 <= 64  # what was in flight there


async def test_a_storm_of_429_fails_no_line(start: StartGateway, tmp_path: Path) -> None:
    """A provider that allows 50 at once, then one every 20 ms: the batch waits as told."""
    gateway = await start(with_jobs(tmp_path), emulator=RECORDED)
    await gateway.emulator.configure(rpm=3000, burst=50)
    custom_ids = names(150)
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, map(line, custom_ids))).id)
        files = await check_end(sdk, done, custom_ids)

    assert (done.status, files.errors) == ("completed", [])
    refused = gateway.emulator.emulator.stats.statuses[429]
    assert gateway.upstream_calls() == 150 + refused


async def test_what_fails_for_now_is_tried_again(start: StartGateway, tmp_path: Path) -> None:
    """One call in four meets an error of the provider's: no line fails, and none is paid for twice."""
    place = policies(tmp_path, jobs=QUICK | {"attempts": 50}, retries=AT_ONCE, breakers={"enabled": False})
    gateway = await start(with_jobs(tmp_path, policies=place), emulator=RECORDED)
    await gateway.emulator.configure(faults=(parse_rule({"fault": "e500", "probability": 0.25}),))
    custom_ids = names(100)
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, map(line, custom_ids))).id)
        files = await check_end(sdk, done, custom_ids)

    assert (done.status, files.errors) == ("completed", [])
    assert gateway.upstream_calls() == 100 + gateway.emulator.emulator.stats.faults["e500"]


async def test_a_gateway_that_stops_hands_its_batch_to_the_next(start: StartGateway, tmp_path: Path) -> None:
    """Nothing that has a result is asked again; what could not end within the grace is."""
    config = with_jobs(tmp_path, server={"grace": "100ms"})
    custom_ids = names(200)
    first = await start(config, emulator=RECORDED)
    await first.emulator.configure(ttft_s=0.1)
    async with first.sdk() as sdk:
        made = await begin(sdk, map(line, custom_ids))
        await until(lambda: first.emulator.emulator.stats.statuses[200] >= 40)
    await first.gateway.drain(asyncio.Event())
    await first.stop()
    kept = await kept_lines(tmp_path, made.id)
    second = await start(config, emulator=RECORDED)
    async with second.sdk() as sdk:
        done = await end_of(sdk, made.id)
        await check_end(sdk, done, custom_ids)

    assert done.status == "completed"
    assert kept >= 40
    assert second.upstream_calls() == 200 - kept


async def kept_lines(folder: Path, batch_id: str) -> int:
    """How many lines of a batch have results in the jobs file, while no gateway has it open."""
    store = SqliteJobStore(str(folder / "jobs.db"), time.time)
    job = await store.find(batch_id, None)
    await store.aclose()
    assert job is not None
    return job.tally.completed


async def test_a_key_that_is_taken_away_pays_no_further_line(start: StartGateway, tmp_path: Path) -> None:
    """In the middle of its batch: what had begun is kept, the rest is refused line by line, and nothing more is sent."""
    made_with = with_jobs(tmp_path)
    gateway = await start(made_with, emulator=RECORDED)
    custom_ids, may_end = names(200), hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    async with gateway.sdk(NIGHTLY_KEY) as sdk, gateway.sdk() as other:
        made = await begin(sdk, map(line, custom_ids))
        await until(lambda: gateway.emulator.emulator.stats.active >= 32)
        keys = [{"name": "web", "key": WEB_KEY, "tenant": "nightly"}]
        gateway.write_config(dict(made_with(gateway.emulator.base_url)) | {"keys": keys})
        gateway.gateway.reload()
        await until(lambda: gateway.gateway.policy.version == 2)
        begun = gateway.upstream_calls()
        may_end.set()
        done = await end_of(other, made.id)
        files = await check_end(other, done, custom_ids)

    assert done.status == "completed"
    assert begun <= len(files.output) == gateway.upstream_calls() <= 64  # the lines of four chunks
    assert {one["response"]["status_code"] for one in files.errors} == {401}


async def test_without_jobs_there_are_no_batches(start: StartGateway, tmp_path: Path) -> None:
    """Neither files; what cannot be written is said so, and is there as soon as it can."""
    off = await start(with_jobs(tmp_path, jobs="off"))
    form = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    multipart = "content-type: multipart/form-data; boundary=x"
    refused = [
        await ask(off.url, one)
        for one in (post("/v1/files", form, WEB, multipart), get("/v1/batches", WEB), get("/v1/files", WEB))
    ]
    broken = await start(with_jobs(tmp_path / "missing"))
    unavailable: list[Any] = [
        await ask(broken.url, one)
        for one in (post("/v1/files", form, WEB, multipart), get("/v1/batches", WEB), get("/v1/files", WEB))
    ]

    assert [one.status for one in refused] == [404] * 3
    assert [(one.status, one.error["code"]) for one in unavailable] == [(503, "jobs_unavailable")] * 3
