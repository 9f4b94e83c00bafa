"""What one script on a Redis may take, and what may stay behind there."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import patch

import pytest
from redis import Redis

from gateway.core.clock import SharedClock
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.dead_letters import redis as dead_letters
from gateway.products.jobs.dead_letters.rules import derived_letter_id
from gateway.products.jobs.model import ClaimRequest, JobQuery, JobState
from tests.products.jobs.dead_letters.test_dead_letter_store import dead_call
from tests.products.jobs.test_redis_leases import let_leases_end
from tests.support.conformance import Wall
from tests.support.job_stores import OURS, Jobs, ids, key, line
from tests.support.redis_jobs import JobLender

MIB = 1024 * 1024
ALL = JobQuery(None, limit=1000)


async def test_large_requests_are_given_a_few_at_a_time(job_lends: JobLender, wall: Wall) -> None:
    """All at once would take longer to arrive than anybody waits, and nobody would ever have them."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    names = [(await jobs.call(payload=b"x" * 3 * MIB)).id for _ in range(5)]

    async def claim() -> list[str]:
        return ids(await jobs.store.claim([ClaimRequest("fast", 10)]))

    assert [await claim() for _ in range(4)] == [names[:2], names[2:4], names[4:], []]
    let_leases_end(job_lends)
    assert sorted([*await claim(), *await claim(), *await claim()]) == sorted(names)


async def test_claims_beyond_those_of_one_look_are_taken_over_by_the_next(job_lends: JobLender, wall: Wall) -> None:
    """A look at all claims would stop the server where there are many; a look goes on where the last one ended."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    for first in range(0, 1200, 100):
        await jobs.store.accept([jobs.new(id=f"{first + number}") for number in range(100)])
    works = [work for _ in range(24) for work in await jobs.claim_all(50)]
    assert len(works) == 1200
    with Redis.from_url(job_lends.url) as client:
        (stream,) = client.scan_iter(match=f"{job_lends.namespace}:*:r:*", count=1000)
        old = [pending["message_id"] for pending in client.xpending_range(stream, "workers", "-", "+", 2000)][1100:]
        client.xclaim(stream, "workers", "replica-0", 0, old, idle=15_001, justid=True)

        other = Jobs(job_lends.make(wall=wall, is_replica=True), wall)
        seen = [len(await other.claim_all(60)) for _ in range(4)]

        assert seen == [0, 60, 40, 0]
        assert [*client.scan_iter(match=f"{job_lends.namespace}:*:seen")] == [stream.partition(b":r:")[0] + b":seen"]


async def test_groups_beyond_those_that_are_listed_cost_nothing(job_lends: JobLender, wall: Wall) -> None:
    """There may be as many groups as letters: a look at all of them would stop the server, for everybody."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    names = [f"{chr(97 + first)}{chr(97 + second)}" for first in range(26) for second in range(10)]

    async def commands() -> int:
        with Redis.from_url(job_lends.url) as client:
            before = client.info("stats")["total_commands_processed"]
            found = await jobs.store.dead.groups(0)
            assert (len(found), found[0].template, found[0].number) == (5, "it was aa", 2)
            return int(client.info("stats")["total_commands_processed"] - before)

    with patch.object(dead_letters, "MOST_GROUPS", 5):
        await dead_call(jobs, "it was aa")
        for name in names[:10]:
            await dead_call(jobs, f"it was {name}")
        few = await commands()
        for name in names[10:]:
            await dead_call(jobs, f"it was {name}")
        assert await commands() <= few + 10

    (_, *others) = await jobs.store.dead.groups(0)
    assert len(others) == len(names) - 1
    await jobs.store.dead.purge([derived_letter_id(job.id, None) for job in (await jobs.store.list_jobs(ALL)).jobs])
    assert await jobs.store.dead.groups(0) == []
    with Redis.from_url(job_lends.url) as client:
        assert [*client.scan_iter(match=f"{job_lends.namespace}:*:sizes")] == []
        assert [*client.scan_iter(match=f"{job_lends.namespace}:*:group_ids")] == []


async def test_what_one_server_cannot_do_now_holds_up_no_other(job_lends: JobLender, wall: Wall) -> None:
    """While one of a cluster is away, the others' jobs are claimed, and what time makes of them is done."""
    job_lends.partitions = 8
    jobs = Jobs(job_lends.make(wall=wall), wall)
    store: Any = jobs.store
    partitions = store._partitions
    tenants = {partitions.of_tenant(f"tenant-{number}"): f"tenant-{number}" for number in range(200)}
    late = [(await jobs.call(tenant=tenant, deadline=wall() + 5)).id for tenant in tenants.values()]
    wall.advance(10)
    names = [(await jobs.call(tenant=tenant)).id for tenant in tenants.values()]
    run, away = partitions.run, {3}

    async def lame(script: Any, partition: int, *args: Any, mark: bytes | None = None) -> Any:
        if partition in away:
            raise JobsUnavailable("away")
        return await run(script, partition, *args, mark=mark)

    partitions.run = lame
    await jobs.tick()
    found = await jobs.store.claim([ClaimRequest("fast", 100)])
    assert len(found) == len(names) - 1
    assert await jobs.store.claim([ClaimRequest("fast", 100)]) == []
    away.clear()
    assert ids(await jobs.store.claim([ClaimRequest("fast", 100)])) == [*{*names} - {*ids(found)}]
    away.update(range(8))
    with pytest.raises(JobsUnavailable):
        await jobs.store.claim([ClaimRequest("fast", 100)])
    away.clear()
    assert {(await jobs.get(name)).state for name in late} == {JobState.EXPIRED}


async def test_a_job_does_not_grow_each_time_another_takes_its_place(job_lends: JobLender, wall: Wall) -> None:
    """It may be debounced a thousand times; its keys go with it."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    more = {"debounce_key": key("d"), "debounce_wait_s": 60.0, "debounce_max_s": 600.0}

    def kept() -> dict[bytes, bytes | None]:
        with Redis.from_url(job_lends.url) as client:
            found = [*client.scan_iter(match=f"{job_lends.namespace}:*:[jwd]:*")]
            return {name: client.hget(name, "k") if b":j:" in name else client.get(name) for name in found}

    sizes = []
    for _ in range(5):
        await jobs.accept(jobs.new(run_at=wall() + 60, state=JobState.SCHEDULED, more=more))
        sizes.append(sum(len(value or b"") for value in kept().values()))
    assert (len(kept()), len({*sizes})) == (2, 1)

    wall.advance(700)
    await jobs.finish(await jobs.claim())
    wall.advance(1)
    assert (await jobs.store.forget_ended(wall(), 10), kept()) == (1, {})


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
async def test_a_clock_that_differs_from_the_servers_puts_nothing_off(
    job_lends: JobLender, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """It follows the server's: what is due at once is, what is to wait waits as long as it was told to, nothing expires."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    clock = SharedClock(real() + ahead_s)
    store = job_lends.make(clock=clock)
    jobs = Jobs(store, Wall())
    await store.learn_time()
    now = clock.wall()
    await jobs.call(created_at=now, run_at=now, deadline=now + 300)
    work = await jobs.claim()
    await jobs.give_back(work, run_at=clock.wall() + 60)
    ((_, depth),) = (await store.look()).items()

    assert depth.number == 1
    assert 50 < depth.oldest_at - real() < 70


async def test_a_commit_has_an_answer_whatever_happens(job_lends: JobLender, wall: Wall) -> None:
    """A defect of one is told to all that went with it: nobody waits for ever with a claim that is kept young."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    await jobs.running_batch()
    one, other = await jobs.claim_all()
    store: Any = jobs.store
    with patch.object(store._partitions, "run", side_effect=ZeroDivisionError("a defect")):
        told = await asyncio.wait_for(
            asyncio.gather(*(jobs.store.commit(work, [line(0)]) for work in (one, other)), return_exceptions=True), 5
        )
    assert [type(error) for error in told] == [ZeroDivisionError] * 2
    assert await jobs.store.commit(one, [line(0)]) == OURS
