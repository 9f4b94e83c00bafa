"""Blobs in a Redis: their bound, what killed and cancelled writers leave, a Redis that is gone, and a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.core.types import SharedState
from gateway.drivers import blobs_redis
from gateway.drivers.blobs_redis import PART_BYTES, RedisBlobs
from gateway.drivers.durability import JobsUnavailable, OutcomeUnknown
from gateway.drivers.redis import partitions as durability
from gateway.drivers.redis.partitions import BlobDurability
from gateway.products.batches.finish import PartialFile, PartialFiles
from gateway.products.jobs.model import StoredFile
from gateway.products.jobs.store import JobStore, open_redis_blobs
from gateway.products.jobs.upkeep import BlobSweep
from tests.drivers.blob_support import blobs_in, put, whole
from tests.support.flow import FakeClock
from tests.support.memory_store.store import MemoryJobStore
from tests.support.redis_servers import RedisCluster, RedisServer


@pytest.fixture
async def blobs(redis_url: str) -> AsyncIterator[RedisBlobs]:
    """An empty store."""
    store = blobs_in(redis_url, "one")
    yield store
    await store.aclose()


@pytest.fixture(autouse=True)
def server(_redis_process: RedisServer) -> RedisServer:
    """The server, which holds nothing."""
    _redis_process.flush()
    return _redis_process


def total(server: RedisServer) -> int:
    """The bytes that are counted."""
    (key,) = server.do("KEYS", "*:total")
    return int(server.do("GET", key))


def parts_in(server: RedisServer) -> int:
    """The blobs whose parts are there."""
    return sum(server.do("TYPE", key) in (b"hash", "hash") for key in server.do("KEYS", "one:1:blob:*"))


def let_a_minute_pass(server: RedisServer) -> None:
    """For all that has a time to live, or is due at a time."""
    for key in server.do("KEYS", "one:1:blob:*"):
        assert server.do("PTTL", key) <= 60_000
        if server.do("PTTL", key) > 0:
            server.do("PEXPIRE", key, 0)
    (due,) = server.do("KEYS", "*:due")
    for entry in server.do("ZRANGE", due, 0, -1):
        server.do("ZINCRBY", due, -60, entry)


async def test_the_bound_is_that_of_all_gateways_together(redis_url: str, blobs: RedisBlobs) -> None:
    """The refusal names the remedy, and removing makes room again."""
    first, second = (blobs_in(redis_url, "one", max_bytes=3 * PART_BYTES) for _ in range(2))
    await put(first, "a", b"x" * (2 * PART_BYTES))

    with pytest.raises(JobsUnavailable, match=r"jobs\.files"):
        await put(second, "b", b"x" * (2 * PART_BYTES))
    await second.remove(["a"])

    assert await put(second, "b", b"x" * (2 * PART_BYTES)) == 2 * PART_BYTES
    await asyncio.gather(first.aclose(), second.aclose())


async def test_each_byte_is_counted_once(blobs: RedisBlobs, server: RedisServer) -> None:
    """Of what is kept, replaced, given up, removed, removed again, and of no name at all."""
    await put(blobs, "a/1", b"x" * 1000)
    await put(blobs, "a/1", b"x" * 300)
    await put(blobs, "a/2", b"")
    writer = await blobs.writer("a/3")
    await writer.write(b"x" * (5 * PART_BYTES))
    assert total(server) == 300 + 4 * PART_BYTES
    await writer.abort()
    await blobs.remove(["a/none"])
    await blobs.aclose()
    assert total(server) == 300

    again = blobs_in(f"redis://127.0.0.1:{server.port}/0", "one")
    await asyncio.gather(again.remove(["a/1"]), again.remove(["a/1", "a/2"]))
    assert total(server) == 0
    assert not server.do("HLEN", server.do("KEYS", "*:total")[0].replace(b":total", b":open"))
    await again.aclose()


async def test_what_a_killed_writer_leaves_goes_by_itself(redis_url: str, server: RedisServer) -> None:
    """Its parts by their time to live; its entry when somebody writes behind that."""
    killed, other = blobs_in(redis_url, "one", staged_s=60), blobs_in(redis_url, "one")
    writer = await killed.writer("a")
    await writer.write(b"x" * (4 * PART_BYTES))
    assert parts_in(server) == 1
    let_a_minute_pass(server)
    assert parts_in(server) == 0
    await put(other, "b", b"1")
    await other.aclose()

    assert total(server) == 1
    with pytest.raises(JobsUnavailable, match="too long"):
        await writer.commit()
    await killed.aclose()


async def test_a_removal_that_was_not_seen_to_its_end_is_taken_up(
    redis_url: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever writes next; but a blob that has the name since then stays."""
    monkeypatch.setattr("gateway.drivers.blobs_redis.REMOVING_S", 0)
    killed, other = blobs_in(redis_url, "one"), blobs_in(redis_url, "one")
    for name in ("old", "new"):
        await put(killed, name, b"x" * 10)
    monkeypatch.setattr(killed, "settle", lambda _entry: asyncio.sleep(0))
    await killed.remove(["old", "new"])
    assert total(server) == 20
    await put(other, "new", b"x" * 7)
    await put(other, "third", b"x")
    await other.aclose()

    reader = blobs_in(redis_url, "one")
    with pytest.raises(FileNotFoundError):
        await whole(reader, "old")
    assert await whole(reader, "new") == b"x" * 7
    assert total(server) == 8
    await asyncio.gather(killed.aclose(), reader.aclose())


async def test_of_two_writers_of_one_name_the_last_wins(redis_url: str, blobs: RedisBlobs, server: RedisServer) -> None:
    """In different gateways, and whoever gives up later takes nothing away."""
    other = blobs_in(redis_url, "one")
    first, second = await blobs.writer("out"), await other.writer("out")
    for letter in (b"a", b"b"):
        await first.write(letter * PART_BYTES)
        await second.write(letter.upper() * PART_BYTES)
    await second.commit()
    assert (await whole(blobs, "out")).isupper()
    await first.commit()
    await second.abort()

    assert (await whole(other, "out")).islower()
    assert total(server) == 2 * PART_BYTES
    await other.aclose()


@pytest.mark.parametrize("turns", range(0, 60, 4))
async def test_a_commit_that_is_cancelled_is_done_or_not_done(
    redis_url: str, blobs: RedisBlobs, server: RedisServer, turns: int
) -> None:
    """At whatever moment: the blob is whole or not there, and counted so."""
    data = os.urandom(2 * PART_BYTES + 5)
    task = asyncio.create_task(put(blobs, "a", data))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await blobs.aclose()

    reader = blobs_in(redis_url, "one")
    await put(reader, "b", b"!")
    try:
        kept = await whole(reader, "a")
    except FileNotFoundError:
        kept = b""
    assert kept in (b"", data)
    assert total(server) == len(kept) + 1
    await reader.aclose()


async def test_a_redis_that_is_gone_is_a_refusal_until_it_is_back() -> None:
    """Who reads hears so, too, and never half a blob."""
    server = RedisServer().start()
    blobs = blobs_in(server.url)
    try:
        await put(blobs, "a", b"x" * (6 * PART_BYTES))
        reading = blobs.read("a")
        await anext(reading)
        server.stop(saved=True)
        with pytest.raises(JobsUnavailable, match="does not serve"):
            b"".join([piece async for piece in reading])
        with pytest.raises(JobsUnavailable, match="does not serve"):
            await blobs.writer("b")
        server.start()
        async with asyncio.timeout(20):
            while True:
                try:
                    assert len(await whole(blobs, "a")) == 6 * PART_BYTES
                    break
                except JobsUnavailable:
                    await asyncio.sleep(0.02)
    finally:
        await blobs.aclose()
        server.close()


async def test_a_cluster_has_them_in_many_places(redis_cluster_url: str) -> None:
    """Each blob in one; a folder is removed wherever its blobs are."""
    blobs = blobs_in(redis_cluster_url)
    data = os.urandom(3 * PART_BYTES)
    names = [f"batch/x/{number}" for number in range(20)]
    for name in names:
        await put(blobs, name, data)
    await put(blobs, "batch/xy", b"!")
    assert await whole(blobs, names[7], 5, 2 * PART_BYTES) == data[5 : 2 * PART_BYTES + 5]

    await blobs.remove_below("batch/x")

    for name in names:
        with pytest.raises(FileNotFoundError):
            await whole(blobs, name)
    assert await whole(blobs, "batch/xy") == b"!"
    await blobs.aclose()


async def test_a_partial_file_whose_chunk_goes_while_it_is_read_ends_with_a_whole_line(blobs: RedisBlobs) -> None:
    """Its parts come some at a time, and a batch that ends takes away those that have not come."""
    line = b"x" * 99_999 + b"\n"
    await put(blobs, "chunk", line * 20)
    pieces = PartialFiles(nothing_is_asked, blobs).read(PartialFile("x.jsonl", ["chunk"]))

    read = [await anext(pieces)]
    await blobs.remove(["chunk"])
    read += [piece async for piece in pieces]

    text = b"".join(read)
    assert line * 2 <= text < line * 20
    assert text == line * (len(text) // len(line))


async def nothing_is_asked() -> JobStore:
    raise AssertionError


async def test_what_nobody_knows_is_found_and_goes_when_it_is_old(redis_url: str, server: RedisServer) -> None:
    """A process that dies between a blob and the record of it would have its bytes counted for ever."""
    clock = FakeClock()
    store = MemoryJobStore(clock.wall)
    blobs, other = (blobs_in(redis_url, "one") for _ in range(2))
    known, lost, needed, new = "files/aa/known", "files/aa/lost", "batch/batch_gwGone/index", "files/aa/new"
    for name in (known, lost, needed, new, *(f"files/zz/{number}" for number in range(300))):
        await put(blobs, name, b"x" * 1000)
        if name != new:
            age(server, blobs._manifest(name))
    await store.files.add(StoredFile("file-1", "t", "batch", "a", 1000, 0.0, None, known))

    sweep = BlobSweep(store, blobs, clock)
    while not await sweep.step():
        pass

    assert total(server) == 2000
    assert not await other.belong_to("another store")
    assert not await blobs.belong_to(await store.identity())
    assert [await whole(other, name) for name in (known, new)] == [b"x" * 1000] * 2
    await asyncio.gather(blobs.aclose(), other.aclose())


def age(server: RedisServer, manifest: bytes) -> None:
    """Makes a blob three hours older."""
    first, _, at = server.do("GET", manifest).decode().rpartition(" ")
    server.do("SET", manifest, f"{first} {int(at) - 10_800}")


async def test_blobs_of_a_cluster_are_as_safe_as_the_jobs_that_name_them(
    redis_cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These may be on another server: a blob that no replica has is not said to be kept."""
    monkeypatch.setattr(durability, "WAIT_MS", 20)
    blobs = open_redis_blobs(SharedState(redis_cluster_url, namespace="safe", timeout_s=5.0), "replicated")
    for name in ("a", "b", "c", "d"):
        with pytest.raises(JobsUnavailable, match="copied it to a replica"):
            await put(blobs, name, b"x")
    await blobs.aclose()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_blob_whose_safety_nobody_knows_gets_its_name_again(
    redis_url: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the server that has its slot then; it is whole, and counted once."""
    monkeypatch.setattr(blobs_redis, "COMMITS_S", (0.0,))
    safety = _Unsure(times)
    blobs = blobs_in(redis_url, "one", safety=safety)
    if times == 2:
        with pytest.raises(OutcomeUnknown):
            await put(blobs, "a", b"x" * 10)
    else:
        assert await put(blobs, "a", b"x" * 10) == 10
        assert await whole(blobs, "a") == b"x" * 10
    assert len(safety.marks) == 2
    with Redis.from_url(redis_url) as client:
        assert client.exists(*safety.marks) == 2
    await blobs.aclose()


class _Unsure:
    """Nobody knows, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.marks: list[bytes] = []

    async def mark(self, base: bytes) -> bytes:
        self.marks.append(b"%b:mark:%d" % (base, len(self.marks)))
        return self.marks[-1]

    async def settle(self, mark: bytes | None) -> None:
        if self.left:
            self.left -= 1
            raise OutcomeUnknown("lost")

    async def aclose(self) -> None:
        """It has nothing."""


@pytest.mark.parametrize("file", ["appendonly yes", "appendonly no"])
async def test_a_cluster_that_cannot_be_waited_for_is_given_its_time(file: str) -> None:
    """Before Redis 7.2 what is written each second is so two seconds later; without a file there is nothing to wait for."""
    cluster = RedisCluster(3, *f"--{file}".split())
    try:
        cluster.start()
        safety = BlobDurability(SharedState(cluster.url, timeout_s=5.0), "fsync")
        mark = await safety.mark(b"{x}")
        can_wait = cluster.nodes[0].version >= durability.WAITAOF_SINCE and file == "appendonly yes"
        assert (mark is not None) == can_wait
        assert safety._durability.is_slow == (file == "appendonly yes" and not can_wait)
        if can_wait:
            blobs = blobs_in(cluster.url, safety=safety)
            assert await put(blobs, "a", b"x" * PART_BYTES) == PART_BYTES
            assert cluster.node_of(blobs._manifest("a")).do("INFO", "commandstats")["cmdstat_waitaof"]["calls"] == 1
            await blobs.aclose()
        await safety.aclose()
    finally:
        cluster.close()
