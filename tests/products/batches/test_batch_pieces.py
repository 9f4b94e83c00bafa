"""The first and the last piece of a batch: the check of its input, and its files; also after crashes, and stopped early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Policies
from gateway.core.types import Usage
from gateway.drivers.durability import JobsUnavailable
from gateway.products.batches import finish
from gateway.products.batches import output as marks
from gateway.products.batches.finish import BatchChecks, BatchFinalizer, write_chunk
from gateway.products.batches.input import lines_of, read_index
from gateway.products.batches.output import LineIdentity, answered_line, batch_object
from gateway.products.jobs.model import (
    BATCH,
    CHECK,
    FINALISE,
    ClaimedWork,
    ClaimRequest,
    FileQuery,
    Job,
    JobFlag,
    JobState,
    LineResult,
    NewJob,
    Stage,
    Tally,
    derived_file_id,
    line_id,
    new_id,
)
from gateway.products.jobs.rules import BatchRules, JobRules
from gateway.products.jobs.worker import ALONE, RunningWork
from tests.products.batches.edge import snapshot
from tests.products.batches.test_batch_lines import jsonl, line
from tests.products.batches.test_batch_output import batch
from tests.support.flow import FakeClock
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore

RULES = JobRules(batches=BatchRules(parallel_chunks=2))
ID = new_id(BATCH, b"b" * 16)


class Bench:
    """A store, blobs and the two runners, with time that is moved by hand."""

    def __init__(self, policies: Policies, rules: JobRules = RULES) -> None:
        self.clock = FakeClock()
        self.store = MemoryJobStore(self.clock.wall)
        self.blobs = MemoryBlobs()
        self.rules = rules
        self.changes = 0
        self.checks = BatchChecks(self.store, self.blobs, policies, self.clock, lambda _job: self.rules)
        self.ends = BatchFinalizer(self.store, self.blobs, self.clock, lambda _job: self.rules)

    def _changed(self, _job_id: str) -> None:
        self.changes += 1

    async def accept(self, data: bytes, **fields: Any) -> None:
        """Takes a batch whose input is `data`."""
        writer = await self.blobs.writer("files/input")
        await writer.write(data)
        await writer.commit()
        now = self.clock.wall()
        about = {**batch().about, marks.INPUT: "files/input"}
        job = batch(
            id=ID, key="web", tenant="web", state=JobState.QUEUED, stage=Stage.CHECK,
            created_at=now, run_at=now, deadline=now + 3600, about=about,
        )  # fmt: skip
        await self.store.accept([NewJob(replace(job, **fields), first_piece=CHECK, reads="files/input")])

    async def claim(self) -> ClaimedWork:
        """Returns the one piece that is to be done."""
        (work,) = await self.store.claim([ClaimRequest("slow", 1)])
        return work

    async def check(self) -> Job:
        """Checks the input."""
        work = await self.claim()
        assert work.piece == CHECK
        await self.checks.run(RunningWork(work, self.clock, changed=self._changed))
        return await self.job()

    async def finalise(self) -> Job:
        """Puts the batch together."""
        work = await self.claim()
        assert work.piece == FINALISE
        await self.ends.run(RunningWork(work, self.clock, changed=self._changed))
        return await self.job()

    async def job(self) -> Job:
        """Returns the batch."""
        job = await self.store.find(ID, None)
        assert job is not None
        return job

    async def run_chunk(self, is_failed: Callable[[int], bool] = lambda _line: False, *, most: int = 1000) -> None:
        """Answers the lines of the next chunk, at most so many; a chunk that is not complete is given back."""
        work = await self.claim()
        assert work.piece >= 0
        numbers = lines_of(marks.plan_of(work.job), work.piece)
        results = [result_of(number, is_failed=is_failed(number)) for number in numbers[:most]]
        await self.store.commit(work, results)
        if most < len(numbers):
            await self.store.give_back(work, run_at=None, is_attempt=False)
        else:
            await self.store.complete_chunk(work, await write_chunk(self.store, self.blobs, work, self.clock))

    async def text(self, name: str) -> bytes:
        """Returns a blob."""
        return b"".join([piece async for piece in self.blobs.read(name)])

    async def file(self, file_id: str | None) -> list[dict[str, Any]]:
        """Returns the lines of a file; of none there are none."""
        if file_id is None:
            return []
        found = await self.store.files.find(file_id, "web")
        assert found is not None
        assert found.purpose == "batch_output"
        data = await self.text(found.blob)
        assert len(data) == found.bytes
        return [orjson.loads(text) for text in data.splitlines()]


def result_of(number: int, *, is_failed: bool) -> LineResult:
    who = LineIdentity(number, line_id(ID, number), f"line {number}")
    return answered_line(who, 400 if is_failed else 200, "r", b"{}", Usage(2, 3, 1), 0.5)


def lines(count: int) -> bytes:
    return jsonl(*(line(f"line {number}") for number in range(count)))


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """A compiled config."""
    return Policies(snapshot(tmp_path_factory.mktemp("config")))


async def test_a_good_input_begins(policies: Policies) -> None:
    """With its index, its plan and the time."""
    bench = Bench(policies)
    data = lines(40) + jsonl(line("other", body={"model": "renamed"}))
    await bench.accept(data)

    job = await bench.check()

    assert (job.state, job.stage, job.tally.total) == (JobState.RUNNING, Stage.RUN, 41)
    assert batch_object(job)["status"] == "in_progress"
    assert job.marks[marks.MODELS] == ["gpt-4o", "renamed"]
    assert marks.plan_of(job) == (41, 16, 2)
    assert job.marks[marks.IN_PROGRESS_AT] == bench.clock.wall()
    index = read_index(await bench.text(job.marks[marks.INDEX]))
    assert [orjson.loads(data[one.offset :][: one.length])["custom_id"] for one in index][-2:] == ["line 39", "other"]
    assert bench.changes == 1


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (lines(3) + b"{\n", "invalid_json_line", 4),
        (b"\xef\xbb\xbf" + lines(3), "invalid_json_line", 1),
        (jsonl(line("a"), line("a")), "duplicate_custom_id", 2),
        (jsonl(line("a", url="/v1/embeddings")), "url_mismatch", 1),
        (jsonl(line("a", body={"model": "gpt-4o", "stream": True})), "invalid_request", 1),
    ],
)
async def test_a_bad_input_fails_the_batch(policies: Policies, data: bytes, code: str, number: int | None) -> None:
    """With the line and a code, and without leaving an index."""
    bench = Bench(policies)
    await bench.accept(data)

    job = await bench.check()

    assert job.state is JobState.FAILED
    shown = batch_object(job)
    assert [(one["code"], one["line"]) for one in shown["errors"]["data"]] == [(code, number)]
    assert (shown["failed_at"], shown["output_file_id"], shown["error_file_id"]) == (
        int(bench.clock.wall()),
        None,
        None,
    )
    assert bench.blobs.names == ["files/input"]


async def test_the_bounds_of_a_batch_hold(policies: Policies) -> None:
    """Of lines, and of bytes."""
    for rules, code in ((BatchRules(max_lines=2), "too_many_tasks"), (BatchRules(max_bytes=100), "invalid_request")):
        bench = Bench(policies, JobRules(batches=rules))
        await bench.accept(lines(3))
        assert [one["code"] for one in (await bench.check()).marks[marks.ERRORS]] == [code]


async def test_a_batch_asks_for_what_its_key_may_use(tmp_path: Path) -> None:
    """A key that is gone, a model that is not there, a field by which a provider may choose another."""
    policies = Policies(snapshot(tmp_path, models={"gpt-4o": {"targets": ["main/gpt-4o"]}}))
    data = jsonl(
        line("a", body={"model": "gpt-5"}),
        line("b", body={"model": "gpt-4o", "Models": ["x"]}),
        line("c"),
    )
    for key, codes in (
        ("few", ["model_not_found", "invalid_request"]),
        ("web", ["model_not_found"]),
        ("gone", ["invalid_api_key"]),
    ):
        bench = Bench(policies)
        await bench.accept(data, key=key)
        assert [one["code"] for one in (await bench.check()).marks[marks.ERRORS]] == codes


async def test_what_only_the_callers_credential_could_serve_is_refused(tmp_path: Path) -> None:
    """Because no credential is ever stored."""
    policy = snapshot(tmp_path, providers={"main": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}})
    for brought, state in ((True, JobState.FAILED), (False, JobState.RUNNING)):
        bench = Bench(Policies(policy))
        about = {**batch().about, marks.INPUT: "files/input", marks.BROUGHT_CREDENTIAL: brought}
        await bench.accept(lines(2), about=about)
        job = await bench.check()
        assert job.state is state
        if brought:
            assert job.marks[marks.ERRORS][0]["code"] == "job_needs_provider_key"
            assert "providers.main.api_key" in job.marks[marks.ERRORS][0]["message"]


async def test_an_input_that_is_gone_fails_the_batch(policies: Policies) -> None:
    """It does not wait for ever."""
    bench = Bench(policies)
    await bench.accept(lines(2))
    await bench.blobs.remove(["files/input"])

    assert [one["code"] for one in (await bench.check()).marks[marks.ERRORS]] == ["input_no_permissions"]


async def test_a_check_that_kills_its_workers_is_not_tried_for_ever(policies: Policies) -> None:
    """The gateway would die of it after each start."""
    bench = Bench(policies)
    await bench.accept(lines(3))
    for _ in range(2):  # first it is put off for a second, in which other suspects would be met
        work = await bench.claim()
        died = replace(work, claims=4, job=replace(work.job, marks={ALONE: [0, 3]}))
        await bench.checks.run(RunningWork(died, bench.clock))
        bench.clock.advance(2.0)
    job = await bench.job()

    assert job.state is JobState.FAILED
    assert job.last_error is not None
    assert job.last_error.error_class == "server_error"


async def test_a_check_that_cannot_write_is_tried_again(policies: Policies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, and without an attempt being counted."""
    bench = Bench(policies)
    await bench.accept(lines(2))

    async def full(_name: str) -> Any:
        raise JobsUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.blobs, "writer", full)
        job = await bench.check()
        assert await bench.store.claim([ClaimRequest("slow", 1)]) == []
    bench.clock.advance(11)

    assert (job.stage, job.attempts) == (Stage.CHECK, 0)
    assert (await bench.check()).stage is Stage.RUN


async def test_a_check_lets_others_go_first(policies: Policies, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slice of a few milliseconds, here after each line; and is given back when the worker stops."""
    bench = Bench(policies)
    await bench.accept(lines(3000))
    monkeypatch.setattr(finish, "SLICE_S", 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await bench.check()
    other.cancel()
    assert turns > 2900

    stopped = Bench(policies)
    await stopped.accept(lines(3))
    running = RunningWork(await stopped.claim(), stopped.clock)
    running.drain()
    await stopped.checks.run(running)
    assert ((await stopped.job()).stage, (await stopped.claim()).piece) == (Stage.CHECK, CHECK)


async def test_a_finished_batch_has_its_lines_in_order(policies: Policies) -> None:
    """Answers in one file, failures in the other, and what they have cost."""
    bench = Bench(policies)
    await bench.accept(lines(40))
    await bench.check()
    for _ in range(3):
        await bench.run_chunk(lambda number: number % 10 == 3)
    lost = await bench.blobs.writer(marks.chunk_blob(ID, 0, 1, "output"))
    await lost.commit()

    job = await bench.finalise()

    assert job.state is JobState.SUCCEEDED
    output, errors = job.marks[marks.OUTPUT_FILE], job.marks[marks.ERROR_FILE]
    assert (output, errors) == (derived_file_id(ID, "output"), derived_file_id(ID, "errors"))
    assert [one["custom_id"] for one in await bench.file(output)] == [f"line {n}" for n in range(40) if n % 10 != 3]
    assert [one["custom_id"] for one in await bench.file(errors)] == [f"line {n}" for n in (3, 13, 23, 33)]
    assert job.tally == Tally(40, 36, 4, 80, 40, 120, 20.0)
    shown = batch_object(job)
    assert shown["status"] == "completed"
    assert shown["finalizing_at"] <= shown["completed_at"]
    listed, _ = await bench.store.files.page(FileQuery("web"))
    assert {one.filename for one in listed} == {f"{ID}_output.jsonl", f"{ID}_error.jsonl"}
    assert {one.expires_at for one in listed} == {bench.clock.wall() + RULES.keep_files_s}
    assert [name for name in bench.blobs.names if name.startswith("batch/")] == []


@pytest.mark.parametrize("is_failed", [True, False])
async def test_a_file_without_lines_is_none(policies: Policies, is_failed: bool) -> None:
    """As OpenAI has it: completed, also where every line has failed."""
    bench = Bench(policies)
    await bench.accept(lines(5))
    await bench.check()
    await bench.run_chunk(lambda _number: is_failed)

    shown = batch_object(await bench.finalise())

    assert shown["status"] == "completed"
    assert (shown["output_file_id"] is None) == is_failed
    assert (shown["error_file_id"] is None) == (not is_failed)


async def stopped_batch(bench: Bench, how: str) -> None:
    if how == "cancelled":
        await bench.store.flag(ID, "web", JobFlag.CANCEL)
    else:
        bench.clock.advance(3601)
        assert await bench.store.claim([]) == []
        bench.store.tick()


@pytest.mark.parametrize("how", ["cancelled", "expired"])
@settings(max_examples=25, deadline=None)
@given(total=st.integers(1, 80), complete=st.integers(0, 5), committed=st.integers(0, 16), odd=st.integers(1, 5))
async def test_a_batch_that_stops_early_tells_why_of_each_line_without_a_result(
    policies: Policies, how: str, total: int, complete: int, committed: int, odd: int
) -> None:
    """Whatever was done till then is kept; every line of the input is in one of the files, once."""
    bench = Bench(policies)
    await bench.accept(lines(total))
    await bench.check()
    chunks = -(-total // 16)
    for _ in range(min(complete, chunks)):
        await bench.run_chunk(lambda number: number % odd == 1)
    if complete < chunks and committed:
        await bench.run_chunk(most=committed)
    await stopped_batch(bench, how)

    job = await bench.finalise()

    output, errors = await bench.file(job.marks[marks.OUTPUT_FILE]), await bench.file(job.marks[marks.ERROR_FILE])
    assert len(output) == job.tally.completed
    assert len(errors) == job.tally.failed
    assert job.tally.completed + job.tally.failed == job.tally.total == total
    assert sorted(one["custom_id"] for one in output + errors) == sorted(f"line {n}" for n in range(total))
    stopped = [one for one in errors if one["response"] is None]
    assert {one["error"]["code"] for one in stopped} <= {f"batch_{how}"}
    is_whole = complete >= chunks or (complete == chunks - 1 and committed >= total - 16 * complete)
    assert len(stopped) == (0 if is_whole else total - min(total, 16 * complete + committed))
    assert batch_object(job)["status"] in ((how, "completed") if is_whole else (how,))
    if how == "cancelled":
        assert batch_object(job)["cancelling_at"] is not None


async def test_a_batch_that_stops_before_its_check_has_no_lines(policies: Policies) -> None:
    """And no files."""
    bench = Bench(policies)
    await bench.accept(lines(5))
    await bench.store.flag(ID, "web", JobFlag.CANCEL)

    shown = batch_object(await bench.finalise())

    assert (shown["status"], shown["request_counts"]["total"]) == ("cancelled", 0)
    assert (shown["output_file_id"], shown["error_file_id"]) == (None, None)


async def test_put_together_twice_it_is_the_same(policies: Policies, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the files and the end leaves no file that nobody knows."""
    bench = Bench(policies)
    await bench.accept(lines(20))
    await bench.check()
    await bench.run_chunk()
    await bench.run_chunk(lambda _number: True)
    work = await bench.claim()

    class Killed(Exception):
        pass

    async def dies(*_args: object) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "finish", dies)
        with pytest.raises(Killed):
            await bench.ends.run(RunningWork(work, bench.clock))
    first = {name: await bench.text(name) for name in bench.blobs.names}
    await bench.store.give_back(work, run_at=None, is_attempt=False)

    await bench.finalise()

    await bench.blobs.remove(await bench.store.files.find_garbage(10))
    again = {name: await bench.text(name) for name in bench.blobs.names}
    kept = {name: text for name, text in first.items() if not name.startswith(marks.batch_folder(ID))}
    assert [(name.partition(".")[0], text) for name, text in kept.items()] == [
        (name.partition(".")[0], text) for name, text in again.items()
    ]
    assert len((await bench.store.files.page(FileQuery("web")))[0]) == 2
    assert await bench.store.claim([ClaimRequest("slow", 9)]) == []


async def test_files_that_cannot_be_written_are_tried_again(
    policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch waits in `finalizing`; lost answers end it."""
    bench = Bench(policies)
    await bench.accept(lines(3))
    await bench.check()
    await bench.run_chunk()

    async def full(_name: str) -> Any:
        raise JobsUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.blobs, "writer", full)
        assert batch_object(await bench.finalise())["status"] == "finalizing"
    bench.clock.advance(11)
    await bench.blobs.remove([name for name in bench.blobs.names if name.endswith(".output")])

    job = await bench.finalise()

    assert (job.state, job.marks[marks.ERRORS][0]["code"]) == (JobState.FAILED, "server_error")


class Waiting(FakeClock):
    """A clock on which nothing is over until it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()
        self.slept_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        await self.over.wait()


async def test_an_end_that_the_store_forgets_is_written_once_more(policies: Policies) -> None:
    """A server may lose its last seconds: what the files are made of stays until the end of the batch is safe."""
    bench = Bench(policies)
    await bench.accept(lines(20))
    await bench.check()
    for _ in range(2):
        await bench.run_chunk()
    work = await bench.claim()
    forgetful = deepcopy(bench.store)
    setattr(bench.store, "durability_lag_s", 5.0)  # noqa: B010  # of a server that writes to its disk now and then
    clock = Waiting()
    ends = BatchFinalizer(bench.store, bench.blobs, clock, lambda _job: RULES)
    ending = asyncio.create_task(ends.run(RunningWork(work, clock)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert (await bench.job()).state.is_end

    bench.store = forgetful
    await BatchFinalizer(forgetful, bench.blobs, bench.clock, lambda _job: RULES).run(RunningWork(work, bench.clock))

    job = await bench.job()
    assert (job.state, job.tally.completed) == (JobState.SUCCEEDED, 20)
    assert len(await bench.file(job.marks[marks.OUTPUT_FILE])) == 20
    clock.over.set()
    await ending
    assert clock.slept_s == 5.0
    assert not any(name.startswith(marks.batch_folder(ID)) for name in bench.blobs.names)
