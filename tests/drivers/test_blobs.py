"""Blobs: one suite for every store of them, and what a folder does when its disk fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drivers import blobs as blobs_module
from gateway.drivers.blobs import NEW, PIECE_BYTES, DirectoryBlobs, check_name
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.store import Blobs
from tests.drivers.blob_support import blobs_in, put, whole
from tests.e2e.harness import until
from tests.rows import rows
from tests.support.memory_blobs import MemoryBlobs


@pytest.fixture(params=["memory", "directory", "redis"])
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Blobs]:
    """Every store of blobs in turn."""
    if request.param == "memory":
        yield MemoryBlobs()
        return
    store: Blobs
    store = (
        blobs_in(request.getfixturevalue("redis_url"))
        if request.param == "redis"
        else DirectoryBlobs(tmp_path / "files")
    )
    yield store
    await store.aclose()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[DirectoryBlobs]:
    """A folder of blobs."""
    store = DirectoryBlobs(tmp_path / "files")
    yield store
    await store.aclose()


async def test_a_blob_is_read_as_it_was_written(blobs: Blobs) -> None:
    """Whatever the pieces were in which it came."""
    parts = [b"a" * 10, b"", b"b" * (2 * PIECE_BYTES + 7), b"c"]

    size = await put(blobs, "batch/x/1.0", *parts)

    assert size == sum(map(len, parts))
    assert await whole(blobs, "batch/x/1.0") == b"".join(parts)


async def test_nothing_is_a_blob_too(blobs: Blobs) -> None:
    """The empty one is there."""
    assert await put(blobs, "empty") == 0
    assert await whole(blobs, "empty") == b""


@pytest.mark.parametrize(
    ("start", "length"), [(0, 5), (3, None), (PIECE_BYTES - 1, 3), (10, 0), (2 * PIECE_BYTES + 99, 50), (1 << 40, 1)]
)
async def test_a_part_is_read(blobs: Blobs, start: int, length: int | None) -> None:
    """From any place, as far as there is something."""
    data = os.urandom(2 * PIECE_BYTES + 100)
    await put(blobs, "blob", data)

    assert await whole(blobs, "blob", start, length) == data[start:][:length]


async def test_pieces_are_small(blobs: Blobs) -> None:
    """Whoever reads has one of them in memory."""
    await put(blobs, "blob", b"x" * (3 * PIECE_BYTES))

    assert max([len(piece) async for piece in blobs.read("blob")]) <= PIECE_BYTES


async def test_what_is_not_committed_is_not_there(blobs: Blobs) -> None:
    """And after an abort there is nothing left of it."""
    writer = await blobs.writer("blob")
    await writer.write(b"x" * PIECE_BYTES)
    with pytest.raises(FileNotFoundError):
        await whole(blobs, "blob")
    await writer.abort()
    await writer.abort()

    with pytest.raises(FileNotFoundError):
        await whole(blobs, "blob")


async def test_an_abort_after_the_commit_does_nothing(blobs: Blobs) -> None:
    """So it can stand in a `finally`."""
    writer = await blobs.writer("blob")
    await writer.write(b"kept")
    await writer.commit()
    await writer.abort()
    if isinstance(blobs, DirectoryBlobs):
        await blobs.aclose()  # whatever the abort has begun
        assert (blobs.root / "blob").read_bytes() == b"kept"
    else:
        assert await whole(blobs, "blob") == b"kept"


async def test_a_second_commit_takes_the_place_of_the_first(blobs: Blobs) -> None:
    """Who finalises twice has one file; who reads the old one reads it to its end."""
    await put(blobs, "blob", b"1" * (PIECE_BYTES + 1))
    reading = blobs.read("blob")
    first = await anext(reading)

    await put(blobs, "blob", b"2")

    assert first + b"".join([piece async for piece in reading]) == b"1" * (PIECE_BYTES + 1)
    assert await whole(blobs, "blob") == b"2"


async def test_removing_what_is_gone_is_fine(blobs: Blobs) -> None:
    """The others go all the same."""
    await put(blobs, "batch/x/1", b"1")
    await put(blobs, "batch/x/2", b"2")

    await blobs.remove(["batch/none", "batch/x/1"])
    await blobs.remove([])

    with pytest.raises(FileNotFoundError):
        await whole(blobs, "batch/x/1")
    assert await whole(blobs, "batch/x/2") == b"2"


async def test_a_folder_is_removed_with_all_that_is_below_it(blobs: Blobs) -> None:
    """And nothing else, however alike its name is; one that is not there is fine."""
    for name in ("batch/x/1", "batch/x/deep/2", "batch/xy", "batch/x1/1"):
        await put(blobs, name, b"!")

    await blobs.remove_below("batch/x")
    await blobs.remove_below("batch/none")

    for name in ("batch/x/1", "batch/x/deep/2"):
        with pytest.raises(FileNotFoundError):
            await whole(blobs, name)
    assert await whole(blobs, "batch/xy") + await whole(blobs, "batch/x1/1") == b"!!"
    with pytest.raises(ValueError, match="no name"):
        await blobs.remove_below("..")


@rows(
    "name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".new/x", "a/.b", "a\0b", "a\n", "ä", "a b", "x" * 201]
)
async def test_a_name_that_could_lead_elsewhere_is_a_defect(blobs: Blobs, name: str) -> None:
    """Nobody's input becomes a name, so it is no refusal."""
    with pytest.raises(ValueError, match="no name"):
        await blobs.writer(name)
    with pytest.raises(ValueError, match="no name"):
        await whole(blobs, name)
    with pytest.raises(ValueError, match="no name"):
        await blobs.remove([name])


@given(st.text(alphabet="ab./-_\\\0~ \n", max_size=12))
def test_no_name_leaves_the_folder(name: str) -> None:
    """Whatever passes stays below, and is nothing hidden."""
    try:
        check_name(name)
    except ValueError:
        return
    path = os.path.normpath(f"/root-of-blobs/{name}")

    assert path == f"/root-of-blobs/{name}"
    assert "/." not in path


async def test_many_write_at_once(blobs: Blobs) -> None:
    """Each its own."""
    await asyncio.gather(*(put(blobs, f"many/{n % 7}/{n}", b"%d" % n, b"!" * PIECE_BYTES) for n in range(40)))

    for n in range(40):
        assert await whole(blobs, f"many/{n % 7}/{n}", 0, 4) == (b"%d" % n + b"!!!!")[:4]


async def test_memory_is_bounded() -> None:
    """A demonstration does not take the machine's memory."""
    blobs = MemoryBlobs(max_bytes=100)
    await put(blobs, "one", b"x" * 60)
    writer = await blobs.writer("two")

    with pytest.raises(JobsUnavailable):
        await writer.write(b"x" * 60)

    await blobs.remove(["one"])
    assert await put(blobs, "two", b"x" * 60) == 60


def files_of(folder: DirectoryBlobs) -> list[str]:
    return sorted(str(path.relative_to(folder.root)) for path in folder.root.rglob("*") if path.is_file())


async def test_a_folder_has_nothing_left_of_what_was_given_up(folder: DirectoryBlobs) -> None:
    """Neither a file nor an empty folder."""
    writer = await folder.writer("batch/x/1")
    await writer.write(b"x" * PIECE_BYTES)
    await writer.abort()
    await put(folder, "batch/y/1", b"y")
    await folder.remove(["batch/y/1"])
    await folder.aclose()

    assert [str(path.relative_to(folder.root)) for path in folder.root.rglob("*")] == [NEW]


async def test_what_killed_writers_have_left_goes_at_the_next_start(folder: DirectoryBlobs) -> None:
    """Not so what another process still writes."""
    writer = await folder.writer("alive")
    (folder.root / NEW / "left").write_bytes(b"of a killed process")

    again = DirectoryBlobs(folder.root)
    await put(again, "other", b"of another process")
    await writer.write(b"alive")
    await writer.commit()
    await again.aclose()

    assert files_of(folder) == ["alive", "other"]


async def test_files_are_the_owners_alone(folder: DirectoryBlobs) -> None:
    """They hold what tenants have sent."""
    await put(folder, "batch/1", b"secret")

    assert (folder.root / "batch/1").stat().st_mode & 0o777 == 0o600
    assert (folder.root / "batch").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["write", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_failing_disk_is_a_refusal_and_the_log_has_the_remedy(
    folder: DirectoryBlobs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    number: int,
) -> None:
    """Once per trouble; the refusal shows no path, nothing is left behind, and afterwards all is well."""

    def fails(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    caplog.set_level(logging.WARNING, logger="gateway.store")
    await put(folder, "blob", b"well")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails)
        for _ in range(3):
            writer = await folder.writer("blob")
            with pytest.raises(JobsUnavailable) as refused:
                await put_on(writer, b"x" * PIECE_BYTES)
            await writer.abort()
            assert str(folder.root) not in refused.value.message
    await put(folder, "blob", b"well again")
    await folder.aclose()

    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert str(folder.root) in caplog.messages[0]
    assert "batches wait meanwhile; other jobs and plain calls go on" in caplog.messages[0]
    assert files_of(folder) == ["blob"]


async def put_on(writer: blobs_module.DirectoryWriter, data: bytes) -> None:
    await writer.write(data)
    await writer.commit()


async def test_the_free_space_to_be_kept_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing begins where less is left, and the log names both numbers."""
    blobs = DirectoryBlobs(tmp_path, min_free_bytes=1 << 60)

    with pytest.raises(JobsUnavailable):
        await blobs.writer("blob")
    await blobs.aclose()

    assert str(1 << 60) in caplog.text


async def test_a_volume_that_fills_up_meanwhile_ends_the_writer(
    folder: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is looked at with each piece."""
    monkeypatch.setattr(folder, "_min_free_bytes", 1)
    writer = await folder.writer("blob")
    monkeypatch.setattr(folder, "_min_free_bytes", 1 << 60)

    with pytest.raises(JobsUnavailable):
        await writer.write(b"x" * PIECE_BYTES)
    await writer.abort()


async def test_a_folder_that_cannot_be_made_is_a_refusal(tmp_path: Path) -> None:
    """The gateway starts without it."""
    (tmp_path / "taken").write_text("a file")
    blobs = DirectoryBlobs(tmp_path / "taken" / "files")

    with pytest.raises(JobsUnavailable):
        await blobs.writer("blob")
    await blobs.aclose()


async def test_after_the_end_all_is_refused(folder: DirectoryBlobs) -> None:
    """Who comes late hears so."""
    await folder.aclose()

    with pytest.raises(JobsUnavailable):
        await folder.writer("blob")


async def test_whoever_is_cancelled_leaves_nothing_open(folder: DirectoryBlobs) -> None:
    """Neither a file without a name nor a descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    await put(folder, "blob", b"x" * PIECE_BYTES)
    for turns in range(6):
        for work in (folder.writer("other"), anext(folder.read("blob")), put(folder, "blob", b"y" * PIECE_BYTES)):
            task = asyncio.ensure_future(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(result, blobs_module.DirectoryWriter):
                await result.abort()
    await folder.aclose()
    await asyncio.sleep(0)

    assert len(os.listdir("/proc/self/fd")) <= before


WRITES_ALWAYS = """
import asyncio, sys
from gateway.drivers.blobs import DirectoryBlobs

async def main():
    blobs, number = DirectoryBlobs(sys.argv[1]), int(sys.argv[2])
    while True:
        writer = await blobs.writer(f"many/{number % 5}/{number}")
        for _ in range(5):
            await writer.write(bytes([number % 256]) * 100_000)
        await writer.commit()
        number += 1

asyncio.run(main())
"""


async def test_a_killed_process_leaves_whole_blobs_only(folder: DirectoryBlobs) -> None:
    """At whatever moment: what has a name has all of its bytes, and the rest goes with the next writer."""
    for life in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITES_ALWAYS, str(folder.root), str((life + 1) * 100_000)
        )
        try:
            await until(lambda life=life: len(list(folder.root.glob(f"many/*/{life + 1}*"))) >= 5 + life)  # type: ignore[misc]  # mypy cannot infer a lambda's default
        finally:
            process.kill()
            await process.wait()
    await put(folder, "after", b"!")

    blobs = [path for path in folder.root.rglob("*") if path.is_file()]
    assert len(blobs) > 15
    assert list((folder.root / NEW).iterdir()) == []
    assert {path.stat().st_size for path in blobs if path.name != "after"} == {500_000}
