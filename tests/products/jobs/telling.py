"""A process that takes jobs and a batch, runs them, and tells what was promised to it; and what must be there afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from gateway.products.jobs.model import FINALISE, ChunkPlan, ClaimedWork, ClaimRequest, JobState, Stage, StoredAnswer
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.features.runs.test_run_store import step
from tests.support.conformance import Wall
from tests.support.job_stores import Jobs, chunk, line, part

LINES, PER_CHUNK = 400, 20


def worker(path: str, life: int, writable: int) -> Callable[[], None]:
    """Takes jobs and a batch, runs whatever there is, and tells what it was told to be kept."""

    async def live() -> None:
        jobs = Jobs(SqliteJobStore(path, Wall()), Wall())

        def tell(*words: object) -> None:
            os.write(writable, (" ".join(map(str, words)) + "\n").encode())

        async def accept(lane: int) -> None:
            for number in range(10_000):
                job = await jobs.call(id=f"call-{life}-{lane}-{number}", payload=b"x" * 1000)
                tell("accepted", job.id)

        async def run(_: int) -> None:
            while True:
                for work in await jobs.store.claim([ClaimRequest("fast", 3)]):
                    await run_piece(jobs, work, tell)

        async def keep(lane: int) -> None:
            for number in range(10_000):
                name = f"{life}-{lane}-{number}"
                await jobs.store.runs.keep_step(step(jobs, name, name.encode() * 100))
                tell("step", name)

        await jobs.accept(jobs.new_batch(id="batch"))
        tell("accepted", "batch")
        await asyncio.gather(*map(accept, range(2)), *map(run, range(3)), keep(0))

    return lambda: asyncio.run(live())


async def run_piece(jobs: Jobs, work: ClaimedWork, tell: Callable[..., None]) -> None:
    if work.job.stage is Stage.CHECK:
        await jobs.store.begin_lines(work, ChunkPlan(LINES, PER_CHUNK, 4), {})
    elif work.piece == FINALISE:
        await jobs.finish(work)
        tell("ended", work.job.id)
    elif work.job.id == "batch":
        there = {result.line for result in await jobs.store.results(work)}
        for number in range(work.piece * PER_CHUNK, (work.piece + 1) * PER_CHUNK):
            if number not in there:
                await jobs.store.commit(work, [line(number, str(work.fence))])
                tell("line", number)
        await jobs.store.complete_chunk(work, chunk(work.piece))
    else:
        for number in range(3):
            await jobs.store.events.append(work, part(number, text=str(work.fence)))
        await jobs.store.responses.put(jobs.response(work.job.id, body=str(work.fence).encode()))
        tell("kept", work.job.id)
        if work.job.id.endswith("5"):
            await jobs.store.responses.remove(work.job.id, "t")
            tell("removed", work.job.id)
        await jobs.finish(work, answer=StoredAnswer(200, [], str(work.fence).encode()))
        tell("ended", work.job.id)


async def check_told(path: str, told: list[list[str]]) -> None:
    """Compares what was told with what is there; raises AssertionError or JobNotFound."""
    jobs = Jobs(SqliteJobStore(path, Wall()), Wall())
    words = ("accepted", "ended", "line", "kept", "removed", "step")
    names = {word: [name for told_word, name in told if told_word == word] for word in words}
    for name in names["step"]:
        kept = await jobs.store.runs.find_step("t", "order-1", name)
        assert kept is not None
        assert kept.body == name.encode() * 100
    for name in names["accepted"]:
        await jobs.get(name)
        page = await jobs.log(name)
        assert page.parts == [part(number, text=str(page.generation)) for number in range(len(page.parts))]
    for name in names["ended"]:
        assert (await jobs.get(name)).state is JobState.SUCCEEDED
        assert len((await jobs.log(name)).parts) == (0 if name == "batch" else 3)
    for name in names["kept"]:
        found = await jobs.store.responses.find(name, "t")
        assert (found is None) if name in names["removed"] else (found is not None or name.endswith("5"))
    for word in ("ended", "line"):
        assert len(names[word]) == len(set(names[word]))
    if "batch" in names["accepted"]:
        assert (await jobs.get("batch")).tally.completed >= len(names["line"])
    await jobs.store.aclose()


async def run_the_rest(path: str) -> None:
    """Runs what is left to its end: the batch has each line once."""
    jobs = Jobs(SqliteJobStore(path, Wall()), Wall())
    while left := await jobs.store.claim([ClaimRequest("fast", 10_000)]):
        for work in left:
            await run_piece(jobs, work, lambda *_: None)
    batch = await jobs.get("batch")
    assert (batch.state, batch.tally.completed) == (JobState.SUCCEEDED, LINES)
    await jobs.store.aclose()


if __name__ == "__main__":  # a process to be watched from outside: its file, and the descriptor that it tells on
    os.write(int(sys.argv[2]), f"{os.getpid()}\n".encode())
    worker(sys.argv[1], 0, int(sys.argv[2]))()
