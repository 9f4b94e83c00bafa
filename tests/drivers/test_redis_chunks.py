"""Values that are too long for one operation: no step takes long, and what is read is what was written at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from redis import Redis

from gateway.core.types import Kept
from gateway.drivers.redis.link import StoreGone
from gateway.drivers.redis_answers import AT_ONCE, PART_BYTES, ChunkedValue, is_head
from gateway.drivers.store import Claim
from tests.support.conformance import KIB, ROOMY, Wall, digest, entries, kept, settle, ticked
from tests.support.redis_support import PATIENT_S, Lender
from tests.support.stores import RedisStore

MIB = 1024 * KIB
LARGE = replace(ROOMY, answers={"default": 64 * MIB}, records=256 * MIB)
KEY, RECORD, ASKED = digest("key"), digest("record"), digest("request")
BODY = Random(3).randbytes(3 * MIB)


async def claim(store: RedisStore) -> Claim:
    return await settle(store.records.claim(RECORD, ASKED, 30.0))


async def get(store: RedisStore) -> Kept | None:
    return await settle(store.answers.get(KEY, "default"))


def soon() -> float:
    """By then, for who has the time."""
    return asyncio.get_running_loop().time() + PATIENT_S


def long_keys(lends: Lender) -> list[bytes]:
    return [key for key in lends.all_keys() if b":parts:" in key]


async def test_a_long_answer_goes_in_parts(lends: Lender, wall: Wall) -> None:
    """Another replica reads what was written; a short one in its place leaves no parts behind."""
    first, second = (lends.replica(LARGE, wall, now=wall) for _ in range(2))
    answer, short = kept(BODY, now=wall()), kept(b"short", now=wall())

    await settle(first.answers.put(KEY, answer))
    long = await get(second)
    await settle(first.answers.put(KEY, short))

    assert long == answer
    assert lends.links[0].longest <= PART_BYTES
    assert await get(second) == short
    assert long_keys(lends) == []


async def test_a_long_answer_of_a_record_goes_in_parts(lends: Lender, wall: Wall) -> None:
    """As large as they may be; when it is over its parts are as well."""
    first, second = (lends.replica(LARGE, wall, now=wall) for _ in range(2))
    answer = kept(BODY * 5, now=wall())

    assert await settle(first.records.complete(RECORD, (await claim(first)).fence, answer))
    done = await claim(second)
    wall.advance(61.0)
    after = await claim(second)

    assert done == Claim("done", kept=answer)
    assert lends.links[0].longest <= PART_BYTES
    assert after.state == "claimed"
    assert long_keys(lends) == []


async def test_what_had_to_go_leaves_no_parts_behind(lends: Lender, wall: Wall) -> None:
    """Whether it was forgotten, or there was no room for it."""
    store = lends.replica(LARGE, wall, now=wall)
    for number in range(30):
        await settle(store.answers.put(digest(number), kept(BODY, now=wall())))
    await ticked(store)

    assert 0 < len(long_keys(lends)) == entries(store, "answers") < 30
    await settle(store.answers.forget(model="m"))
    assert long_keys(lends) == []


async def test_a_long_answer_that_lost_its_parts_is_none(lends: Lender, wall: Wall) -> None:
    """A server that is short of memory may drop them; whoever asks runs."""
    store = lends.replica(LARGE, wall, now=wall)
    await settle(store.answers.put(KEY, kept(BODY, now=wall())))
    assert await settle(store.records.complete(RECORD, (await claim(store)).fence, kept(BODY, now=wall())))

    with Redis.from_url(lends.url) as client:
        client.delete(*long_keys(lends))

    assert await get(store) is None
    assert await claim(store) == Claim("claimed")


async def test_parts_of_two_values_are_never_mixed(lends: Lender) -> None:
    """Whoever reads while another writes has the one or the other, or nothing."""
    parts, place = ChunkedValue(lends.link), lends.link.key("place")
    head, staged = await parts.stage(place, BODY)
    with Redis.from_url(lends.url) as client:
        client.rename(staged, place)
        found = await parts.read(place, head, soon())
        _, other = await parts.stage(place, BODY[::-1])
        ttl_s = client.ttl(other)
        client.rename(other, place)

    assert found == BODY
    assert is_head(head)
    assert 0 < ttl_s <= 60
    assert await parts.read(place, head, soon()) is None


@pytest.mark.parametrize("script", ["stage", "records_complete"])
async def test_a_long_answer_that_the_store_did_not_take_is_told_again(lends: Lender, wall: Wall, script: str) -> None:
    """Wherever it got stuck, and with all its parts."""
    first, second = (lends.replica(LARGE, wall, now=wall) for _ in range(2))
    link, answer = lends.links[0], kept(BODY, now=wall())
    mine = await claim(first)
    link.refused = {script}

    assert await settle(first.records.complete(RECORD, mine.fence, answer))
    assert (await claim(first)).kept == answer
    link.refused = set()
    while first.owed:
        await ticked(first, 1)

    assert (await claim(second)).kept == answer


async def test_a_store_that_goes_while_a_long_answer_is_read_is_gone(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the call goes its way, as if nobody had answered."""
    store = lends.replica(LARGE, wall, now=wall)
    await settle(store.answers.put(KEY, kept(BODY, now=wall())))
    assert await settle(store.records.complete(RECORD, (await claim(store)).fence, kept(BODY, now=wall())))

    def lost(*parts: object) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreGone("away"))
        future.exception()
        return future

    monkeypatch.setattr(lends.links[-1], "command", lost)
    found, claimed = await get(store), await claim(store)

    assert found is None
    assert claimed.state == "claimed"
    assert claimed.fence > 0


@pytest.mark.parametrize("in_time", [0, 2])
async def test_all_parts_together_take_no_longer_than_one_operation_may(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch, in_time: int
) -> None:
    """However soon each of them comes: what takes longer is not there, and whoever claims runs."""
    store, link = lends.replica(LARGE, wall, now=wall), lends.links[-1]
    await settle(store.answers.put(KEY, kept(BODY, now=wall())))
    assert await settle(store.records.complete(RECORD, (await claim(store)).fence, kept(BODY, now=wall())))
    asked, never = list[object](), list[asyncio.Future[object]]()

    def slow(*parts: bytes | str | int) -> asyncio.Future[object]:
        asked.append(parts)
        if len(asked) <= in_time * AT_ONCE:
            return lends.link.command(*parts)
        never.append(asyncio.get_running_loop().create_future())
        return never[-1]

    monkeypatch.setattr(link, "command", slow)
    monkeypatch.setattr(link, "_timeout_s", 0.05)
    found = await asyncio.wait_for(get(store), PATIENT_S)
    asked.clear()
    claimed = await asyncio.wait_for(claim(store), PATIENT_S)

    assert found is None
    assert claimed.state == "claimed"
    assert never
    assert all(one.cancelled() for one in never)


async def test_the_time_for_the_parts_begins_with_the_question(
    lends: Lender, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks has waited for the head already; what was paid for is waited for all the same."""
    store, link = lends.replica(LARGE, wall, now=wall), lends.links[-1]
    await settle(store.answers.put(KEY, kept(BODY, now=wall())))
    assert await settle(store.records.complete(RECORD, (await claim(store)).fence, kept(BODY, now=wall())))

    monkeypatch.setattr(link, "_timeout_s", 0.0)
    found, claimed = await get(store), await claim(store)

    assert found is None
    assert claimed.state == "done"
