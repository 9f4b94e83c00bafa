"""What one script on a Redis may take, and what may stay behind there."""

from __future__ import annotations

from unittest.mock import patch

from redis import Redis

from gateway.policy.jobs.dead_letters import derived_letter_id
from gateway.policy.jobs.job import ClaimAsk, JobQuery
from gateway.store.jobs.redis import dead_letters
from tests.store.conformance import Wall
from tests.store.jobs.redis_support import JobLender
from tests.store.jobs.support import Jobs, ids
from tests.store.jobs.test_dead_letters import dead_call
from tests.store.jobs.test_redis_leases import let_leases_end

MIB = 1024 * 1024
ALL = JobQuery(None, limit=1000)


async def test_large_requests_are_given_a_few_at_a_time(job_lends: JobLender, wall: Wall) -> None:
    """All at once would take longer to arrive than anybody waits, and nobody would ever have them."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    names = [(await jobs.call(payload=b"x" * 3 * MIB)).id for _ in range(5)]

    async def claim() -> list[str]:
        return ids(await jobs.store.claim([ClaimAsk("fast", 10)]))

    assert [await claim() for _ in range(4)] == [names[:2], names[2:4], names[4:], []]
    let_leases_end(job_lends)
    assert sorted([*await claim(), *await claim(), *await claim()]) == sorted(names)


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
