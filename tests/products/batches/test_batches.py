"""The Batch API on a real port: the official SDK makes, shows, lists and cancels batches, whose pieces the test runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import openai
import orjson
import pytest

from gateway.core.call import Call, Reply
from gateway.core.clock import SystemClock
from gateway.core.errors import DeadlineExceeded
from gateway.core.types import Usage
from gateway.products.batches import output as marks
from gateway.products.batches.finish import BatchChecks, BatchFinalizer, PartialFile, PartialFiles, write_chunk
from gateway.products.batches.input import lines_of
from gateway.products.batches.output import LineIdentity, answered_line
from gateway.products.jobs import answers_http as events
from gateway.products.jobs.model import (
    BATCH,
    CHECK,
    FILE,
    FINALISE,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobFlag,
    is_ours,
    new_id,
)
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork
from tests.e2e.harness import WEB_KEY, Response, connect, get, post
from tests.products.batches.edge import FEW_KEY, OTHER_KEY, JobEdge, job_edge
from tests.products.batches.test_batch_lines import jsonl, line
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore

AUTH = f"authorization: Bearer {WEB_KEY}"
CHAT: Any = "/v1/chat/completions"


async def upload(edge: JobEdge, count: int = 3, data: bytes | None = None) -> str:
    lines = jsonl(*(line(f"line {number}") for number in range(count))) if data is None else data
    return (await edge.sdk().files.create(file=("in.jsonl", lines), purpose="batch")).id


async def claim(store: JobStore) -> ClaimedWork | None:
    works = await store.claim([ClaimRequest("slow", 1), ClaimRequest("fast", 1)])
    return works[0] if works else None


async def run_next(edge: JobEdge) -> int | None:
    """Does the next piece of work; the lines of a chunk answer with their own names."""
    work = await claim(edge.store)
    if work is None:
        return None
    clock = SystemClock()
    running = RunningWork(work, clock, changed=edge.watchers.changed)
    if work.piece == CHECK:
        await BatchChecks(edge.store, edge.blobs, edge.policies, clock, rules_of).run(running)
    elif work.piece == FINALISE:
        await BatchFinalizer(edge.store, edge.blobs, clock, rules_of).run(running)
    else:
        results = [
            answered_line(LineIdentity(number, f"r{number}", f"line {number}"), 200, "r", b"{}", Usage(1, 2), 0.0)
            for number in lines_of(marks.plan_of(work.job), work.piece)
        ]
        await edge.store.commit(work, results)
        await edge.store.complete_chunk(work, await write_chunk(edge.store, edge.blobs, work, clock))
        edge.watchers.changed(work.job.id)
    return work.piece


def rules_of(_job: Job) -> JobRules:
    return JobRules()


async def ask(edge: JobEdge, data: bytes) -> Response:
    async with connect(edge.url) as peer:
        return await peer.exchange(data)


async def test_a_batch_goes_its_way(tmp_path: Path) -> None:
    """From `validating` to `completed`, as the SDK sees it, and its output is a file."""
    async with job_edge(tmp_path) as edge:
        sdk = edge.sdk()
        made = await sdk.batches.create(
            input_file_id=await upload(edge),
            endpoint=CHAT,
            completion_window="24h",
            metadata={"night": "1"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )
        seen = [made.status]
        while await run_next(edge) is not None:
            seen.append((await sdk.batches.retrieve(made.id)).status)
        done = await sdk.batches.retrieve(made.id)

        assert is_ours(BATCH, made.id)
        assert seen == ["validating", "in_progress", "finalizing", "completed"]
        assert made.expires_at == made.created_at + 86_400
        assert (made.metadata, made.completion_window, made.endpoint) == ({"night": "1"}, "24h", CHAT)
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 3, 0)
        assert done.usage is not None
        assert done.usage.total_tokens == 9
        assert (done.model, done.error_file_id) == ("gpt-4o", None)
        assert done.output_file_id is not None
        output = await sdk.files.content(done.output_file_id)
        assert [orjson.loads(text)["custom_id"] for text in output.content.splitlines()] == [
            "line 0",
            "line 1",
            "line 2",
        ]
        file = await sdk.files.retrieve(done.output_file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{made.id}_output.jsonl")
        assert file.expires_at == file.created_at + 3600
        with pytest.raises(openai.ConflictError, match="has ended as 'completed'"):
            await sdk.batches.cancel(made.id)


async def test_a_bad_input_is_a_batch_that_fails(tmp_path: Path) -> None:
    """Not a refusal: it is told by the batch."""
    async with job_edge(tmp_path) as edge:
        sdk = edge.sdk()
        made = await sdk.batches.create(
            input_file_id=await upload(edge, data=b"{\n"), endpoint=CHAT, completion_window="24h"
        )
        await run_next(edge)
        failed = await sdk.batches.retrieve(made.id)

        assert (made.status, failed.status) == ("validating", "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert [(one.code, one.line) for one in failed.errors.data] == [("invalid_json_line", 1)]
        with pytest.raises(openai.ConflictError) as refused:
            await sdk.batches.cancel(made.id)
        assert refused.value.code == "batch_not_cancellable"


async def test_a_batch_can_be_cancelled(tmp_path: Path) -> None:
    """At any time before its end, and twice; its lines say so."""
    async with job_edge(tmp_path) as edge:
        sdk = edge.sdk()
        made = await sdk.batches.create(input_file_id=await upload(edge), endpoint=CHAT, completion_window="24h")
        await run_next(edge)
        cancelling = await sdk.batches.cancel(made.id)
        again = await sdk.batches.cancel(made.id)
        assert await run_next(edge) == FINALISE
        done = await sdk.batches.retrieve(made.id)

        assert (cancelling.status, again.status, done.status) == ("cancelling", "cancelling", "cancelled")
        assert cancelling.cancelling_at is not None
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.failed) == (3, 3)
        assert done.error_file_id is not None
        errors = (await sdk.files.content(done.error_file_id)).content.splitlines()
        assert {orjson.loads(text)["error"]["code"] for text in errors} == {"batch_cancelled"}


async def test_lists_have_pages(tmp_path: Path) -> None:
    """Newest first, each tenant its own."""
    async with job_edge(tmp_path) as edge:
        sdk, file = edge.sdk(), await upload(edge)
        made = [
            (await sdk.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")).id for _ in range(5)
        ]

        assert [batch.id async for batch in sdk.batches.list(limit=2)] == made[::-1]
        assert [batch async for batch in edge.sdk(OTHER_KEY).batches.list()] == []
        page = orjson.loads((await ask(edge, get("/batches?limit=2", AUTH))).body)
        assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[3], True)
        for wrong in ("limit=0", "limit=101", "limit=x"):
            assert (await ask(edge, get(f"/v1/batches?{wrong}", AUTH))).status == 400


async def test_what_there_is_of_an_output_can_be_read_while_its_batch_runs(tmp_path: Path) -> None:
    """The complete chunks in the order of the input, marked as incomplete; for others it is a file that never was."""
    other = f"authorization: Bearer {OTHER_KEY}"
    async with job_edge(tmp_path) as edge:
        file = await upload(edge, 40)
        made = await edge.sdk().batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
        shown = await ask(edge, get(f"/v1/batches/{made.id}", AUTH))
        output, errors = shown.header("x-gateway-output-file-id"), shown.header("x-gateway-error-file-id")
        path = f"/v1/files/{output}/content"

        async def read() -> tuple[str | None, list[str]]:
            answer = await ask(edge, get(path, AUTH))
            assert answer.status == 200
            return answer.header("x-incomplete"), [orjson.loads(one)["custom_id"] for one in answer.body.splitlines()]

        assert await read() == ("true", [])
        assert await run_next(edge) == CHECK
        assert await read() == ("true", [])
        first = await claim(edge.store)
        assert await run_next(edge) == 1
        assert await read() == ("true", [f"line {number}" for number in range(16, 32)])
        assert first is not None
        await edge.store.give_back(first, run_at=None, is_attempt=False)
        assert [await run_next(edge), await run_next(edge)] == [2, 0]
        assert await read() == ("true", [f"line {number}" for number in range(40)])
        partial = await ask(edge, get(path, AUTH, "range: bytes=0-1"))
        assert (partial.status, partial.header("accept-ranges")) == (200, "none")
        async with connect(edge.url) as peer:
            peer.send(get(path, AUTH, method="HEAD"))
            head = await peer.response(head=True)
            assert (await peer.exchange(get(path, AUTH))).header("x-incomplete") == "true"
        assert (head.header("x-incomplete"), head.header("content-length"), head.body) == ("true", None, b"")
        assert (await ask(edge, get(f"/v1/files/{errors}/content", AUTH))).body == b""
        answers = [
            await ask(edge, get(f"/v1/files/{id}/content", other))
            for id in (output, new_id(FILE, bytes(16)), "file-abc")
        ]
        assert [answer.status for answer in answers] == [404] * 3
        assert len({(answer.body, tuple(name for name, _ in answer.headers)) for answer in answers}) == 1

        assert await run_next(edge) == FINALISE
        assert await read() == (None, [f"line {number}" for number in range(40)])
        ended = await ask(edge, get(f"/v1/batches/{made.id}", AUTH))
        assert ended.header("x-gateway-output-file-id") is None
        assert orjson.loads(ended.body)["output_file_id"] == output
        assert (await ask(edge, get(f"/v1/files/{errors}/content", AUTH))).status == 404
        await edge.sdk().files.delete(str(output))
        assert (await ask(edge, get(path, AUTH))).status == 404


async def test_an_output_whose_batch_ends_while_it_is_read_ends_with_a_whole_line() -> None:
    """Its chunks go when the file is there."""
    blobs, clock = MemoryBlobs(), SystemClock()
    files = PartialFiles(lambda: _store(MemoryJobStore(clock.wall)), blobs)
    for name in ("one", "two", "three"):
        writer = await blobs.writer(name)
        await writer.write(b"%b\n" % name.encode())
        await writer.commit()
    pieces = files.read(PartialFile("x.jsonl", ["one", "two", "three"]))

    read = [await anext(pieces)]
    await blobs.remove(["two", "three"])

    assert [*read, *[piece async for piece in pieces]] == [b"one\n"]


async def _store(store: JobStore) -> JobStore:
    return store


async def test_events_follow_a_batch_to_its_end(tmp_path: Path) -> None:
    """One for each change; who comes back is told only what is new, and who asks for the head alone waits for nothing."""
    async with job_edge(tmp_path) as edge:
        made = await edge.sdk().batches.create(input_file_id=await upload(edge), endpoint=CHAT, completion_window="24h")
        path = f"/v1/batches/{made.id}/events"
        async with connect(edge.url) as peer:
            peer.send(get(path, AUTH))
            first = await peer.reader.readuntil(b"\n\n\r\n")
            assert edge.readers.open.total() == 1
            async with connect(edge.url) as other:
                other.send(get(path, AUTH, method="HEAD"))
                head = await other.response(head=True)
                assert head.header("content-length") is None
            while await run_next(edge) is not None:
                pass
            rest = await peer.reader.readuntil(b"0\r\n\r\n")
        number = re.search(rb"id: (\d+)", first)
        assert number is not None
        again = await ask(edge, get(path, AUTH, f"last-event-id: {number[1].decode()}"))
        foreign = await ask(edge, get(path, f"authorization: Bearer {OTHER_KEY}"))

    assert (head.status, head.header("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert b'"status":"validating"' in first
    assert b'"status":"completed"' in rest
    assert again.body.count(b"event: batch\n") == 1
    assert b'"status":"completed"' in again.body
    assert foreign.status == 404


async def test_a_tenant_leaves_room_for_other_readers_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all streams it may have a part; who leaves makes room."""
    monkeypatch.setattr(events, "MOST_READERS_PER_TENANT", 1)
    async with job_edge(tmp_path) as edge:
        paths = {}
        for key in (WEB_KEY, OTHER_KEY):
            sdk = edge.sdk(key)
            file = await sdk.files.create(file=("in.jsonl", jsonl(line("one"))), purpose="batch")
            batch = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            paths[key] = f"/v1/batches/{batch.id}/events"
        async with connect(edge.url) as one, connect(edge.url) as two:
            for peer, key in ((one, WEB_KEY), (two, OTHER_KEY)):
                peer.send(get(paths[key], f"authorization: Bearer {key}"))
                assert b"200 OK" in await peer.reader.readuntil(b"\n\n\r\n")
            refused = await ask(edge, get(paths[WEB_KEY], AUTH))
            assert (refused.status, refused.error["code"]) == (429, "too_many_event_readers")
        async with asyncio.timeout(5):
            while edge.readers.open:  # noqa: ASYNC110 - the server hears of it by itself
                await asyncio.sleep(0.01)


async def test_a_batch_of_another_tenant_is_none(tmp_path: Path) -> None:
    """Byte by byte the same answer as for one that never was; so is the file of another's batch."""
    other = f"authorization: Bearer {OTHER_KEY}"
    async with job_edge(tmp_path) as edge:
        file = await upload(edge)
        made = (await edge.sdk().batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")).id

        for method, tail in (("GET", ""), ("POST", "/cancel")):
            answers = [
                await ask(edge, get(f"/v1/batches/{id}{tail}", other, "content-length: 0", method=method))
                for id in (made, new_id(BATCH, bytes(16)), "batch_abc")
            ]
            assert {answer.status for answer in answers} == {404}
            assert len({answer.body for answer in answers}) == 1
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        foreign = await ask(edge, post("/v1/batches", body, other))
        unknown = await ask(edge, post("/v1/batches", {**body, "input_file_id": "file-abc"}, other))
        assert (foreign.status, foreign.error["param"], foreign.body) == (400, "input_file_id", unknown.body)
        assert (await edge.sdk().batches.retrieve(made)).status == "validating"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"endpoint": None}, "endpoint"),
        ({"endpoint": "/v1/audio/speech"}, "endpoint"),
        ({"endpoint": "/v1/audio/transcriptions"}, "endpoint"),
        ({"endpoint": "/v2/chat/completions"}, "endpoint"),
        ({"completion_window": None}, "completion_window"),
        ({"completion_window": "9m"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: "x"}}, "metadata"),
        ({"metadata": {"x": "x" * 513}}, "metadata"),
        ({"metadata": {"x": 1}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after"),
        ({"output_expires_after": {"seconds": 3600}}, "output_expires_after"),
        ({"output_expires_after": 3600}, "output_expires_after"),
        ({"webhook": "x"}, "webhook"),
    ],
)
async def test_bad_fields_are_named(tmp_path: Path, changes: dict[str, Any], param: str) -> None:
    """In OpenAI's shape, and nothing is made."""
    async with job_edge(tmp_path) as edge:
        body = {"input_file_id": await upload(edge), "endpoint": CHAT, "completion_window": "24h", **changes}
        answer = await ask(edge, post("/v1/batches", body, AUTH))

        assert (answer.status, answer.error["param"]) == (400, param)
        assert await claim(edge.store) is None


@pytest.mark.parametrize("window", ["10m", "24h", "1d", "7d", "168h"])
async def test_windows_are_as_long_as_they_say(tmp_path: Path, window: str) -> None:
    """From ten minutes to seven days, with or without `/v1` at the endpoint."""
    seconds = {"10m": 600, "24h": 86_400, "1d": 86_400, "7d": 604_800, "168h": 604_800}[window]
    async with job_edge(tmp_path) as edge:
        body = {"input_file_id": await upload(edge), "endpoint": "/embeddings", "completion_window": window}
        shown = orjson.loads((await ask(edge, post("/batches", body, AUTH))).body)

        assert shown["expires_at"] == shown["created_at"] + seconds
        assert shown["endpoint"] == "/v1/embeddings"


async def test_a_repeated_creation_is_the_same_batch(tmp_path: Path) -> None:
    """By its Idempotency-Key; another payload is a conflict."""
    async with job_edge(tmp_path) as edge:
        body = {"input_file_id": await upload(edge), "endpoint": CHAT, "completion_window": "24h"}
        key = "idempotency-key: night-1"
        first, again = [orjson.loads((await ask(edge, post("/v1/batches", body, AUTH, key))).body) for _ in range(2)]
        other = await ask(edge, post("/v1/batches", {**body, "completion_window": "48h"}, AUTH, key))

        assert first["id"] == again["id"]
        assert (other.status, other.error["code"]) == (409, "dedupe_conflict")


@pytest.mark.parametrize(("mark", "why"), [(marks.BRAKED_BY, "quota_exhausted"), (marks.WAITS_FOR, "budget_exceeded")])
async def test_pollers_are_told_when_to_come_again(tmp_path: Path, mark: str, why: str) -> None:
    """As long as there is something to wait for; and why a batch stands still."""
    async with job_edge(tmp_path) as edge:
        made = await edge.sdk().batches.create(input_file_id=await upload(edge), endpoint=CHAT, completion_window="24h")
        work = await claim(edge.store)
        assert work is not None
        await edge.store.note(work, {mark: why})
        await edge.store.give_back(work, run_at=None, is_attempt=False)
        answer = await ask(edge, get(f"/v1/batches/{made.id}", AUTH))
        assert (answer.header("openai-poll-after-ms"), answer.header("x-gateway-paused")) == ("5000", why)
        await edge.store.flag(made.id, "web", JobFlag.PAUSE)
        edge.watchers.changed(made.id)
        assert (await ask(edge, get(f"/v1/batches/{made.id}", AUTH))).header("x-gateway-paused") == "operator"
        await edge.store.flag(made.id, "web", JobFlag.RESUME)
        while await run_next(edge) is not None:
            pass
        assert (await ask(edge, get(f"/v1/batches/{made.id}", AUTH))).header("openai-poll-after-ms") is None


async def test_a_batch_runs_in_no_lane_above_its_own(tmp_path: Path) -> None:
    """Nobody waits for its lines; a lower one may be asked for."""
    async with job_edge(tmp_path) as edge:
        body = {"input_file_id": await upload(edge), "endpoint": CHAT, "completion_window": "24h"}
        for headers, lane in ((), "batch"), (("x-gateway-lane: background",), "background"):
            made = orjson.loads((await ask(edge, post("/v1/batches", body, AUTH, *headers))).body)
            job = await edge.store.find(made["id"], "web")
            assert job is not None
            assert job.lane == lane


async def test_other_ids_are_left_to_the_provider_of_passthrough(tmp_path: Path) -> None:
    """Ours are answered here."""
    ours = new_id(BATCH, b"y" * 16)
    async with job_edge(tmp_path, passthrough="main") as edge:
        for path, status in (("/v1/batches/batch_abc", 200), (f"/v1/batches/{ours}", 404), ("/v1/batches", 200)):
            assert (await ask(edge, get(path, AUTH))).status == status
        assert (await ask(edge, get("/v1/batches?limit=2&after=batch_abc", AUTH))).body == b"left to the provider"


def provided(*batch_ids: str, has_more: bool = False, status: int = 200) -> Callable[[Call], Reply]:
    """A provider whose list begins so."""

    def answer(call: Call) -> Reply:
        limit = int(dict(parse_qsl(call.request.query.decode()))["limit"])
        page = {"object": "list", "data": [{"id": one} for one in batch_ids[:limit]]}
        return Reply(status, [], orjson.dumps({**page, "has_more": has_more or len(batch_ids) > limit}))

    return answer


@pytest.mark.parametrize(("limit", "theirs", "has_more"), [(3, 1, True), (2, 0, True), (4, 2, False), (5, 2, False)])
async def test_a_page_over_the_seam_has_ours_first(tmp_path: Path, limit: int, theirs: int, has_more: bool) -> None:
    """And as many of the provider's as there is room for."""
    async with job_edge(tmp_path, passthrough="main", provider=provided("batch_x", "batch_y")) as edge:
        file = await upload(edge)
        made = [
            (await edge.sdk().batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")).id
            for _ in range(2)
        ]
        answer = await ask(edge, get(f"/v1/batches?limit={limit}", AUTH))
        behind = await ask(edge, get(f"/v1/batches?limit=1&after={made[0]}", AUTH))

    page, rest = orjson.loads(answer.body), orjson.loads(behind.body)
    assert [one["id"] for one in page["data"]] == [*made[::-1], *["batch_x", "batch_y"][:theirs]]
    assert page["has_more"] is has_more
    assert (page["first_id"], page["last_id"]) == (made[1], page["data"][-1]["id"])
    assert answer.header("x-gateway-provider-list") is None
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (["batch_x"], True)


def _breaks(_call: Call) -> Reply:
    raise DeadlineExceeded("It took too long.")


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (provided(status=500), "status 500"),
        (lambda _call: Reply(200, [], b"<html>"), "no list"),
        (lambda _call: Reply(200, [], b'{"data": 7}'), "no list"),
        (_breaks, "deadline_exceeded"),
    ],
)
async def test_a_provider_that_fails_takes_ours_from_nobody(
    tmp_path: Path, provider: Callable[[Call], Reply], why: str
) -> None:
    """What is missing is said in a header; who may not ask it is told, too."""
    async with job_edge(tmp_path, passthrough="main", provider=provider) as edge:
        file = await upload(edge)
        for path in ("/v1/files", "/v1/files?limit=1", "/files?order=asc&purpose=batch"):
            answer = await ask(edge, get(path, AUTH))
            assert [one["id"] for one in orjson.loads(answer.body)["data"]] == [file]
            assert (answer.status, answer.header("x-gateway-provider-list")) == (200, why)
        few = await ask(edge, get("/v1/files", f"authorization: Bearer {FEW_KEY}"))
        assert (few.status, few.header("x-gateway-provider-list")) == (200, "path_not_allowed")
