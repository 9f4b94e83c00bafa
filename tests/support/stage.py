"""Jobs in virtual time: a worker on a store in memory, and a provider that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import orjson

from gateway.core.call import Call, Reply
from gateway.core.errors import GatewayError
from gateway.core.metrics import Metrics
from gateway.core.types import Usage
from gateway.products.batches.chunk import ChunkRunner
from gateway.products.batches.input import IndexEntry, pack_entry, plan_chunks
from gateway.products.batches.output import ENDPOINT, INDEX, INPUT, LINES_PER_CHUNK, PARALLEL
from gateway.products.jobs.calls import CallServer, StoredRequest
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import (
    CHECK,
    FINALISE,
    ClaimedWork,
    Following,
    Job,
    JobEnd,
    JobKind,
    JobState,
    NewJob,
    WriteResult,
    nothing_follows,
)
from gateway.products.jobs.rules import BatchRules, JobRules, SegmentRules
from gateway.products.jobs.runner import CallJobs
from gateway.products.jobs.worker import JobWorker, RunningWork, Write
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore
from tests.support.virtual import LoopClock

BODY = b'{"model":"m","messages":[]}'
Script = Callable[[StoredRequest, int], "float | int | GatewayError | tuple[float, int]"]
"""What becomes of the n-th try of a request: seconds until it is answered with 200, a status, an error, or both."""


def fine(_request: StoredRequest, _try: int) -> float:
    """Answers everything after a tenth of a second."""
    return 0.1


@dataclass
class Stage:
    """A worker, its store, and what went through the pipeline."""

    clock: LoopClock
    script: Script = fine
    rules: JobRules = field(default_factory=lambda: JobRules(segments=(SegmentRules("all", concurrency=10),)))
    store: MemoryJobStore = field(init=False)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    tries: list[str] = field(default_factory=list)
    """The ids of all requests that were served, in order."""
    running: int = 0
    has_room: bool = True
    most_running: int = 0
    broken_off: list[str] = field(default_factory=list)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By batch, the lines of its complete chunks when it was finalised, in order of chunks: those with an answer first."""
    class_of: Mapping[int, str] = field(default_factory=lambda: {401: "auth", 500: "server_error", 400: "bad_request"})
    held: Callable[[str], bool] = lambda _id: False
    following: Following = nothing_follows
    model_of: Callable[[int], int] = lambda _line: 0
    """The number of a line's model in its batch's list."""
    endpoint: str = "/v1/chat/completions"

    def __post_init__(self) -> None:
        self.store = self.open_store()
        server = CallServer(self.make_call, self.serve, self.clock)
        self.changed: list[str] = []
        self.metrics = Metrics()
        self.meter = JobMeter(self.metrics)
        self.calls = CallJobs(self.store, server, self.clock, self._rules_of, lambda: 1.0)
        self.chunks = ChunkRunner(self.store, self.blobs, server, self.clock, self._rules_of, lambda: 1.0)
        self.worker = self.make_worker()

    def restart(self) -> None:
        """Replaces what the process knew of chunks, and its worker."""
        server = CallServer(self.make_call, self.serve, self.clock)
        self.chunks = ChunkRunner(self.store, self.blobs, server, self.clock, self._rules_of, lambda: 1.0)
        self.worker = self.make_worker()

    def open_store(self) -> MemoryJobStore:
        """Returns an empty store."""
        return MemoryJobStore(self.clock.wall, following=self.following)

    def make_worker(self) -> JobWorker:
        """Returns another worker on the same store."""
        changed = self.changed.append
        return JobWorker(
            self.store,
            self.run_piece,
            self.clock,
            lambda: self.rules.segments,
            self.meter,
            changed,
            lambda: self.has_room,
            write=self.write,
        )

    def write(self, _job: Job, write: Write) -> Awaitable[WriteResult]:
        """Writes what has become of a job."""
        return write()

    def _rules_of(self, _job: Job) -> JobRules:
        return self.rules

    async def run_piece(self, running: RunningWork) -> None:
        """Runs calls and chunks as the gateway does; checks nothing, and puts nothing together."""
        work = running.work
        if work.job.kind is JobKind.CALL:
            await self.calls.run(running)
        elif work.piece == CHECK:
            await self._check(work)
        elif work.piece == FINALISE:
            self.lines[work.job.id] = await self._read_chunks(work.job.id)
            end = JobEnd(work.job.ends_as or JobState.SUCCEEDED)
            await running.write(lambda: self.store.finish(work, end))
        else:
            await self.chunks.run(running)

    async def _check(self, work: ClaimedWork) -> None:
        job = work.job
        text = b"".join([part async for part in self.blobs.read(job.about[INPUT])])
        offset, index = 0, []
        for number, line in enumerate(text.splitlines()):
            index.append(pack_entry(IndexEntry(offset, len(line), self.model_of(number))))
            offset += len(line) + 1
        await self.write_blob("index", b"".join(index))
        plan = plan_chunks(len(index), self._rules_of(job).batches)
        marks = {INDEX: "index", LINES_PER_CHUNK: plan.lines_per_chunk, PARALLEL: plan.parallel}
        await self.store.begin_lines(work, plan, marks)

    async def write_blob(self, name: str, data: bytes) -> None:
        """Writes a blob."""
        writer = await self.blobs.writer(name)
        await writer.write(data)
        await writer.commit()

    async def make_call(self, request: StoredRequest) -> Call:
        """Returns what stands for a call: just what jobs read of one."""
        call = SimpleNamespace(
            id=request.id,
            request=request,
            attempts=[],
            outcome="",
            usage=None,
            held=None,
            slots=None,
            task=None,
            settled=False,
        )
        return cast(Call, call)

    async def serve(self, call: Call) -> Reply:
        """Stands for the pipeline."""
        seen: Any = call
        number = self.tries.count(seen.id)
        self.tries.append(seen.id)
        said = self.script(seen.request, number)
        if isinstance(said, GatewayError):
            raise said
        seconds, status = said if isinstance(said, tuple) else (said, 200) if isinstance(said, float) else (0.1, said)
        while self.held(seen.id):
            seen.held = "in the queue"
            await asyncio.sleep(0.01)
        seen.held = None
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.broken_off.append(seen.id)
            raise
        finally:
            self.running -= 1
        seen.usage, seen.outcome = Usage(3, 2), "ok" if status == 200 else self.class_of.get(status, "unknown")
        body = orjson.dumps({"answer": seen.id})
        return Reply(status, [], body, shared=[(b"content-type", b"application/json")])

    def new_job(self, id: str = "job_1", **changes: Any) -> NewJob:
        """Returns a call that is due now."""
        now = self.clock.wall()
        job = Job(
            id=id,
            kind=JobKind.CALL,
            tenant="t",
            key="web",
            lane="batch",
            segment="all",
            is_urgent=False,
            model="m",
            state=JobState.QUEUED,
            created_at=now,
            run_at=now,
            deadline=now + 3600,
            max_attempts=3,
            about={"endpoint": "/v1/chat/completions", "headers": []},
        )
        return NewJob(replace(job, **changes), BODY)

    async def accept(self, *ids: str, **changes: Any) -> None:
        """Takes calls with these ids."""
        await self.store.accept([self.new_job(id, **changes) for id in ids])

    async def accept_batch(self, lines: int, id: str = "batch_1", body: bytes = BODY, **changes: Any) -> None:
        """Takes a batch of so many good lines."""
        text = b'{"custom_id":"c%d","method":"POST","url":"%b","body":%b}'
        texts = [text % (number, self.endpoint.encode(), body) for number in range(lines)]
        await self.write_blob("input", b"".join(text + b"\n" for text in texts))
        about = {ENDPOINT: self.endpoint, INPUT: "input", **changes.pop("about", {})}
        new = self.new_job(id, kind=JobKind.BATCH, about=about, max_attempts=1, **changes)
        await self.store.accept([replace(new, payload=b"", first_piece=CHECK)])

    async def end_of(self, id: str = "job_1", within_s: float = 10_000.0) -> Job:
        """Waits until a job has ended."""
        ends_at = self.clock.monotonic() + within_s
        while (job := await self.store.find(id, None)) is None or not job.state.is_end:
            assert self.clock.monotonic() < ends_at, f"it has not ended: {job}"
            self.store.tick()
            await asyncio.sleep(0.05)
        return job

    async def _read_chunks(self, id: str) -> list[dict[str, Any]]:
        lines = []
        for chunk in await self.store.chunk_results(id):
            for name in (chunk.output, chunk.errors):
                if name:
                    text = b"".join([part async for part in self.blobs.read(name)])
                    lines += [orjson.loads(line) for line in text.splitlines()]
        return lines


def few_lines(**changes: Any) -> JobRules:
    """Returns rules for batches in a small window."""
    batches = replace(BatchRules(window=8), **changes)
    return JobRules(segments=(SegmentRules("all", concurrency=10),), batches=batches)
