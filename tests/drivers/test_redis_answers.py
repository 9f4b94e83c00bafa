"""Answers and rows that replicas share: what the port's own rules, tried on one replica, do not show."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from gateway.drivers.redis_answers import (
    MOST_PENDING,
    MOST_SHARDS,
    SHARD_BYTES,
    Selection,
    decode_selection,
    encode_selection,
    shards_of,
    unframed,
)
from tests.rows import rows
from tests.support.conformance import KIB, ROOMY, Wall, digest, entries, held_bytes, kept, row, settle, ticked
from tests.support.redis_servers import redis_server
from tests.support.redis_support import Lender, lender, loaded, until
from tests.support.stores import RedisStore

KEY, P1 = digest("key"), digest("partition")
NAMES = ["t", "{t}", "t:", "*", "%" * 10_000, "a\0b", "}{", ":value:", "", "t' OR 1=1", "\n\r\n$3\r\n"]
"""What may be a tenant's or a model's name, or a group's, or a key."""


@contextmanager
def asked(lends: Lender) -> Iterator[Redis]:
    """For a test's own questions to the server."""
    with Redis.from_url(lends.url) as client:
        yield client


async def put(store: RedisStore, name: object, size: int = 10, **options: Any) -> None:
    await settle(store.answers.put(digest(name), kept(bytes(size), **options)))


async def has(store: RedisStore, name: object, group: str = "default") -> bool:
    return await settle(store.answers.get(digest(name), group)) is not None


# LRUs.


@rows(
    ("bound", "shards"),
    [
        (0, 1),
        (SHARD_BYTES, 1),
        (2 * SHARD_BYTES - 1, 1),
        (2 * SHARD_BYTES, 2),
        (7 * SHARD_BYTES, 4),
        (2**40, MOST_SHARDS),
    ],
)
def test_a_large_group_has_several_lrus(bound: int, shards: int) -> None:
    """None of them so small that a body of 16 MiB would be too large for it."""
    assert shards_of(bound) == shards


async def test_the_answers_of_a_large_group_are_in_several_slots(lends: Lender, wall: Wall) -> None:
    """So that a cluster shares its load; what is asked for and forgotten is found all the same."""
    store = lends.replica(replace(ROOMY, answers={"default": 4 * SHARD_BYTES}), wall, now=wall)
    for number in range(40):
        await put(store, number, now=wall())

    slots = {key[key.index(b"{") : key.index(b"}")] for key in lends.all_keys() if b":answers:" in key}
    found = [await has(store, number) for number in range(40)]
    count = await settle(store.answers.forget(model="m"))

    assert len(slots) == 4
    assert all(found)
    assert count == 40
    assert not await has(store, 7)


async def test_everything_has_a_time_to_live(lends: Lender, wall: Wall) -> None:
    """Of all that a store keeps, whatever it is: a namespace that nobody uses any more is gone some day."""
    store = lends.replica(ROOMY, wall, now=wall)
    for number in range(20):
        await put(store, number, 60 * KIB, now=wall(), model=f"m{number % 2}")
        await settle(store.vectors.add(row(number, now=wall(), partition=P1)))
        claim = await settle(store.records.claim(digest(number), KEY, 30.0))
        if number % 2:
            await settle(store.records.complete(digest(number), claim.fence, kept(bytes(90 * KIB), now=wall())))
    await settle(store.answers.forget(model="m1"))
    await settle(store.vectors.remove(P1, [digest(3)]))
    await ticked(store)

    with asked(lends) as client:
        without = [key for key in lends.all_keys() if client.ttl(key) == -1]

    assert without == []


async def test_what_had_to_go_leaves_nothing_behind(lends: Lender, wall: Wall) -> None:
    """Its value is dropped as well: by whoever made it go or, when that one never came to it, by the next who sweeps."""
    first = lends.replica(ROOMY, wall, now=wall)
    lends.links[-1].refused = {"lru_drop"}
    second = lends.replica(ROOMY, wall, now=wall)
    for number in range(30):
        await put(first, number, 100 * KIB, now=wall())
    left = await count_values(lends)

    await ticked(second, 40)
    await until(lambda: entries(second, "answers") > 0)
    values = await count_values(lends)

    assert left == 30
    assert values == entries(second, "answers") < 11


async def test_what_had_to_go_and_came_again_is_there(lends: Lender, wall: Wall) -> None:
    """Whoever comes to drop the value of before finds a new one."""
    store = lends.replica(ROOMY, wall, now=wall)
    lends.links[-1].refused = {"lru_drop"}
    for number in (*range(30), 0):
        await put(store, number, 100 * KIB, now=wall())
        wall.advance(0.01)

    lends.links[-1].refused = set()
    await ticked(store, 40)

    assert await has(store, 0)


async def count_values(lends: Lender) -> int:
    return sum(b"answers" in key and b":value:" in key for key in lends.all_keys())


async def test_a_large_answer_makes_room_in_steps(lends: Lender, wall: Wall) -> None:
    """None of which takes long, however many small ones have to go; then it is there, and all is within the bound."""
    store = lends.replica(ROOMY, wall, now=wall)
    link = lends.links[-1]
    await asyncio.gather(*[put(store, number, now=wall()) for number in range(1200)])
    before = link.ran.count("answers_put")

    await put(store, "large", 250 * KIB, now=wall())

    assert link.ran.count("answers_put") - before > 1
    assert await has(store, "large")
    assert held_bytes(store, "answers") <= 1024 * KIB


# What the server loses by itself.


@pytest.mark.parametrize("lost", [b"*:order", b"*:ends", b"*:facts", b"*:gone", b"*:value:*", b"*"])
async def test_whatever_the_server_drops_nothing_wrong_is_given(lends: Lender, wall: Wall, lost: bytes) -> None:
    """Short of memory it drops any key: then answers are missing, but a purge is still a purge, and numbers heal."""
    store = lends.replica(ROOMY, wall, now=wall)
    for number in range(30):
        await put(store, number, now=wall(), tenant=f"t{number % 2}")

    with asked(lends) as client:
        keys = [key for key in client.scan_iter(match=lost, count=1000) if b":answers:" in key]
        client.delete(*keys[:9], b"none")
    await put(store, "new", now=wall(), tenant="t0")
    await settle(store.answers.forget(tenant="t1"))
    await ticked(store, 40)
    there = [number for number in range(30) if await has(store, number)]

    assert all(number % 2 == 0 for number in there)
    assert await has(store, "new")
    assert entries(store, "answers") == len(there) + 1
    with asked(lends) as client:
        client.delete(*client.scan_iter(match=b"*:answers:*", count=1000))
    await ticked(store, 5)
    assert (entries(store, "answers"), held_bytes(store, "answers")) == (0, 0)


async def test_a_server_that_is_short_of_memory_gives_nothing_wrong(wall: Wall) -> None:
    """One that drops what was not used lately, lists and values alike."""
    with redis_server("--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru") as server:
        async with lender(server.url) as lends:
            bounds = replace(ROOMY, answers={"default": 60 * 1024 * KIB})
            store = lends.replica(bounds, wall, now=wall)
            for number in range(200):
                await settle(store.answers.put(digest(number), kept(b"%d" % number * 20_000, now=wall())))

            found = [await settle(store.answers.get(digest(number), "default")) for number in range(200)]
            await ticked(store, 60)
            there = [number for number, one in enumerate(found) if one is not None]

            assert all(one is None or one.body == b"%d" % number * 20_000 for number, one in enumerate(found))
            assert len(there) < 150
            assert entries(store, "answers") <= len(there)


def test_a_value_that_nobody_can_read_is_no_answer() -> None:
    """Whatever stands there."""
    assert [unframed(value) for value in (b"", b"\0\0\0\x09{}", b"\0\0\0\x02{}", b"\0\0\0\x02[]", b"\xff" * 9)] == [
        None
    ] * 5


# Purges.


async def test_a_purge_reaches_groups_that_this_replica_does_not_know(lends: Lender, wall: Wall) -> None:
    """Another's config may be newer."""
    first = lends.replica(ROOMY, wall, now=wall)
    second = lends.replica(replace(ROOMY, answers={"new": 1024 * KIB}), wall, now=wall)
    await put(second, "one", now=wall(), group="new")

    assert await settle(first.answers.forget(tenant="t")) == 1
    assert not await has(second, "one", "new")


@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_purge_that_the_store_did_not_hear_is_made_up_for(lends: Lender, wall: Wall, is_heard: bool) -> None:
    """Until then this replica gives nothing of what is there; what others keep afterwards stays."""
    store = lends.replica(ROOMY, wall, now=wall)
    link, other = lends.links[-1], lends.replica(ROOMY, wall, now=wall)
    await put(store, "old", now=wall())
    await settle(store.vectors.add(row("old", now=wall(), partition=P1)))
    if is_heard:
        link.refused = {"lru_forget", "vectors_forget"}
    else:
        link.go(away=True)

    await settle(store.answers.forget(model="m"))
    await settle(store.vectors.forget(model="m"))
    if not is_heard:
        link.go(away=False)
    assert not await has(store, "old")
    assert await loaded(store, P1) == []
    link.refused = set()
    for _ in range(200):
        await put(store, "new", now=wall())
        await ticked(store, 1)
        if await has(store, "new") and link.ran.count("vectors_forget") > is_heard:
            break

    assert not await has(other, "old")
    assert await has(store, "new")
    assert await loaded(other, P1) == []


async def test_many_purges_that_nobody_hears_become_one_of_everything(lends: Lender, wall: Wall) -> None:
    """What is remembered is bounded, and nothing that was to be forgotten is given."""
    store = lends.replica(ROOMY, wall, now=wall)
    link = lends.links[-1]
    await put(store, "one", now=wall(), tenant="t3")
    link.go(away=True)

    for number in range(MOST_PENDING + 1):
        await settle(store.answers.forget(tenant=f"t{number}"))
    link.go(away=False)
    ran = len(link.ran)
    await ticked(store)

    assert not await has(store, "one")
    assert link.ran[ran:].count("lru_forget") <= 2 * MOST_SHARDS


@pytest.mark.parametrize("selection", [Selection(), Selection(KEY, "m", "t"), Selection(tenant="{*}\0")])
def test_a_purge_is_told_as_it_is(selection: Selection) -> None:
    """To others, who forget the same."""
    assert decode_selection(encode_selection(selection)) == selection


@pytest.mark.parametrize("name", NAMES)
async def test_names_are_names_whatever_is_in_them(lends: Lender, wall: Wall, name: str) -> None:
    """Braces, stars and separators have no effect on what is another's; nothing of a name is in a key."""
    bounds = replace(ROOMY, answers=dict.fromkeys(NAMES, 1024 * KIB))
    store = lends.replica(bounds, wall, now=wall)
    for other in NAMES:
        answer = kept(other.encode(), now=wall(), model=other, tenant=other, group=other)
        await settle(store.answers.put(digest(other), answer))

    before = [await settle(store.answers.get(digest(other), other)) for other in NAMES]
    crossed = await settle(store.answers.get(digest(name), "x" + name))
    count = await settle(store.answers.forget(model=name, tenant=name))
    left = [other for other in NAMES if await has(store, other, other)]

    assert [one and one.body for one in before] == [other.encode() for other in NAMES]
    assert crossed is None
    assert count == 1
    assert left == [other for other in NAMES if other != name]
    assert all(len(key) < 200 for key in lends.all_keys())


# While the store is away, and clocks.


async def test_while_the_store_is_away_answers_are_kept_here(lends: Lender, wall: Wall) -> None:
    """At once; when it is back they are forgotten, for others may have purged them meanwhile."""
    store = lends.replica(ROOMY, wall, now=wall)
    link = lends.links[-1]
    await put(store, "before", now=wall())
    link.go(away=True)

    assert store.answers.put(KEY, kept(b"here", now=wall())) is None
    assert store.answers.get(KEY, "default") == kept(b"here", now=wall())
    assert entries(store, "answers") == 1
    link.go(away=False)

    assert await settle(store.answers.get(KEY, "default")) is None
    assert await has(store, "before")
    link.go(away=True)
    assert store.answers.get(KEY, "default") is None


async def test_an_answer_has_its_times_by_the_readers_clock(lends: Lender) -> None:
    """And runs out by the store's."""
    server, fast, slow = Wall(), Wall(), Wall()
    fast.advance(5.0)
    slow.advance(-5.0)
    writer, reader = lends.replica(ROOMY, fast, now=server), lends.replica(ROOMY, slow, now=server)
    await put(writer, "one", now=fast(), fresh_s=60.0)

    found = await settle(reader.answers.get(digest("one"), "default"))
    for wall in (server, fast, slow):
        wall.advance(59.5)
    within = await has(reader, "one")
    server.advance(1.0)
    after = await has(reader, "one")

    assert found is not None
    assert (found.stored_at, found.stale_until) == pytest.approx((slow() - 59.5, slow() + 0.5), abs=1e-6)
    assert (within, after) == (True, False)


async def test_the_servers_own_time_is_asked_where_none_is_given(lends: Lender) -> None:
    """As in production."""
    store = lends.replica(ROOMY, lambda: 5.0, now=None)
    await put(store, "short", now=5.0, fresh_s=0.2)
    await put(store, "long", now=5.0, fresh_s=60.0)

    assert await has(store, "long")
    await until(lambda: count_short(lends) == 0)
    assert not await has(store, "short")
    found = await settle(store.answers.get(digest("long"), "default"))
    assert found is not None
    assert found.stored_at == pytest.approx(5.0, abs=0.5)


def count_short(lends: Lender) -> int:
    return sum(key.endswith(b":value:" + digest("short")) for key in lends.all_keys())
