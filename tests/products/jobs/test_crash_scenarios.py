"""What has gone wrong elsewhere when processes died with batches in their hands, each by the name it has there.

In virtual time, on every store of jobs. What is promised is the same each time: every line has one result, an end that was told
stays, and what had its result is not paid for again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.products.batches import output as marks
from gateway.products.jobs import model
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import (
    FINALISE,
    FileQuery,
    JobEnd,
    JobFlag,
    JobState,
    LineResult,
    StoredAnswer,
    derived_file_id,
    new_id,
)
from gateway.products.jobs.upkeep import JobCleaning
from tests.support.redis_servers import RedisServer
from tests.support.stage import few_lines
from tests.support.town import KINDS, Process, Town, Where, town
from tests.support.virtual import LoopClock, run

LINES = 60
WINDOW = 8
BATCH = new_id(model.BATCH, bytes(16))
Story = Callable[[Town], Coroutine[Any, Any, None]]
Tell = Callable[[Story], None]


@pytest.fixture(params=list(KINDS))
def tell(request: pytest.FixtureRequest, tmp_path: Path, _redis_process: RedisServer) -> Tell:
    """Tells a story of processes that share a store."""

    def told(story: Story) -> None:
        async def whole(clock: LoopClock) -> None:
            async with town(request.param, clock, Where(tmp_path, _redis_process.url)) as one:
                await story(one)

        run(whole)

    return told


def number_of(request: StoredRequest) -> int:
    """The number of a line's request."""
    return int(request.id[-6:])


def test_terminal_overwrite(tell: Tell) -> None:
    """An end stays, whoever comes late: a worker that was taken for dead, a cancel, the deadline."""

    async def story(here: Town) -> None:
        frozen = here.start()
        frozen.view.dies_before = "finish"
        await frozen.accept_batch(LINES, id=BATCH, deadline=here.clock.wall() + 300)
        await here.dies(frozen)
        other = here.start()
        done = await other.end_of(BATCH)
        (stale,) = [work for work in frozen.view.claims if work.piece == FINALISE]

        late = await other.store.finish(stale, JobEnd(JobState.FAILED))
        await other.store.flag(BATCH, "t", JobFlag.CANCEL)
        await asyncio.sleep(400)
        other.store.tick()

        assert not late.is_ours
        assert done.state is JobState.SUCCEEDED
        assert await other.store.find(BATCH, "t") == done

    tell(story)


@pytest.mark.parametrize("calls", [1, 17, 40, LINES])
def test_worker_crash_strands_job(tell: Tell, calls: int) -> None:
    """Whenever its worker dies, the batch goes on with another, to its end."""

    async def story(here: Town) -> None:
        first = here.start()
        await first.accept_batch(LINES, id=BATCH)
        await here.paid(calls)
        await here.kill(first)
        other = here.start()
        done = await other.end_of(BATCH, within_s=60)

        assert done.state is JobState.SUCCEEDED
        assert await here.is_whole(other, done, LINES) == (LINES, 0)

    tell(story)


def test_cancel_reverted(tell: Tell) -> None:
    """What was cancelled stays so over a crash, also one before its worker has heard of it; nothing more of it begins."""

    async def story(here: Town) -> None:
        first = here.start()
        await first.accept_batch(LINES, id=BATCH)
        await here.paid(20)
        asked = await first.store.flag(BATCH, "t", JobFlag.CANCEL)
        await here.kill(first)
        begun = len(here.tries)
        other = here.start()
        done = await other.end_of(BATCH, within_s=60)
        output, errors = await here.is_whole(other, done, LINES)
        codes = Counter(line["error"]["code"] for line in await other.file_of(BATCH, "errors"))

        assert asked is not None
        assert asked.ends_as is done.state is JobState.CANCELLED
        assert len(here.tries) == begun
        assert output >= 1
        assert codes == {"batch_cancelled": errors}

    tell(story)


def test_duplicate_execution(tell: Tell) -> None:
    """A line runs again only if it was in flight: what has its result is not asked for again, crash after crash.

    Nor is a result counted again that was committed twice, because the first answer of the store was lost.
    """

    async def story(here: Town) -> None:
        process, in_flight = here.start(), 0
        process.view.asks_twice = "commit"
        await process.accept_batch(LINES, id=BATCH)
        for calls in (15, 35, 50):
            await here.paid(calls)
            await here.kill(process)
            process = here.process()
            process.view.asks_twice = "commit"
            job = await process.store.find(BATCH, "t")
            process.worker.start()
            assert job is not None
            in_flight += len(here.tries) - in_flight - job.tally.completed
        done = await process.end_of(BATCH, within_s=60)

        assert await here.is_whole(process, done, LINES) == (LINES, 0)
        assert len(here.tries) - LINES <= in_flight <= 3 * WINDOW

    tell(story)


def test_cancel_racing_completion(tell: Tell) -> None:
    """Whichever comes first, the end is one of the two, whole, and stays."""

    async def story(here: Town) -> None:
        process = here.start()
        states = set()
        for number in range(24):
            batch = new_id(model.BATCH, bytes([number]) * 16)
            await process.accept_batch(WINDOW, id=batch)
            await asyncio.sleep(number * 0.02)
            await process.store.flag(batch, "t", JobFlag.CANCEL)
            done = await process.end_of(batch, within_s=60)
            await here.is_whole(process, done, WINDOW if done.tally.total else 0)
            await asyncio.sleep(5)
            assert await process.store.find(batch, "t") == done
            states.add(done.state)

        assert states == {JobState.SUCCEEDED, JobState.CANCELLED}

    tell(story)


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_recovery_crash_loop(tell: Tell, after_s: float) -> None:
    """What kills its worker each time is given up, a call and a line; others beside them get their answers.

    Alone each takes five crashes or fewer, as `test_poison` tells; what dies beside something else that is deadly takes its
    own as well.
    """

    async def story(here: Town) -> None:
        first = here.process()
        await first.accept("job_deadly", "job_fine")
        await first.accept_batch(24, id=BATCH)
        deaths = 0
        while True:
            process = here.process()
            process.script = _deadly(process, after_s)
            process.worker.start()
            ends = asyncio.ensure_future(_all_end(process))
            while not process.is_dead and not ends.done():  # noqa: ASYNC110 - the dead set no event
                await asyncio.sleep(0.05)
            if ends.done():
                break
            ends.cancel()
            deaths += 1
            await here.kill(process)
        deadly, fine, batch = ends.result()
        errors = await process.file_of(BATCH, "errors")

        assert deaths <= 8
        assert (deadly.state, deadly.last_error.error_class) == (JobState.FAILED, "worker_crashed")
        assert fine.state is JobState.SUCCEEDED
        assert await here.is_whole(process, batch, 24) == (23, 1)
        assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [("c13", "worker_crashed")]

    tell(story)


def _deadly(process: Process, after_s: float) -> Callable[[StoredRequest, int], float]:
    def answer(request: StoredRequest, _try: int) -> float:
        if request.id == "job_deadly" or request.id.endswith("000013"):
            asyncio.get_running_loop().call_later(after_s, process.kill)
            return 10.0
        return 0.1

    return answer


async def _all_end(process: Process) -> list[Any]:
    return [await process.end_of(job) for job in ("job_deadly", "job_fine", BATCH)]


def test_replicas_execute_once(tell: Tell) -> None:
    """Two workers on one store have nothing twice."""

    async def story(here: Town) -> None:
        one, two = here.start(), here.start()
        calls = [f"job_{number}" for number in range(30)]
        await one.accept(*calls)
        await two.accept_batch(LINES, id=BATCH)
        done = await one.end_of(BATCH)
        for call in calls:
            assert (await two.end_of(call)).state is JobState.SUCCEEDED

        assert await here.is_whole(two, done, LINES) == (LINES, 0)
        assert set(Counter(here.tries).values()) == {1}
        assert len(here.tries) == LINES + len(calls)
        assert one.view.claims
        assert two.view.claims

    tell(story)


def test_create_crash_after_store(tell: Tell) -> None:
    """Who never heard that a job was taken asks again, with the same id or the same key: it is the same job, and runs once."""

    async def story(here: Town) -> None:
        first = here.process()
        first.view.dies_after = "accept"
        named: dict[str, Any] = {
            "dedupe_key": b"k" * 32,
            "dedupe_until": here.clock.wall() + 3600,
            "fingerprint": b"f" * 32,
        }
        new = replace(first.new_job(), **named)
        asking = asyncio.ensure_future(first.store.accept([new]))
        await here.dies(first)
        other = here.start()
        ((again,), (keyed,)) = (
            await other.store.accept([new]),
            await other.store.accept([replace(other.new_job("job_2"), **named)]),
        )
        done = await other.end_of()

        assert not asking.done()
        assert (again.is_new, keyed.is_new) == (False, False)
        assert again.job.id == keyed.job.id == done.id
        assert here.tries == [done.id]
        assert await other.store.find("job_2", None) is None
        asking.cancel()

    tell(story)


@pytest.mark.parametrize("is_at_work", [True, False])
def test_cancel_event_lost(tell: Tell, is_at_work: bool) -> None:
    """A cancel that nobody was told of is heard at the next look; one that came while nobody was there, by who comes next."""

    async def story(here: Town) -> None:
        slow = here.start(script=lambda _request, _try: 5.0)
        await slow.accept_batch(LINES, id=BATCH)
        await here.paid(WINDOW)
        if not is_at_work:
            await here.kill(slow)
        await here.kept.store.flag(BATCH, "t", JobFlag.CANCEL)
        worker = slow if is_at_work else here.start()
        done = await worker.end_of(BATCH, within_s=40)
        output, _ = await here.is_whole(worker, done, LINES)

        assert done.state is JobState.CANCELLED
        assert len(here.tries) == WINDOW
        assert output == (WINDOW if is_at_work else 0)

    tell(story)


def test_orphaned_blob(tell: Tell) -> None:
    """Bytes that a dead worker has written for nobody are gone with the batch's end."""

    async def story(here: Town) -> None:
        first = here.start()
        first.view.dies_before = "complete_chunk"
        await first.accept_batch(LINES, id=BATCH)
        await here.dies(first)
        orphans = {name for name in here.blobs.names if name.startswith(marks.batch_folder(BATCH))}
        other = here.start()
        done = await other.end_of(BATCH)
        await asyncio.sleep(1)
        await JobCleaning(other.store, here.blobs, here.clock, lambda: 3600.0).run_once()

        assert orphans
        assert await here.is_whole(other, done, LINES) == (LINES, 0)
        (output,) = set(here.blobs.names) - {"input", "index"}
        assert derived_file_id(BATCH, "output") in output

    tell(story)


def test_finalization_strand(tell: Tell) -> None:
    """Killed between any two steps of the putting together, it is put together again, into the same files."""

    async def story(here: Town) -> None:
        process = here.start(rules=few_lines(), script=_some_fail)
        await process.accept_batch(LINES, id=BATCH)
        for method in ("chunk_results", "files.add", "finish"):
            process.view.dies_before = method
            await here.dies(process)
            process = here.start(script=_some_fail)
        done = await process.end_of(BATCH)
        listed, _ = await process.store.files.page(FileQuery("t"))

        assert done.state is JobState.SUCCEEDED
        assert await here.is_whole(process, done, LINES) == (LINES - 6, 6)
        assert sorted(file.id for file in listed) == sorted(
            derived_file_id(BATCH, role) for role in ("output", "errors")
        )
        assert len(here.tries) == LINES

    tell(story)


def _some_fail(request: StoredRequest, _try: int) -> float | int:
    return 400 if number_of(request) % 10 == 3 else 0.1


def test_zombie_owner_burns_inference(tell: Tell) -> None:
    """A worker that has lost its claim breaks its calls off at its next look, and what it still writes changes nothing."""

    async def story(here: Town) -> None:
        zombie = here.start(script=lambda _request, _try: 300.0)
        await zombie.accept_batch(LINES, id=BATCH)
        await here.paid(WINDOW)
        other = here.process(script=lambda _request, _try: 5.0)
        zombie.worker._is_draining = True  # it claims nothing more: what is asked is what becomes of what it had
        await here.kept.lose_workers()
        other.worker.start()
        await asyncio.sleep(2)
        broken_off = list(zombie.broken_off)
        before = await other.store.find(BATCH, "t")
        stale = next(work for work in zombie.view.claims if work.piece == other.view.claims[0].piece)
        late = [
            await zombie.store.commit(stale, [LineResult(stale.piece, False, b"late", 0, 0, 0, 0.0, 0)]),
            await zombie.store.note(stale, {"late": 1}),
            await zombie.store.give_back(stale, run_at=None, is_attempt=True),
        ]
        after = await other.store.find(BATCH, "t")
        done = await other.end_of(BATCH)

        assert len(broken_off) == WINDOW
        assert zombie.running == 0
        assert [write.is_ours for write in late] == [False] * 3
        assert after == before
        assert await here.is_whole(other, done, LINES) == (LINES, 0)

    tell(story)


def test_async_result_destruction(tell: Tell) -> None:
    """An answer that was stored stays what it is: over a crash, a late worker, a cancel, the same job once more, a cleaning."""

    async def story(here: Town) -> None:
        first = here.start()
        first.view.dies_after = "finish"
        await first.accept("job_1")
        await here.dies(first)
        other = here.start()
        done, answer = await other.end_of(), await other.store.answer("job_1", "t")
        (stale,) = first.view.claims

        await other.store.finish(stale, JobEnd(JobState.FAILED, answer=StoredAnswer(500, [], b"late")))
        await other.store.flag("job_1", "t", JobFlag.CANCEL)
        await other.accept("job_1")
        await other.store.forget_ended(here.clock.wall() - 3600, 100)
        await asyncio.sleep(30)

        assert answer is not None
        assert (answer.status, b"job_1" in answer.body) == (200, True)
        assert await other.store.answer("job_1", "t") == answer
        assert await other.store.find("job_1", "t") == done
        assert here.tries == ["job_1"]

    tell(story)
