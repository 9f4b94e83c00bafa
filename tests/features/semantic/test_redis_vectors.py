"""Rows that replicas share: what the port's own rules, tried on one replica, do not show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.ports import PeerMessage
from gateway.drivers import redis_store as redis
from gateway.drivers.redis_answers import Selection, decode_selection
from gateway.features.semantic import redis as vectors
from gateway.features.semantic.redis import ROWS_AT_ONCE, decode_news, decode_row, encode_news, encode_row
from gateway.features.semantic.store import VectorRow
from gateway.fleet import redis as registry
from tests.support.conformance import ROOMY, Wall, digest, entries, row, settle, ticked
from tests.support.redis_support import Lender, Lent, loaded
from tests.support.stores import RedisStore

P1 = digest("partition")


def test_a_row_is_read_as_it_was_written() -> None:
    """Every field of it; by another clock its times are moved."""
    one = replace(
        row("one", now=100.0, partition=P1, ttl_s=60.0), model="{m}\0", tenant="", facts=b"", vector=b"\0" * 9
    )

    assert decode_row(encode_row(one), 60.0, 100.0) == one
    assert decode_row(encode_row(one), 60.0, 108.0) == replace(one, stored_at=108.0, expires_at=168.0)
    assert decode_news(encode_news(encode_row(one), 60.0), 100.25) == one


@pytest.mark.parametrize("read", [decode_news, lambda data, wall: decode_row(data, 60.0, wall)])
def test_what_is_no_row_is_said_to_be_none(read: Callable[[bytes, float], VectorRow]) -> None:
    """Whatever somebody tells."""
    with pytest.raises(ValueError, match="no row"):
        read(b"short", 0.0)


async def test_a_large_partition_is_loaded_in_steps(lends: Lender, wall: Wall) -> None:
    """The newest of it, oldest first, and no step takes long."""
    store = lends.replica(ROOMY, wall, now=wall)
    rows = [row(number, now=wall(), partition=P1) for number in range(2 * ROWS_AT_ONCE + 9)]
    await settle(store.vectors.add(rows[0]))  # what is new to the server is told twice, and may come after the rest
    await asyncio.gather(*[settle(store.vectors.add(one)) for one in rows[1:]])
    before = lends.links[-1].ran.count("vectors_load")

    assert await loaded(store, P1, 10_000) == rows
    assert await loaded(store, P1, ROWS_AT_ONCE + 1) == rows[-ROWS_AT_ONCE - 1 :]
    assert lends.links[-1].ran.count("vectors_load") - before == 5


async def test_a_purge_reaches_partitions_that_this_replica_never_saw(lends: Lender, wall: Wall) -> None:
    """All that was ever kept is found again."""
    first, second = (lends.replica(ROOMY, wall, now=wall) for _ in range(2))
    for number in range(5):
        await settle(first.vectors.add(row(number, now=wall(), partition=digest(number), tenant=f"t{number % 2}")))

    count = await settle(second.vectors.forget(tenant="t0"))

    assert count == 3
    assert [len(await loaded(first, digest(number))) for number in range(5)] == [0, 1, 0, 1, 0]


async def test_others_hear_of_rows_and_of_purges(lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the partition in memory already, and do not load it again."""
    store, heard = lends.replica(ROOMY, wall, now=wall), list[PeerMessage]()
    monkeypatch.setattr(store.news, "tell", heard.append)
    one = row("one", now=wall(), partition=P1, ttl_s=60.0)

    await settle(store.vectors.add(one))
    await settle(store.vectors.forget(tenant="t"))

    assert [(item.kind, item.name, item.left_s) for item in heard] == [("vector", P1.hex(), 60.0), ("purge", "", 60.0)]
    assert decode_news(heard[0].detail, wall()) == one
    assert decode_selection(heard[1].detail) == Selection(tenant="t")


async def test_rows_are_not_kept_while_the_store_is_away(lends: Lender, wall: Wall) -> None:
    """The index has what it has; nobody waits."""
    store = lends.replica(ROOMY, wall, now=wall)
    lends.links[-1].go(away=True)

    assert store.vectors.add(row("one", now=wall(), partition=P1)) is None
    assert store.vectors.load(P1, 10) == ()
    assert store.vectors.remove(P1, [digest("one")]) is None
    assert entries(store, "vectors") == 0


async def test_numbers_are_of_all_that_there_is(lends: Lender, wall: Wall) -> None:
    """Also of partitions that another replica made, and that this one has never used; empty ones are none."""
    first, second = (lends.replica(ROOMY, wall, now=wall) for _ in range(2))
    for number in range(12):
        await settle(first.vectors.add(row(number, now=wall(), partition=digest(number % 3), ttl_s=60.0)))

    await ticked(second, 40)
    before = entries(second, "vectors")
    wall.advance(61.0)
    await ticked(second, 40)

    assert (before, entries(second, "vectors")) == (12, 0)


async def test_a_purge_reaches_more_partitions_than_are_counted(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known here of partitions is bounded, what is forgotten is not."""
    monkeypatch.setattr(vectors, "MOST_PARTITIONS", 2)
    store = lends.replica(ROOMY, wall, now=wall)
    for number in range(7):
        await settle(store.vectors.add(row(number, now=wall(), partition=digest(number))))

    assert await settle(store.vectors.forget()) == 7


# Names of partitions.


async def seen(store: RedisStore, least: int) -> None:
    """Give the store time to look through as many rows."""
    for _ in range(1000):
        if entries(store, "vectors") >= least:
            return
        await ticked(store, 1)


async def test_no_operation_reads_all_names(lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be many; a purge finds all of them, and who looks through them comes to all in time."""
    monkeypatch.setattr(registry, "PAGE", 20)
    monkeypatch.setattr(redis, "SWEPT_AT_ONCE", 1000)
    first, second, third = (lends.replica(ROOMY, wall, now=wall) for _ in range(3))
    read, command = list[int](), Lent.command

    async def counted(link: Lent, *parts: bytes | str | int) -> Any:
        reply = await command(link, *parts)
        read.append(len(reply[1]) // 2)
        return reply

    monkeypatch.setattr(Lent, "command", counted)
    await asyncio.gather(*[settle(first.vectors.add(row(n, now=wall(), partition=digest(n)))) for n in range(300)])
    await seen(second, 1)
    at_first = entries(second, "vectors")
    await seen(second, 300)

    assert at_first < 100
    assert entries(second, "vectors") == 300
    assert await settle(third.vectors.forget()) == 300
    assert max(read) < 100


async def test_there_are_so_many_names_at_most(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is kept under a new one then, so that a purge finds all there is, until others have run out; it is said once."""
    monkeypatch.setattr(registry, "MOST_NAMES", 3)
    first, second = (lends.replica(ROOMY, wall, now=wall) for _ in range(2))
    for number in range(5):
        await settle(first.vectors.add(row(number, now=wall(), partition=digest(number), ttl_s=60.0)))
    for number in range(5):
        await settle(second.vectors.add(row("again", now=wall(), partition=digest(number), ttl_s=60.0)))
    before = [len(await loaded(first, digest(number))) for number in range(5)]

    wall.advance(2 * 60.0 + registry.LEAST_S + 1.0)
    await settle(first.vectors.add(row("new", now=wall(), partition=digest(4))))

    assert before == [2, 2, 2, 0, 0]
    assert [one.getMessage().split(":")[0] for one in caplog.records if one.name == "gateway.store"] == [
        "A shared cache has answers of 3 tenants, models and parameters"
    ] * 2  # of each replica
    assert len(await loaded(first, digest(4))) == 1


async def test_numbers_are_known_of_so_many_partitions_at_most(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were told last; empty ones take nobody's place."""
    monkeypatch.setattr(vectors, "MOST_PARTITIONS", 3)
    store = lends.replica(ROOMY, wall, now=wall)
    for number in range(5):
        await settle(store.vectors.add(row(number, now=wall(), partition=digest(number))))
    await settle(store.vectors.remove(digest("empty"), [digest("none")]))

    assert entries(store, "vectors") == 3
