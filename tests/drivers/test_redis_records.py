"""Idempotency records that replicas share: what the port's own rules, tried on one replica, do not show."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from redis import Redis

from gateway.core.types import Kept
from gateway.drivers import redis_records as record_answers
from gateway.drivers.redis_records import FIRST_SHARED_FENCE, OfflineRecords
from gateway.drivers.store import Claim
from tests.drivers.test_conformance import record_steps
from tests.support.conformance import KIB, ROOMY, RecordsModel, Wall, digest, entries, held_bytes, kept, settle, ticked
from tests.support.redis_support import Lender, Lent, until
from tests.support.stores import RedisStore, Store

RECORD, ASKED, OTHERWISE = digest("record"), digest("request"), digest("another request")


async def claim(store: RedisStore, *, lease_s: float = 30.0, asked: bytes = ASKED, record: bytes = RECORD) -> Claim:
    return await settle(store.records.claim(record, asked, lease_s))


async def complete(store: RedisStore, claim: Claim, answer: Kept, *, record: bytes = RECORD) -> bool:
    return await settle(store.records.complete(record, claim.fence, answer))


def two(lends: Lender, wall: Wall) -> tuple[RedisStore, Lent, RedisStore]:
    """Two replicas, and the first one's link."""
    first = lends.replica(ROOMY, wall, now=wall)
    return first, lends.links[-1], lends.replica(ROOMY, wall, now=wall)


# Who runs.


async def test_one_of_many_replicas_is_the_one_that_runs(lends: Lender, wall: Wall) -> None:
    """The others are told that it runs, and what came of it."""
    stores = [lends.replica(ROOMY, wall, now=wall) for _ in range(8)]

    claims = await asyncio.gather(*[claim(store) for store in stores])
    winner = next(at for at, one in enumerate(claims) if one.state == "claimed")
    assert await complete(stores[winner], claims[winner], kept(b"once", now=wall()))
    after = await asyncio.gather(*[claim(store) for store in stores])

    assert sorted(one.state for one in claims) == ["claimed", *["running"] * 7]
    assert [one.kept and one.kept.body for one in after] == [b"once"] * 8


async def test_a_replica_that_lost_its_lease_changes_nothing(lends: Lender, wall: Wall) -> None:
    """Another has the record by then, with a higher fence; its answer stands."""
    first, _, second = two(lends, wall)
    late = await claim(first, lease_s=1.0)
    wall.advance(2.0)
    winner = await claim(second, asked=OTHERWISE)

    assert winner.fence > late.fence
    assert not await settle(first.records.renew(RECORD, late.fence, 30.0))
    assert not await complete(first, late, kept(b"late", now=wall()))
    await settle(first.records.release(RECORD, late.fence))
    assert await complete(second, winner, kept(b"won", now=wall()))
    assert not await complete(first, late, kept(b"late", now=wall()))
    found = (await claim(first, asked=OTHERWISE)).kept
    assert found is not None
    assert found.body == b"won"


async def test_fences_grow_though_the_server_loses_all_it_had(lends: Lender, wall: Wall) -> None:
    """A fence of before is never one of after."""
    store, _, _ = two(lends, wall)
    before = [(await claim(store, record=digest(number))).fence for number in range(5)]

    wall.advance(0.001)
    _flush(lends)
    after = (await claim(store)).fence

    assert before == sorted(set(before))
    assert after > before[-1]


async def test_a_claim_that_nobody_waits_for_is_given_back(lends: Lender, wall: Wall) -> None:
    """It would lock its key until the lease ends."""
    first, _, second = two(lends, wall)

    later = first.records.claim(RECORD, ASKED, 30.0)
    assert isinstance(later, asyncio.Future)
    later.cancel()
    await ticked(first, 2)

    assert (await claim(second)).state == "claimed"


@pytest.mark.parametrize("is_listed", [True, False])
async def test_what_runs_is_not_dropped_for_what_it_was_before(lends: Lender, wall: Wall, is_listed: bool) -> None:
    """Whether the answer that has run out is found before its record is claimed anew or after, it is dropped later."""
    first, link, second = two(lends, wall)
    assert await complete(first, await claim(first), kept(now=wall(), fresh_s=1.0))
    link.refused = {"lru_drop"}
    wall.advance(2.0)
    if is_listed:
        await ticked(first)
    with Redis.from_url(lends.url) as client:  # by itself
        client.delete(*[key for key in lends.all_keys() if b":value:" in key])

    mine = await claim(first)
    await ticked(second)

    assert (await claim(second)).state == "running"
    assert await complete(first, mine, kept(b"new", now=wall()))
    await ticked(second)
    assert (await claim(second)).kept is not None


class Fleet:
    """Replicas as if they were one store: each claim is made by the next of them, and what follows by the same."""

    def __init__(self, stores: list[RedisStore]) -> None:
        self.answers, self.tick = stores[0].answers, stores[0].tick
        self._stores = stores
        self._turn = 0
        self._claimed: dict[int, RedisStore] = {}

    @property
    def records(self) -> Fleet:
        return self

    async def _claim(self, *arguments: Any) -> Claim:
        self._turn += 1
        store = self._stores[self._turn % len(self._stores)]
        claim = await settle(store.records.claim(*arguments))
        self._claimed[claim.fence] = store
        return claim

    def claim(self, *arguments: Any) -> asyncio.Future[Claim]:
        return asyncio.ensure_future(self._claim(*arguments))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`renew`, `complete` or `release`."""
        return lambda record, fence, *more: getattr(self._claimed[fence].records, name)(record, fence, *more)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=record_steps)
async def test_records_of_a_fleet_do_as_their_model(lends: Lender, steps: list[tuple[object, ...]]) -> None:
    """Several replicas are to a record what one is: one holder at a time, one answer for all, fences that grow."""
    wall, name = Wall(), token_hex(8)
    stores = [lends.replica(ROOMY, wall, now=wall, namespace=name) for _ in range(3)]
    model = RecordsModel(cast(Store, Fleet(stores)), wall)

    for step, *arguments in steps:
        await getattr(model, str(step))(*arguments)


# Answers that are lost on their way.


async def test_a_claim_whose_answer_was_lost_is_its_holders(lends: Lender, wall: Wall) -> None:
    """To the others it runs; its holder runs it by a fence of its own, and completes it for all."""
    first, link, second = two(lends, wall)
    link.unheard = {"records_claim"}

    mine = await claim(first)
    assert 0 < mine.fence < FIRST_SHARED_FENCE
    assert (await claim(second)).state == "running"
    assert (await claim(first)).state == "running"
    assert await complete(first, mine, kept(b"paid once", now=wall()))

    found = (await claim(second)).kept
    assert found is not None
    assert found.body == b"paid once"


async def test_a_claim_whose_answer_was_lost_can_be_released(lends: Lender, wall: Wall) -> None:
    """The next caller need not wait for its lease."""
    first, link, second = two(lends, wall)
    link.unheard = {"records_claim"}
    mine = await claim(first)

    await settle(first.records.release(RECORD, mine.fence))

    assert (await claim(second)).state == "claimed"


async def test_a_completion_whose_answer_was_lost_is_told_again(lends: Lender, wall: Wall) -> None:
    """It is kept once, and nothing is owed any more."""
    first, link, second = two(lends, wall)
    mine = await claim(first)
    link.unheard = {"records_complete"}

    assert await complete(first, mine, kept(b"once", now=wall()))
    assert (await claim(first)).state == "done"
    link.unheard = set()
    await until(lambda: _tick(first, link, "records_complete", 2))
    await ticked(first, 2)

    assert (await claim(second)).state == "done"
    assert entries(first, "records") == 1


# The server loses what it had.


async def test_who_holds_a_record_that_the_server_lost_holds_it_still(lends: Lender, wall: Wall) -> None:
    """With its next renewal the others know as well; and the answer is kept."""
    first, _, second = two(lends, wall)
    mine = await claim(first)

    _flush(lends)
    assert await settle(first.records.renew(RECORD, mine.fence, 30.0))
    between = await claim(second)
    _flush(lends)
    assert await complete(first, mine, kept(b"paid", now=wall()))

    assert between.state == "running"
    assert (await claim(second)).state == "done"


async def test_a_server_that_lost_the_latest_is_told_what_is_held(lends: Lender, wall: Wall) -> None:
    """As one that took over from another, and had not heard of the claim yet."""
    first, _, second = two(lends, wall)
    await claim(first, record=digest("before"))
    with Redis.from_url(lends.url) as client:
        (fences,) = [key for key in lends.all_keys() if key.endswith(b":fence")]
        before = client.hgetall(fences)
        wall.advance(1.0)
        mine = await claim(first)
        client.delete(*[key for key in lends.all_keys() if key.endswith(RECORD)])
        client.hset(fences, mapping=before)

    assert await complete(first, mine, kept(b"paid", now=wall()))
    assert (await claim(second)).state == "done"


async def test_who_comes_back_to_a_record_that_was_lost_and_taken_is_refused(lends: Lender, wall: Wall) -> None:
    """The new holder's answer is the one."""
    first, _, second = two(lends, wall)
    mine = await claim(first)
    _flush(lends)
    wall.advance(0.001)
    theirs = await claim(second)

    assert not await settle(first.records.renew(RECORD, mine.fence, 30.0))
    assert not await complete(first, mine, kept(b"first", now=wall()))
    assert await complete(second, theirs, kept(b"second", now=wall()))


# The store is away.


async def test_while_the_store_is_away_a_replica_goes_by_itself(lends: Lender, wall: Wall) -> None:
    """As a store of its own would, at once, and with fences that nobody takes for the store's."""
    store, link, _ = two(lends, wall)
    link.go(away=True)

    mine = store.records.claim(RECORD, ASKED, 30.0)
    again, other = store.records.claim(RECORD, ASKED, 30.0), store.records.claim(RECORD, OTHERWISE, 30.0)
    assert isinstance(mine, Claim)
    assert mine.fence < FIRST_SHARED_FENCE
    assert (again, other) == (Claim("running", lease_left_s=30.0), Claim("mismatch"))
    assert store.records.renew(RECORD, mine.fence, 40.0) is True
    assert await complete(store, mine, kept(b"here", now=wall()))
    assert not await complete(store, mine, kept(b"twice", now=wall()))
    done, other = store.records.claim(RECORD, ASKED, 30.0), store.records.claim(RECORD, OTHERWISE, 30.0)

    assert done == Claim("done", kept=kept(b"here", now=wall()))
    assert other == Claim("mismatch")


@pytest.mark.parametrize("is_claimed_before", [True, False])
async def test_what_was_completed_meanwhile_is_everybodys_when_the_store_is_back(
    lends: Lender, wall: Wall, is_claimed_before: bool
) -> None:
    """Whether it was claimed in the store or here."""
    first, link, second = two(lends, wall)
    if not is_claimed_before:
        link.go(away=True)
    mine = await claim(first)
    link.go(away=True)

    assert await complete(first, mine, kept(b"paid", now=wall()))
    assert (await claim(first)).state == "done"
    link.go(away=False)
    await until(lambda: _tick(first, link, "records_complete", 1))
    found = (await claim(second)).kept

    assert found is not None
    assert found.body == b"paid"


async def test_what_others_completed_meanwhile_stands(lends: Lender, wall: Wall) -> None:
    """Two were paid for, and all are given the same from then on."""
    first, link, second = two(lends, wall)
    link.go(away=True)
    mine = await claim(first)
    assert await complete(first, mine, kept(b"alone", now=wall()))
    theirs = await claim(second)
    assert await complete(second, theirs, kept(b"for all", now=wall()))

    link.go(away=False)
    await until(lambda: _tick(first, link, "records_complete", 1))
    await ticked(first, 2)
    found = [(await claim(store)).kept for store in (first, second)]

    assert [one and one.body for one in found] == [b"for all"] * 2


async def test_what_runs_here_when_the_store_is_back_goes_on(lends: Lender, wall: Wall) -> None:
    """Others hear of it with the next renewal, and of the answer."""
    first, link, second = two(lends, wall)
    link.go(away=True)
    mine = await claim(first)
    link.go(away=False)

    assert (await claim(first)).state == "running"
    assert await settle(first.records.renew(RECORD, mine.fence, 30.0))
    assert (await claim(second)).state == "running"
    assert await complete(first, mine, kept(b"here", now=wall()))

    assert (await claim(second)).state == "done"


async def test_a_lease_goes_on_while_the_store_is_away(lends: Lender, wall: Wall) -> None:
    """Its holder is told so, and nobody else here runs the same."""
    store, link, _ = two(lends, wall)
    mine = await claim(store, lease_s=10.0)
    link.go(away=True)
    wall.advance(9.0)

    renewed = store.records.renew(RECORD, mine.fence, 10.0)
    wall.advance(9.0)

    assert renewed is True
    assert (await claim(store)).state == "running"


async def test_a_store_that_comes_back_is_told_a_few_at_a_time(lends: Lender, wall: Wall) -> None:
    """All replicas have something to tell at that moment."""
    store, link, _ = two(lends, wall)
    link.go(away=True)
    for number in range(40):
        mine = await claim(store, record=digest(number))
        assert await complete(store, mine, kept(now=wall()), record=digest(number))
    assert entries(store, "records") == 40
    link.go(away=False)

    store.tick()
    await until(lambda: link.ran.count("records_complete") >= record_answers.SENT_AT_ONCE)
    await ticked(store, 2)
    told = link.ran.count("records_complete")
    await until(lambda: _tick(store, link, "records_complete", 40))

    assert told < 40


def test_what_is_owed_keeps_to_its_bytes() -> None:
    """The oldest are lost first, and it is said; what is too much by itself is not kept."""
    lost: list[bool] = []
    ledger = OfflineRecords(1000, lambda: lost.append(True))
    for number in range(5):
        mine = ledger.take(digest(number), ASKED, b"nonce", 30.0)
        held = ledger.holder(digest(number), mine.fence)
        assert held is not None
        ledger.owe(digest(number), held, kept(now=0.0), 300 if number < 4 else 1001)

    assert [*ledger.owed] == [digest(1), digest(2), digest(3)]
    assert (ledger.owed_bytes, len(lost)) == (900, 2)


def test_what_ran_out_long_ago_is_forgotten() -> None:
    """Neither who ran it and never came back, nor what nobody may have any more."""
    ledger = OfflineRecords(1000, lambda: None)
    ledger.take(digest("late"), ASKED, b"nonce", 30.0)
    mine = ledger.take(digest("done"), ASKED, b"nonce", 30.0)
    held = ledger.holder(digest("done"), mine.fence)
    assert held is not None
    ledger.owe(digest("done"), held, kept(now=0.0, fresh_s=60.0), 300)

    ledger.tick(59.0)
    assert (len(ledger.held), len(ledger.owed)) == (1, 1)
    ledger.tick(90_000.0)
    assert (len(ledger.held), len(ledger.owed), ledger.owed_bytes) == (0, 0, 0)


# Room, and clocks.


async def test_what_is_more_than_a_quarter_of_the_room_is_not_kept(
    lends: Lender, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is free, and it is said which setting to raise."""
    store = lends.replica(replace(ROOMY, records=64 * KIB), wall, now=wall)
    mine = await claim(store)

    with caplog.at_level(logging.WARNING, "gateway.store"):
        assert not await complete(store, mine, kept(bytes(20 * KIB), now=wall()))

    assert (await claim(store)).state == "claimed"
    assert "idempotency.max_bytes" in caplog.text


async def test_a_large_answer_makes_room_in_steps(lends: Lender, wall: Wall) -> None:
    """None of which takes long, however many small ones have to go; then it is there, and all is within the bound."""
    store = lends.replica(replace(ROOMY, records=1024 * KIB), wall, now=wall)
    link = lends.links[-1]
    claims = await asyncio.gather(*[claim(store, record=digest(number)) for number in range(1200)])
    small = [complete(store, one, kept(now=wall()), record=digest(at)) for at, one in enumerate(claims)]
    assert all(await asyncio.gather(*small))
    before, mine = link.ran.count("records_complete"), await claim(store)

    assert await complete(store, mine, kept(bytes(250 * KIB), now=wall()))

    assert link.ran.count("records_complete") - before > 1
    assert held_bytes(store, "records") <= 1024 * KIB
    assert (await claim(store)).state == "done"


@pytest.mark.parametrize(("ahead_s", "shift_s"), [(10.0, -10.0), (0.3, 0.0)])
async def test_an_answer_has_its_times_by_the_readers_clock(lends: Lender, ahead_s: float, shift_s: float) -> None:
    """Replicas' clocks differ by seconds; what has so long left for one has so long left for all."""
    server, fast = Wall(), Wall()
    fast.advance(ahead_s)
    writer, reader = lends.replica(ROOMY, fast, now=server), lends.replica(ROOMY, server, now=server)
    answer = kept(now=fast(), fresh_s=60.0)

    assert await complete(writer, await claim(writer), answer)
    found = (await claim(reader)).kept

    assert found is not None
    assert [found.stored_at, found.fresh_until, found.stale_until] == pytest.approx(
        [one + shift_s for one in (answer.stored_at, answer.fresh_until, answer.stale_until)], abs=1e-6
    )


def _flush(lends: Lender) -> None:
    with Redis.from_url(lends.url) as client:
        client.flushall()


def _tick(store: RedisStore, link: Lent, script: str, times: int) -> bool:
    """Whether a script has run so often, after one more tick."""
    store.tick()
    return link.ran.count(script) >= times


async def test_a_key_has_no_white_space(lends: Lender, wall: Wall) -> None:
    """Patterns of ACLs and of `redis-cli` end where it stands."""
    store = lends.replica(ROOMY, wall, now=wall)

    assert await complete(store, await claim(store), kept(now=wall()))

    prefix = lends.links[-1].key("records").partition(b"records:")[0]
    with Redis.from_url(lends.url) as client:
        uses = {key.removeprefix(prefix).partition(b":{")[0] for key in client.scan_iter(match=prefix + b"*")}
    assert b"record_tenants" in uses
    assert not {use for use in uses if re.search(rb"[^a-z_]", use)}
