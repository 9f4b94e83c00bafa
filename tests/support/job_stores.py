"""What every store of jobs is tried with: a clock moved by hand, and jobs in few words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from gateway.products.jobs.model import (
    CHECK,
    FINALISE,
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobState,
    LineResult,
    NewJob,
    Stage,
    StoredAnswer,
    StoredFile,
    WriteResult,
)
from gateway.products.jobs.response_store import KeptBounds, LogPage, LogPart, StoredResponse
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall


class MakeJobStore(Protocol):
    """A new, empty store on every call, on the clock of the test; the fixture closes what it made."""

    def __call__(self, bounds: OpenBounds, kept_bounds: KeptBounds | None = None) -> JobStore: ...


HOUR_S, DAY_S = 3600.0, 86_400.0
OURS, STALE = WriteResult(True), WriteResult(False)
ERROR = JobError("server_error", "The provider failed.", 1_700_000_000.0)
ANSWER = StoredAnswer(200, [("content-type", "application/json")], b'{"id":"x"}')


def key(*parts: object) -> bytes:
    """32 bytes that stand for these."""
    return hashlib.sha256(repr(parts).encode()).digest()


def line(number: int, text: str = "ok", *, is_failed: bool = False) -> LineResult:
    """A result that costs a little of everything."""
    return LineResult(number, is_failed, f"{text} {number}\n".encode(), 10, 4, 2, 0.5, 1)


def chunk(number: int) -> ChunkResult:
    return ChunkResult(number, f"chunk-{number}.out", 100 + number, f"chunk-{number}.err", 0)


class Jobs:
    """A store and its clock."""

    def __init__(self, store: JobStore, wall: Wall) -> None:
        self.store = store
        self.wall = wall
        self.wakes = 0
        self._numbers = count(1)
        store.on_ready(self._woken)

    def _woken(self) -> None:
        self.wakes += 1

    def job(self, **fields: Any) -> Job:
        now = self.wall()
        usual: dict[str, Any] = {
            "id": f"job-{next(self._numbers)}",
            "kind": JobKind.CALL,
            "tenant": "t",
            "key": "k",
            "lane": "batch",
            "segment": "fast",
            "is_urgent": False,
            "model": "m",
            "state": JobState.QUEUED,
            "created_at": now,
            "run_at": now,
            "deadline": now + DAY_S,
            "max_attempts": 5,
            "about": {"endpoint": "/v1/chat/completions"},
        }
        return Job(**{**usual, **fields})

    def new(self, *, payload: bytes = b"{}", more: Mapping[str, Any] | None = None, **fields: Any) -> NewJob:
        """A call; `more` are fields of the NewJob."""
        return NewJob(self.job(**fields), payload=payload, fingerprint=key(payload), **(more or {}))

    def new_batch(self, *, reads: str = "", **fields: Any) -> NewJob:
        job = self.job(kind=JobKind.BATCH, stage=Stage.CHECK, model="", **fields)
        return NewJob(job, first_piece=CHECK, reads=reads)

    async def accept(self, new: NewJob) -> Accepted:
        (accepted,) = await self.store.accept([new])
        return accepted

    async def call(self, **fields: Any) -> Job:
        """Takes a call in."""
        return (await self.accept(self.new(**fields))).job

    async def batch(self, **fields: Any) -> Job:
        return (await self.accept(self.new_batch(**fields))).job

    async def claim_all(self, most: int = 100, segment: str = "fast") -> Sequence[ClaimedWork]:
        return await self.store.claim([ClaimRequest(segment, most)])

    async def claim(self) -> ClaimedWork:
        """Claims the one piece that is due."""
        (work,) = await self.claim_all(1)
        return work

    async def running_call(self, **fields: Any) -> ClaimedWork:
        await self.call(**fields)
        return await self.claim()

    async def running_batch(self, total: int = 6, per_chunk: int = 2, parallel: int = 2, **fields: Any) -> Job:
        """Takes a batch in and checks it: its first chunks are ready."""
        await self.batch(**fields)
        check = await self.claim()
        assert await self.store.begin_lines(check, ChunkPlan(total, per_chunk, parallel), {"checked": True}) == OURS
        return await self.get(check.job.id)

    async def run_chunk(self, work: ClaimedWork, per_chunk: int = 2) -> WriteResult:
        """Commits every line of a chunk, and completes it."""
        numbers = range(work.piece * per_chunk, (work.piece + 1) * per_chunk)
        await self.store.commit(work, [line(number) for number in numbers])
        return await self.store.complete_chunk(work, chunk(work.piece))

    async def until_finalise(self) -> ClaimedWork:
        """Runs all chunks of a batch."""
        while (work := await self.claim()).piece != FINALISE:
            await self.run_chunk(work)
        return work

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None = None, error: JobError | None = None, is_attempt: bool = False
    ) -> WriteResult:
        return await self.store.give_back(work, run_at=run_at, error=error, is_attempt=is_attempt)

    async def finish(self, work: ClaimedWork, state: JobState = JobState.SUCCEEDED, **fields: Any) -> WriteResult:
        return await self.store.finish(work, JobEnd(state, **fields))

    async def get(self, job_id: str) -> Job:
        job = await self.store.find(job_id, None)
        assert job is not None
        return job

    async def tick(self, seconds: float = 0.0) -> None:
        """Lets time pass and the store do what is due."""
        self.wall.advance(seconds)
        self.store.tick()
        await self.store.find("nobody's", None)  # what was asked before is done by then

    def file(self, file_id: str, **fields: Any) -> StoredFile:
        usual: dict[str, Any] = {
            "id": file_id,
            "tenant": "t",
            "purpose": "batch",
            "filename": f"{file_id}.jsonl",
            "bytes": 10,
            "created_at": self.wall(),
            "expires_at": None,
            "blob": f"files/{file_id}",
        }
        return StoredFile(**{**usual, **fields})

    def response(self, response_id: str, **fields: Any) -> StoredResponse:
        usual: dict[str, Any] = {
            "id": response_id,
            "tenant": "t",
            "created_at": self.wall(),
            "keep_until": self.wall() + DAY_S,
            "previous_id": "",
            "body": b'{"id":"%b"}' % response_id.encode(),
            "input_items": b"[]",
        }
        return StoredResponse(**{**usual, **fields})

    async def running_response(self, **fields: Any) -> ClaimedWork:
        return await self.running_call(kind=JobKind.RESPONSE, **fields)

    async def log(self, job_id: str, after: int = -1, most_bytes: int = 1024 * 1024) -> LogPage:
        page = await self.store.events.read(job_id, "t", after, most_bytes)
        assert page is not None
        return page

    async def take_garbage(self, most: int) -> list[str]:
        """Finds garbage, and forgets it as if its blobs were removed."""
        names = sorted(await self.store.files.find_garbage(most))
        await self.store.files.forget_garbage(names)
        return names

    def numbers(self) -> dict[str, int]:
        """How many pieces are in each state, over all segments and lanes."""
        counts: dict[str, int] = {}
        for (_, _, state), depth in self.store.depth().items():
            counts[state] = counts.get(state, 0) + depth.number
        return {state: number for state, number in counts.items() if number}


def pieces(works: Sequence[ClaimedWork]) -> list[int]:
    return [work.piece for work in works]


def ids(works: Sequence[ClaimedWork]) -> list[str]:
    return [work.job.id for work in works]


def part(first: int, last: int | None = None, text: str = "x") -> LogPart:
    """Events of a log, `text` in each."""
    last = first if last is None else last
    events = [f"event: {text}\ndata: {number}\n\n" for number in range(first, last + 1)]
    return LogPart(first, last, "".join(events).encode())
