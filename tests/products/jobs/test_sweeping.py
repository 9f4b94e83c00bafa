"""Blobs that a killed process has left behind are found and removed, and no other."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.drivers.blobs import DirectoryBlobs
from gateway.products.batches.output import chunk_blob, index_blob
from gateway.products.batches.service import blob_of
from gateway.products.jobs.model import BATCH, CHECK, FILE, ClaimRequest, JobEnd, JobState, NewJob, StoredFile, new_id
from gateway.products.jobs.upkeep import LEAST_AGE_S, BlobSweep
from tests.products.batches.test_batch_output import batch
from tests.support.flow import FakeClock
from tests.support.memory_store.store import MemoryJobStore

OLD_S = LEAST_AGE_S + 60


class Bench:
    """A folder of blobs and the store that knows them."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryJobStore(self.clock.wall)
        self.folder = folder / "blobs"
        self.blobs = DirectoryBlobs(self.folder, wall=self.clock.wall)
        self.sweep = BlobSweep(self.store, self.blobs, self.clock)

    async def write(self, name: str, age_s: float = OLD_S) -> str:
        writer = await self.blobs.writer(name)
        await writer.write(b"x")
        await writer.commit()
        at = self.clock.wall() - age_s
        os.utime(self.folder / name, (at, at))
        return name

    async def file(self, draw: bytes, *, is_known: bool) -> str:
        file_id = new_id(FILE, draw * 16)
        name = await self.write(f"{blob_of(file_id)}.7")
        if is_known:
            await self.store.files.add(StoredFile(file_id, "t", "batch", "a", 1, 0.0, None, name))
        return name

    def names(self) -> set[str]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in files} - {".store"}

    async def pass_over(self) -> None:
        while not await self.sweep.step():
            pass


async def test_what_nobody_knows_goes_when_it_is_old(tmp_path: Path) -> None:
    """Files, inputs of open batches, garbage, and what a running batch needs stay; so does what is new, or none of ours."""
    bench = Bench(tmp_path)
    known, removed, lost = [await bench.file(draw, is_known=draw != b"3") for draw in (b"1", b"2", b"3")]
    open_batch, ended = (new_id(BATCH, draw * 16) for draw in (b"4", b"5"))
    now = bench.clock.wall()
    for batch_id in (ended, open_batch):
        job = batch(id=batch_id, state=JobState.QUEUED, run_at=now, deadline=now + 1e6)
        await bench.store.accept([NewJob(job, first_piece=CHECK, reads=removed)])
    works = await bench.store.claim([ClaimRequest("slow", 2)])
    await bench.store.finish(works[0], JobEnd(JobState.FAILED))
    await bench.store.files.remove(new_id(FILE, b"2" * 16), "t")
    names = [chunk_blob(open_batch, 0, 1, "output"), index_blob(ended), chunk_blob("batch_gwGone", 0, 1, "output")]
    needed, over, gone = [await bench.write(name) for name in names]
    fresh = await bench.write("files/zz/fresh", age_s=LEAST_AGE_S - 60)
    foreign = await bench.write("notes/of-an-operator")
    before = bench.names()

    await bench.pass_over()

    assert before - bench.names() == {lost, over, gone}
    assert {known, removed, needed, fresh, foreign} <= bench.names()
    bench.clock.advance(LEAST_AGE_S)
    await bench.pass_over()
    assert fresh not in bench.names()
    await bench.blobs.aclose()


async def test_a_folder_of_another_store_too_is_left_alone(tmp_path: Path) -> None:
    """Its blobs look just like ours; also where our own store is new, because the old one was moved away.

    Neither of two clears a folder, whoever was there first, and however far its pass has come.
    """
    first, second = Bench(tmp_path), Bench(tmp_path)
    known = await first.file(b"1", is_known=True)
    assert not await first.sweep.step()
    theirs = await second.file(b"2", is_known=True)

    await second.pass_over()
    for _ in range(2):
        await first.pass_over()

    assert first.names() == {known, theirs}
    assert not await second.blobs.belong_to(await second.store.identity())
    for bench in (first, second):
        await bench.blobs.aclose()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A gateway that has never kept a file has none."""
    bench = Bench(tmp_path)

    assert await bench.sweep.step()
    assert not bench.folder.exists()
    await bench.blobs.aclose()


async def test_a_step_looks_at_so_many(tmp_path: Path) -> None:
    """Others are served between."""
    bench = Bench(tmp_path)
    for number in range(5):
        await bench.file(b"%d" % number, is_known=False)

    seen = [len(names) async for names in bench.blobs.old_names(0.0, 2)]

    assert seen == [2, 2, 1]
    await bench.blobs.aclose()
