"""What the gateway relies on, whichever store is behind the port: the same rules run on every implementation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.types import Kept, Usage
from gateway.features.semantic.store import VectorRow
from tests.support.conformance import (
    KIB,
    ROOMY,
    AnswersModel,
    MakeStore,
    RecordsModel,
    Wall,
    digest,
    entries,
    held_bytes,
    kept,
    row,
    settle,
    shrunk,
    swept,
    ticked,
)
from tests.support.stores import MemoryStore, Store

RECORD, ASKED, ASKED_OTHERWISE = digest("record"), digest("request"), digest("another request")
KEY = digest("key")
P1, P2 = digest("partition", 1), digest("partition", 2)

# A store is made anew for every example, though the fixture that makes it is not.
examples = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

odd_answers = st.builds(
    Kept,
    status=st.sampled_from([200, 201, 400, 404]),
    headers=st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=300)), max_size=4),
    body=st.binary(max_size=5 * KIB),
    is_stream=st.booleans(),
    endpoint=st.text(max_size=8),
    model=st.text(max_size=20),
    tenant=st.text(max_size=20),
    group=st.just("default"),
    source=st.text(max_size=20),
    target=st.text(max_size=20),
    stored_at=st.just(1_700_000_000.25),
    fresh_until=st.just(1_700_000_060.125),
    stale_until=st.floats(1_700_000_061, 1_700_009_000),
    outcome=st.sampled_from(["ok", "bad_request"]),
    usage=st.none() | st.builds(Usage, *[st.integers(0, 2**40)] * 3, st.booleans()),
    cost_usd=st.none() | st.floats(0, 1000),
    usage_event=st.binary(max_size=50),
)


# Idempotency records.


async def hold(store: Store, *, lease_s: float = 30.0, record: bytes = RECORD) -> int:
    """Claim a record that is free; returns the fence."""
    claim = await settle(store.records.claim(record, ASKED, lease_s))
    assert claim.state == "claimed"
    return claim.fence


async def state(store: Store, *, fingerprint: bytes = ASKED, record: bytes = RECORD) -> str:
    """What the next one who asks is told."""
    return (await settle(store.records.claim(record, fingerprint, 30.0))).state


async def test_a_running_record_is_given_to_nobody_else(make_store: MakeStore, wall: Wall) -> None:
    """The second caller of the same request is told that it runs, and until when at most."""
    store = make_store(ROOMY, wall)
    await hold(store, lease_s=30.0)
    wall.advance(10.0)

    second = await settle(store.records.claim(RECORD, ASKED, 30.0))

    assert second.state == "running"
    assert second.lease_left_s == pytest.approx(20.0)


async def test_another_request_under_the_key_is_a_mismatch(make_store: MakeStore, wall: Wall) -> None:
    """While it runs, and when it is done."""
    store = make_store(ROOMY, wall)
    fence = await hold(store)

    while_running = await state(store, fingerprint=ASKED_OTHERWISE)
    await settle(store.records.complete(RECORD, fence, kept(now=wall())))
    when_done = await state(store, fingerprint=ASKED_OTHERWISE)

    assert (while_running, when_done) == ("mismatch", "mismatch")


async def test_a_completed_record_is_given_again_until_it_is_no_longer_fresh(make_store: MakeStore, wall: Wall) -> None:
    """Exactly what was kept; after that the record is free."""
    store = make_store(ROOMY, wall)
    answer = kept(b"paid for once", now=wall(), fresh_s=60.0)
    assert await settle(store.records.complete(RECORD, await hold(store), answer))

    wall.advance(59.5)
    within = await settle(store.records.claim(RECORD, ASKED, 30.0))
    wall.advance(1.0)
    after = await state(store, fingerprint=ASKED_OTHERWISE)

    assert (within.state, within.kept) == ("done", answer)
    assert after == "claimed"


async def test_a_lease_that_has_ended_frees_the_record_for_any_request(make_store: MakeStore, wall: Wall) -> None:
    """Nothing came of it: the next caller runs, with a higher fence, whatever it asks."""
    store = make_store(ROOMY, wall)
    fence = await hold(store, lease_s=30.0)

    wall.advance(30.5)
    claim = await settle(store.records.claim(RECORD, ASKED_OTHERWISE, 30.0))

    assert claim.state == "claimed"
    assert claim.fence > fence


async def test_a_renewed_lease_runs_from_then_on(make_store: MakeStore, wall: Wall) -> None:
    """For as long as was asked for, from the time of the renewal."""
    store = make_store(ROOMY, wall)
    fence = await hold(store, lease_s=30.0)

    wall.advance(20.0)
    renewed = await settle(store.records.renew(RECORD, fence, 30.0))
    wall.advance(25.0)

    assert renewed
    assert await state(store) == "running"


async def test_a_late_holder_still_has_what_nobody_else_took(make_store: MakeStore, wall: Wall) -> None:
    """An answer that was paid for is not thrown away because its lease ran out while nobody asked."""
    store = make_store(ROOMY, wall)
    fence = await hold(store, lease_s=30.0)
    wall.advance(31.0)

    renewed = await settle(store.records.renew(RECORD, fence, 1.0))
    wall.advance(2.0)
    completed = await settle(store.records.complete(RECORD, fence, kept(now=wall())))

    assert (renewed, completed) == (True, True)
    assert await state(store) == "done"


async def test_who_lost_its_lease_changes_nothing(make_store: MakeStore, wall: Wall) -> None:
    """Neither what the new holder runs, nor what it completed."""
    store = make_store(ROOMY, wall)
    late = await hold(store, lease_s=1.0)
    wall.advance(2.0)
    fence = await hold(store)

    assert not await settle(store.records.renew(RECORD, late, 30.0))
    assert not await settle(store.records.complete(RECORD, late, kept(b"late", now=wall())))
    await settle(store.records.release(RECORD, late))
    assert await state(store) == "running"

    assert await settle(store.records.complete(RECORD, fence, kept(b"won", now=wall())))
    assert not await settle(store.records.complete(RECORD, late, kept(b"late", now=wall())))
    assert not await settle(store.records.complete(RECORD, fence, kept(b"twice", now=wall())))
    assert not await settle(store.records.renew(RECORD, fence, 30.0))
    await settle(store.records.release(RECORD, fence))
    claim = await settle(store.records.claim(RECORD, ASKED, 30.0))

    assert claim.kept is not None
    assert claim.kept.body == b"won"


async def test_a_released_record_is_free_at_once(make_store: MakeStore, wall: Wall) -> None:
    """The next caller runs, with a higher fence; the old fence is worth nothing."""
    store = make_store(ROOMY, wall)
    fence = await hold(store)

    await settle(store.records.release(RECORD, fence))

    assert not await settle(store.records.complete(RECORD, fence, kept(now=wall())))
    assert await hold(store) > fence


async def test_an_unknown_record_can_only_be_claimed(make_store: MakeStore, wall: Wall) -> None:
    """Nobody holds it."""
    store = make_store(ROOMY, wall)

    assert not await settle(store.records.renew(RECORD, 1, 30.0))
    assert not await settle(store.records.complete(RECORD, 1, kept(now=wall())))
    await settle(store.records.release(RECORD, 1))
    assert await state(store) == "claimed"


async def test_records_keep_to_their_bytes_and_say_when_that_costs_a_promise(
    make_store: MakeStore, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """Those completed first go first, one warning names the setting, and what runs is never dropped."""
    store = make_store(replace(ROOMY, records=64 * KIB), wall)
    running = digest("runs")
    await hold(store, record=running)

    with caplog.at_level(logging.WARNING, "gateway.store"):
        for number in range(20):
            fence = await hold(store, record=digest(number))
            assert await settle(store.records.complete(digest(number), fence, kept(bytes(8 * KIB), now=wall())))
            wall.advance(0.001)
        await shrunk(store, "records", 64 * KIB)

    assert held_bytes(store, "records") <= 64 * KIB
    assert await state(store, record=running) == "running"
    assert [await state(store, record=digest(number)) for number in (17, 18, 19)] == ["done"] * 3
    assert await state(store, record=digest(0)) == "claimed"
    warnings = [one.getMessage() for one in caplog.records if one.name.startswith("gateway.store")]
    assert len([one for one in warnings if "idempotency.max_bytes" in one]) == 1


def of_tenant(tenant: str, number: int) -> bytes:
    """The id of a tenant's record: behind its digest stands whose it is."""
    return digest(tenant, number) + digest(tenant)[:8]


async def done(store: Store, tenant: str, numbers: range, size: int, wall: Wall) -> list[bool]:
    """What came of these records of one tenant: whether each could be kept."""
    said = []
    for number in numbers:
        record = of_tenant(tenant, number)
        wall.advance(0.01)
        answer = kept(bytes(size), now=wall(), fresh_s=600.0, tenant=tenant)
        said.append(await settle(store.records.complete(record, await hold(store, record=record), answer)))
    return said


async def still_there(store: Store, tenant: str, numbers: range) -> list[int]:
    """Which of them would be given again."""
    return [number for number in numbers if await state(store, record=of_tenant(tenant, number)) == "done"]


async def test_a_tenants_records_take_nobody_elses_room(make_store: MakeStore, wall: Wall) -> None:
    """Alone it may have all; where others are it makes room for itself beyond three quarters, and what goes early counts."""
    store = make_store(replace(ROOMY, records=512 * KIB), wall)

    assert all(await done(store, "greedy", range(60), 12 * KIB, wall))
    assert all(await done(store, "modest", range(20), KIB, wall))
    assert all(await done(store, "greedy", range(60, 160), 12 * KIB, wall))
    await shrunk(store, "records", 512 * KIB)

    assert held_bytes(store, "records") <= 512 * KIB
    assert await still_there(store, "modest", range(20)) == [*range(20)]
    left = await still_there(store, "greedy", range(160))
    assert left == [*range(160 - len(left), 160)]  # its own oldest have gone
    assert len(left) >= 20
    assert store.stats()["records"]["early"] == 160 - len(left)


async def test_what_has_run_out_is_forgotten_by_records(make_store: MakeStore, wall: Wall) -> None:
    """Without anybody asking for it."""
    store = make_store(ROOMY, wall)
    for number in range(30):
        fence = await hold(store, record=digest(number))
        await settle(store.records.complete(digest(number), fence, kept(now=wall(), fresh_s=60.0)))

    wall.advance(61.0)
    await swept(store, "records", 0)

    assert entries(store, "records") == 0


records, requests = st.integers(0, 2), st.integers(0, 1)
leases, which = st.sampled_from([1.0, 10.0, 30.0]), st.integers(0, 12)
record_steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), records, requests, leases),
        st.tuples(st.just("claim"), records, requests, leases),
        st.tuples(st.just("renew"), which, leases),
        st.tuples(st.just("complete"), which, st.binary(max_size=3), st.sampled_from([5.0, 60.0])),
        st.tuples(st.just("release"), which),
        st.tuples(st.just("pass_time"), st.sampled_from([0.5, 7.1, 31.3, 70.7])),
        st.tuples(st.just("tick")),
    ),
    max_size=40,
)


@examples
@given(steps=record_steps)
async def test_records_do_as_their_model(make_store: MakeStore, steps: list[tuple[object, ...]]) -> None:
    """One holder at a time; what the winner completed stays as it is; fences only grow."""
    wall = Wall()
    model = RecordsModel(make_store(ROOMY, wall), wall)

    for name, *arguments in steps:
        await getattr(model, str(name))(*arguments)


# Exact answers.


@examples
@given(answer=odd_answers)
async def test_an_answer_comes_back_as_it_was_kept(make_store: MakeStore, answer: Kept) -> None:
    """Every field of it, from the answers and from a record."""
    wall = Wall()
    store = make_store(ROOMY, wall)

    await settle(store.answers.put(KEY, answer))
    await settle(store.records.complete(RECORD, await hold(store), answer))

    assert await settle(store.answers.get(KEY, "default")) == answer
    assert (await settle(store.records.claim(RECORD, ASKED, 30.0))).kept == answer


async def test_a_large_answer_comes_back_as_it_was_kept(make_store: MakeStore, wall: Wall) -> None:
    """Some hundred KiB in which no two parts are alike, kept between others that come and go."""
    store = make_store(ROOMY, wall)
    bodies = {
        digest(number): b"".join(digest(number, part) for part in range(1 + 700 * number)) for number in range(12)
    }

    for key, body in bodies.items():
        await settle(store.answers.put(digest("passing"), kept(bytes(len(body) // 2), now=wall())))
        await settle(store.answers.put(key, kept(body, now=wall())))
    found = [await settle(store.answers.get(key, "default")) for key in bodies]

    there = [(one.body, body) for one, body in zip(found, bodies.values(), strict=True) if one is not None]
    assert all(found == body for found, body in there)
    assert len(there) >= 2


async def test_an_answer_is_kept_instead_of_the_one_before(make_store: MakeStore, wall: Wall) -> None:
    """There is one to a key."""
    store = make_store(ROOMY, wall)

    await settle(store.answers.put(KEY, kept(b"old" * 1000, now=wall())))
    await settle(store.answers.put(KEY, kept(b"new", now=wall())))
    found = await settle(store.answers.get(KEY, "default"))
    await ticked(store, 1)

    assert found is not None
    assert found.body == b"new"
    assert entries(store, "answers") == 1


async def test_an_answer_is_given_until_it_is_too_stale(make_store: MakeStore, wall: Wall) -> None:
    """Past `fresh_until` still, past `stale_until` no more."""
    store = make_store(ROOMY, wall)
    await settle(store.answers.put(KEY, kept(now=wall(), fresh_s=60.0, stale_s=30.0)))

    wall.advance(89.5)
    within = await settle(store.answers.get(KEY, "default"))
    wall.advance(1.0)
    after = await settle(store.answers.get(KEY, "default"))

    assert within is not None
    assert after is None


async def test_what_has_run_out_is_forgotten_by_answers(make_store: MakeStore, wall: Wall) -> None:
    """Without anybody asking for it; what has not stays."""
    store = make_store(ROOMY, wall)
    for number in range(30):
        await settle(store.answers.put(digest(number), kept(now=wall(), fresh_s=60.0 + 60.0 * (number % 2))))

    wall.advance(61.0)
    await swept(store, "answers", 15)

    assert entries(store, "answers") == 15


async def test_a_group_that_is_not_named_keeps_nothing(make_store: MakeStore, wall: Wall) -> None:
    """Neither does one whose bound is taken away."""
    store = make_store(ROOMY, wall)

    await settle(store.answers.put(KEY, kept(now=wall(), group="unknown")))
    await settle(store.answers.put(KEY, kept(now=wall(), group="other")))
    store.configure(replace(ROOMY, answers={"default": 1024 * KIB}))
    await ticked(store)

    assert await settle(store.answers.get(KEY, "unknown")) is None
    assert await settle(store.answers.get(KEY, "other")) is None
    assert entries(store, "answers") == 0


async def test_the_least_recently_used_answer_goes_first(make_store: MakeStore, wall: Wall) -> None:
    """A group keeps to its bytes, and no other group pays for it."""
    store = make_store(replace(ROOMY, answers={"default": 64 * KIB, "other": 64 * KIB}), wall)
    await settle(store.answers.put(KEY, kept(bytes(8 * KIB), now=wall(), group="other")))

    for number in range(20):
        await settle(store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall())))
        wall.advance(0.01)
        assert await settle(store.answers.get(digest(0), "default")) is not None
        wall.advance(0.01)
    await ticked(store)
    there = [number for number in range(20) if await settle(store.answers.get(digest(number), "default"))]

    assert there == [0, *range(20 - len(there) + 1, 20)]
    assert 4 <= len(there) <= 8
    assert held_bytes(store, "answers") <= 128 * KIB
    assert await settle(store.answers.get(KEY, "other")) is not None


async def test_an_answer_larger_than_its_group_is_not_kept(make_store: MakeStore, wall: Wall) -> None:
    """And nothing else goes for it, but the one it was to replace."""
    store = make_store(replace(ROOMY, answers={"default": 64 * KIB}), wall)
    await settle(store.answers.put(digest("small"), kept(now=wall())))
    await settle(store.answers.put(KEY, kept(b"old", now=wall())))

    await settle(store.answers.put(KEY, kept(bytes(65 * KIB), now=wall())))

    assert await settle(store.answers.get(KEY, "default")) is None
    assert await settle(store.answers.get(digest("small"), "default")) is not None


async def test_a_lower_bound_holds_from_then_on(make_store: MakeStore, wall: Wall) -> None:
    """What was used last stays; what fitted still fits under a higher one."""
    store = make_store(ROOMY, wall)
    for number in range(20):
        await settle(store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall())))
        wall.advance(0.01)

    store.configure(replace(ROOMY, answers={"default": 64 * KIB}))
    await shrunk(store, "answers", 64 * KIB)

    assert held_bytes(store, "answers") <= 64 * KIB
    assert await settle(store.answers.get(digest(19), "default")) is not None
    assert await settle(store.answers.get(digest(0), "default")) is None


@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({}, []),
        ({"model": "m1"}, ["m2/a", "m2/b"]),
        ({"tenant": "a"}, ["m1/b", "m2/b"]),
        ({"model": "m1", "tenant": "a"}, ["m1/b", "m2/a", "m2/b"]),
        ({"key": digest("m2/b")}, ["m1/a", "m1/b", "m2/a"]),
        ({"key": digest("m2/b"), "tenant": "a"}, ["m1/a", "m1/b", "m2/a", "m2/b"]),
        ({"model": "m3"}, ["m1/a", "m1/b", "m2/a", "m2/b"]),
        ({"tenant": "m1"}, ["m1/a", "m1/b", "m2/a", "m2/b"]),
    ],
)
async def test_answers_are_forgotten_by_all_that_is_named(
    make_store: MakeStore, wall: Wall, which: dict[str, str], left: list[str]
) -> None:
    """In every group; what was forgotten is counted."""
    store = make_store(ROOMY, wall)
    names = ["m1/a", "m1/b", "m2/a", "m2/b"]
    for number, name in enumerate(names):
        model, _, tenant = name.partition("/")
        answer = kept(name.encode(), now=wall(), model=model, tenant=tenant, group=("default", "other")[number % 2])
        await settle(store.answers.put(digest(name), answer))

    count = await settle(store.answers.forget(**which))  # type: ignore[arg-type]  # as named
    found = [
        name
        for number, name in enumerate(names)
        if await settle(store.answers.get(digest(name), ("default", "other")[number % 2])) is not None
    ]

    assert found == left
    assert count == 4 - len(left)
    assert entries(store, "answers") == len(left)


names = st.integers(0, 7)
answer_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names, st.sampled_from([0, 700, 6_000, 30_000, 70_000]), leases, leases),
        st.tuples(st.just("get"), names),
        st.tuples(st.just("forget"), *[st.none() | st.integers(0, top) for top in (7, 1, 2)]),
        st.tuples(st.just("pass_time"), st.sampled_from([0.5, 7.1, 31.3])),
        st.tuples(st.just("tick")),
    ),
    max_size=40,
)


@examples
@given(steps=answer_steps)
async def test_answers_do_as_their_model(make_store: MakeStore, steps: list[tuple[object, ...]]) -> None:
    """Never one that has run out or was forgotten, never another key's; never more bytes than allowed."""
    wall = Wall()
    model = AnswersModel(make_store(replace(ROOMY, answers={"default": 64 * KIB}), wall), wall, 64 * KIB)

    for name, *arguments in steps:
        await getattr(model, str(name))(*arguments)
    await model.check()


# The rows of the semantic index: kept by a store that is more than this process's memory.


async def loaded(store: Store, partition: bytes, most: int) -> list[VectorRow]:
    """The rows that a new process would begin with."""
    rows: Sequence[VectorRow] = await settle(store.vectors.load(partition, most))
    return list(rows)


async def test_memory_leaves_the_rows_to_the_index(wall: Wall) -> None:
    """They are where the search is, and nowhere else: there is nothing to come back."""
    store = MemoryStore(ROOMY, wall)
    await settle(store.vectors.add(row("any", now=wall(), partition=P1)))
    assert await loaded(store, P1, 10) == []
    assert await settle(store.vectors.forget()) == 0


async def test_rows_come_back_oldest_first(make_lasting_store: MakeStore, wall: Wall) -> None:
    """The newest so many of a partition, as they were added."""
    store = make_lasting_store(ROOMY, wall)
    rows = [row(number, now=wall() + number, partition=P1) for number in range(5)]
    for one in [*rows, row("elsewhere", now=wall(), partition=P2)]:
        await settle(store.vectors.add(one))

    assert await loaded(store, P1, 10) == rows
    assert await loaded(store, P1, 3) == rows[-3:]


async def test_a_row_is_kept_instead_of_one_with_its_id(make_lasting_store: MakeStore, wall: Wall) -> None:
    """In its partition; another's stays."""
    store = make_lasting_store(ROOMY, wall)
    first, other = row("one", now=wall(), partition=P1), row("one", now=wall(), partition=P2)
    second = replace(first, vector=b"\x09\x09", stored_at=wall() + 1)

    for one in (first, other, second):
        await settle(store.vectors.add(one))

    assert await loaded(store, P1, 10) == [second]
    assert await loaded(store, P2, 10) == [other]


async def test_rows_run_out(make_lasting_store: MakeStore, wall: Wall) -> None:
    """They are not loaded any more, and forgotten in time."""
    store = make_lasting_store(ROOMY, wall)
    await settle(store.vectors.add(row("short", now=wall(), partition=P1, ttl_s=10.0)))
    await settle(store.vectors.add(row("long", now=wall(), partition=P1, ttl_s=60.0)))

    wall.advance(11.0)
    found = await loaded(store, P1, 10)
    await swept(store, "vectors", 1)

    assert [one.id for one in found] == [digest("long")]
    assert entries(store, "vectors") == 1


async def test_rows_are_removed_by_id(make_lasting_store: MakeStore, wall: Wall) -> None:
    """In their partition only."""
    store = make_lasting_store(ROOMY, wall)
    for partition in (P1, P2):
        for number in range(3):
            await settle(store.vectors.add(row(number, now=wall() + number, partition=partition)))

    await settle(store.vectors.remove(P1, [digest(0), digest(2), digest("none")]))

    assert [one.id for one in await loaded(store, P1, 10)] == [digest(1)]
    assert len(await loaded(store, P2, 10)) == 3


async def test_a_partition_keeps_its_newest_rows(make_lasting_store: MakeStore, wall: Wall) -> None:
    """As many as the bounds say."""
    store = make_lasting_store(replace(ROOMY, vectors=4), wall)
    for number in range(10):
        await settle(store.vectors.add(row(number, now=wall() + number, partition=P1)))

    await ticked(store)

    assert [one.id for one in await loaded(store, P1, 10)] == [digest(number) for number in (6, 7, 8, 9)]
    assert entries(store, "vectors") == 4


@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({}, 0),
        ({"model": "m1"}, 2),
        ({"tenant": "a"}, 2),
        ({"model": "m1", "tenant": "a"}, 3),
        ({"key": digest("m2", "b")}, 3),
    ],
)
async def test_rows_are_forgotten_by_all_that_is_named(
    make_lasting_store: MakeStore, wall: Wall, which: dict[str, str], left: int
) -> None:
    """As with answers, in every partition."""
    store = make_lasting_store(ROOMY, wall)
    for model in ("m1", "m2"):
        for tenant in ("a", "b"):
            one = row("", now=wall(), partition=digest(tenant), model=model, tenant=tenant)
            await settle(store.vectors.add(replace(one, id=digest(model, tenant))))

    count = await settle(store.vectors.forget(**which))  # type: ignore[arg-type]  # as named

    assert count == 4 - left
    assert entries(store, "vectors") == left


# All of it.


async def test_stats_name_all_three_uses(make_store: MakeStore, wall: Wall) -> None:
    """An empty store keeps no entries of any."""
    stats = make_store(ROOMY, wall).stats()

    assert {use: one["entries"] for use, one in stats.items()} == {"answers": 0, "records": 0, "vectors": 0}
    assert all("bytes" in one for one in stats.values())


async def test_a_purge_leaves_records_alone(make_store: MakeStore, wall: Wall) -> None:
    """Whoever repeats a paid call gets its answer, whatever was forgotten of the cache."""
    store = make_store(ROOMY, wall)
    await settle(store.records.complete(RECORD, await hold(store), kept(now=wall())))

    await settle(store.answers.forget())

    assert await state(store) == "done"
