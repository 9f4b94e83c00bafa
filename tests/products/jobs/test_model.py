"""The SQLite store beside the one in memory, which is obviously right: whatever is done to both, they answer the same.

Also across restarts of the SQLite store, after which the claims of before are given back in memory as well.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.products.jobs.dead_letters.rules import REDRIVES, LetterPage, derived_letter_id
from gateway.products.jobs.model import (
    CHECK,
    FINALISE,
    WITH_FAILURES,
    ChunkPlan,
    ClaimedWork,
    ClaimRequest,
    FileQuery,
    JobEnd,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
    TooManyJobs,
)
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, ERROR, Jobs, chunk, key, line
from tests.support.memory_store.store import MemoryJobStore
from tests.support.sqlite_support import connect_hastily

TENANTS = st.sampled_from(["a", "b"])
LANES = st.sampled_from(["interactive", "batch"])
SEGMENTS = st.sampled_from(["fast", "slow"])
KEYS = st.sampled_from([b"", b"", key(1), key(2)])
DELAYS = st.sampled_from([0.0, 0.0, 3.0, 20.0])
NUMBERS = st.integers(0, 30)
ROOM = OpenBounds(12, 8)


def name_of(number: int) -> str:
    """The id of a job; they sort like their numbers."""
    return f"j{number:04}"


class TwoStores(RuleBasedStateMachine):
    """Every rule does one thing to both stores and compares what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.mkdtemp()
        self.wall = Wall()
        self.memory: JobStore = MemoryJobStore(self.wall, ROOM)
        self.other: JobStore
        self.works: list[tuple[ClaimedWork, ClaimedWork]] = []
        """The claims that both have given, also those that have ended."""
        self.named = 0
        self.jobs = Jobs(self.memory, self.wall)

    @initialize()
    def open(self) -> None:
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.other = SqliteJobStore(str(Path(self.folder) / "jobs.db"), self.wall, ROOM, connect=connect_hastily)

    def teardown(self) -> None:
        if hasattr(self, "other"):
            self.runner.run(self.other.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    def both(self, ask: Callable[[JobStore], Awaitable[Any]]) -> Any:
        """Asks both the same, and returns what they say."""
        answers = [self.runner.run(self._answer(ask, store)) for store in (self.memory, self.other)]
        assert answers[0] == answers[1]
        return answers[0]

    @staticmethod
    async def _answer(ask: Callable[[JobStore], Awaitable[Any]], store: JobStore) -> Any:
        try:
            answer = await ask(store)
        except TooManyJobs as refused:
            return refused.message
        return list(answer) if isinstance(answer, Sequence) and not isinstance(answer, tuple) else answer

    def write(self, index: int, write: Callable[[JobStore, ClaimedWork], Awaitable[Any]]) -> None:
        """Writes about a claim to each store, with its own fence."""
        works = self.works[index % len(self.works)]
        answers = [
            self.runner.run(self._answer(lambda store, work=work: write(store, work), store))  # type: ignore[misc]  # bound at once
            for store, work in zip((self.memory, self.other), works, strict=True)
        ]
        assert answers[0] == answers[1]

    @rule(
        batch=st.booleans(), tenant=TENANTS, lane=LANES, segment=SEGMENTS, urgent=st.booleans(), delay=DELAYS,
        lifetime=st.sampled_from([5.0, 40.0, 1000.0]), dedupe=KEYS, debounce=KEYS, payload=st.sampled_from([b"1", b"2"]),
        twice=st.booleans(),
    )  # fmt: skip
    def accept(self, batch: bool, delay: float, lifetime: float, dedupe: bytes, debounce: bytes, payload: bytes,
               twice: bool, **fields: Any) -> None:  # fmt: skip
        now = self.wall()
        urgent = fields.pop("urgent")
        dedupe, debounce = (named and key(fields["tenant"], named) for named in (dedupe, debounce))
        about = {"metadata": {"payload": payload.decode()}}

        def new() -> NewJob:
            self.named += 1
            job = self.jobs.job(
                id=name_of(self.named), is_urgent=urgent, run_at=now + delay, deadline=now + lifetime, about=about,
                kind=JobKind.BATCH if batch else JobKind.CALL, **fields,
            )  # fmt: skip
            return NewJob(
                job, payload, CHECK if batch else 0, f"blobs/{self.named % 3}" if batch else "", payload, dedupe,
                now + 30.0, debounce, 5.0, 12.0,
            )  # fmt: skip

        given = [new() for _ in range(1 + twice)]
        self.both(lambda store: store.accept(given))

    @rule(first=SEGMENTS, second=SEGMENTS, most=st.integers(1, 4))
    def claim(self, first: str, second: str, most: int) -> None:
        asks = [ClaimRequest(first, most), ClaimRequest(second, 1)]
        ours, theirs = [self.runner.run(store.claim(asks)) for store in (self.memory, self.other)]
        assert [replace(work, fence=0) for work in ours] == [replace(work, fence=0) for work in theirs]
        self.works += zip(ours, theirs, strict=True)

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, delay=DELAYS, is_attempt=st.booleans(), error=st.sampled_from([None, ERROR]))
    def give_back(self, index: int, delay: float, is_attempt: bool, error: Any) -> None:
        run_at = self.wall() + delay if delay else None
        self.write(index, lambda store, work: store.give_back(work, run_at=run_at, error=error, is_attempt=is_attempt))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, total=st.integers(0, 7), parallel=st.integers(1, 3))
    def begin(self, index: int, total: int, parallel: int) -> None:
        plan = ChunkPlan(total, 2, parallel)
        self.write(index, lambda store, work: store.begin_lines(work, plan, {"total": total}))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, numbers=st.lists(st.integers(0, 1), max_size=3), is_failed=st.booleans(), text=KEYS)
    def commit(self, index: int, numbers: list[int], is_failed: bool, text: bytes) -> None:
        def write(store: JobStore, work: ClaimedWork) -> Awaitable[Any]:
            first = 2 * max(0, work.piece)
            return store.commit(work, [line(first + n, text.hex(), is_failed=is_failed) for n in numbers])

        self.write(index, write)
        self.write(index, lambda store, work: store.results(work))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS)
    def complete(self, index: int) -> None:
        self.write(index, lambda store, work: store.complete_chunk(work, chunk(max(0, work.piece))))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, mark=st.sampled_from([None, 1, {"a": [2]}]))
    def note(self, index: int, mark: Any) -> None:
        self.write(index, lambda store, work: store.note(work, {"said": mark}))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, state=st.sampled_from([JobState.SUCCEEDED, JobState.FAILED]), follows=st.booleans())
    def finish(self, index: int, state: JobState, follows: bool) -> None:
        self.named += follows
        following = [self.jobs.new(id=name_of(self.named), tenant="a")] if follows else []
        is_dead = not follows and state is JobState.FAILED
        end = JobEnd(state, ERROR, ANSWER, marks={"x": 1}, is_attempt=follows, is_dead=is_dead)

        def write(store: JobStore, work: ClaimedWork) -> Awaitable[Any]:
            is_end = work.job.kind is not JobKind.BATCH or work.piece == FINALISE
            return store.finish(work, end, following) if is_end else store.renew([work])

        self.write(index, write)

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS, job=NUMBERS, number=st.integers(1, 2))
    def replay(self, index: int, job: int, number: int) -> None:
        letter_id = derived_letter_id(name_of(job), None)
        self.named += 1
        new = self.jobs.new(id=name_of(self.named), tenant="a", about={REDRIVES: letter_id})
        self.write(index, lambda store, work: store.dead.redrive(work, letter_id, number, new))

    @rule(ago=st.sampled_from([10.0, 100.0]), bytes=st.sampled_from([0, 2, 1000]), most=st.integers(1, 3))
    def trim(self, ago: float, bytes: int, most: int) -> None:
        self.both(lambda store: store.dead.trim(self.wall() - ago, bytes, most))

    @rule(numbers=st.lists(NUMBERS, max_size=3))
    def purge(self, numbers: list[int]) -> None:
        letter_ids = [derived_letter_id(name_of(number), None) for number in numbers]
        self.both(lambda store: store.dead.purge(letter_ids))

    @precondition(lambda self: self.works)
    @rule(index=NUMBERS)
    def look(self, index: int) -> None:
        self.write(index, lambda store, work: store.renew([work]))
        self.write(index, lambda store, work: store.open_results(work))
        self.write(index, lambda store, work: store.chunk_results(work.job.id))
        self.write(index, lambda store, work: store.answer(work.job.id, work.job.tenant))

    @rule(number=NUMBERS, tenant=st.sampled_from(["a", "b", None]), flag=st.sampled_from(list(JobFlag)))
    def flag(self, number: int, tenant: str | None, flag: JobFlag) -> None:
        self.both(lambda store: store.flag(name_of(number), tenant, flag))

    @rule(
        tenant=st.sampled_from(["a", "b", None]), kind=st.sampled_from([None, *JobKind]), limit=st.integers(1, 4),
        statuses=st.lists(st.sampled_from([*JobState, WITH_FAILURES]), max_size=2), after=st.none() | NUMBERS,
        metadata=st.sampled_from([{}, {"payload": "1"}]), parent=st.none() | st.just(-1) | NUMBERS,
    )  # fmt: skip
    def list_jobs(self, after: int | None, parent: int | None, **fields: Any) -> None:
        run = None if parent is None else name_of(parent) if parent >= 0 else ""
        query = JobQuery(after=None if after is None else name_of(after), parent=run, **fields)
        self.both(lambda store: store.list_jobs(query))

    @rule(number=st.integers(0, 3), tenant=TENANTS, blob=st.integers(0, 3), lifetime=st.sampled_from([None, 10.0]))
    def add_file(self, number: int, tenant: str, blob: int, lifetime: float | None) -> None:
        expires_at = None if lifetime is None else self.wall() + lifetime
        file = self.jobs.file(f"f{number}", tenant=tenant, blob=f"blobs/{blob}", expires_at=expires_at)
        self.both(lambda store: store.files.add(file))

    @rule(number=st.integers(0, 3), tenant=TENANTS)
    def remove_file(self, number: int, tenant: str) -> None:
        self.both(lambda store: store.files.find(f"f{number}", tenant))
        self.both(lambda store: store.files.remove(f"f{number}", tenant))

    @rule(tenant=TENANTS, after=st.none() | st.integers(0, 3), is_newest_first=st.booleans())
    def list_files(self, tenant: str, after: int | None, is_newest_first: bool) -> None:
        name = None if after is None else f"f{after}"
        self.both(lambda store: store.files.page(FileQuery(tenant, None, name, 2, is_newest_first)))
        self.both(lambda store: store.files.bytes_of(tenant))
        self.both(lambda store: store.files.bytes_of(None))

    @rule()
    def take_garbage(self) -> None:
        async def garbage(store: JobStore) -> list[str]:
            names = sorted(await store.files.find_garbage(100))
            await store.files.forget_garbage(names[::2])
            return [*names, *sorted(await store.files.used([f"blobs/{number}" for number in range(4)]))]

        self.both(garbage)

    @rule(ago=st.sampled_from([0.0, 10.0]), most=st.integers(1, 20))
    def forget(self, ago: float, most: int) -> None:
        self.both(lambda store: store.forget_ended(self.wall() - ago, most))

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.wall.advance(seconds)

    @rule()
    def tick(self) -> None:
        async def ticked(store: JobStore) -> None:
            store.tick()
            await store.find("nobody's", None)

        self.both(ticked)

    @precondition(lambda self: any(self._held()))
    @rule()
    def restart(self) -> None:
        """Only SQLite: what was claimed is ready again there, so that both are told to have ended it first."""
        for index in range(len(self.works)):
            self.write(index, lambda store, work: store.give_back(work, run_at=None, is_attempt=False))
        self.runner.run(self.other.aclose())
        self.runner.run(self._open())

    def _held(self) -> list[bool]:
        return [bool(self.works)]

    @invariant()
    def they_agree(self) -> None:
        """On every job there is, and on how many pieces are in which state."""
        if hasattr(self, "other"):
            self.both(lambda store: store.list_jobs(JobQuery(None, limit=1000)))
            self.both(self._letters)
            self.runner.run(self._look())
            ours, theirs = [
                {name: depth.number for name, depth in store.depth().items()} for store in (self.memory, self.other)
            ]
            assert ours == theirs

    async def _look(self) -> None:
        """Sees to it that the other store knows how much waits and runs."""

    async def _letters(self, store: JobStore) -> list[Any]:
        """All that is said of dead letters."""
        groups = await store.dead.groups(2)
        found: list[Any] = [groups]
        for group in groups:
            found += [await store.dead.page(LetterPage(group.id, limit=1000))]
        for letter_id in sorted(letter.id for page in found[1:] for letter in page):
            found += [await store.dead.payload(letter_id)]
        return found


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(
    max_examples=2 * settings().max_examples // 3,  # 20, and in the soak ten times as many and more
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],  # to shrink a failure takes minutes: add Phase.shrink when there is one
    suppress_health_check=list(HealthCheck),
)
