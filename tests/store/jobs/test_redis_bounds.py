"""What one script on a Redis may take, and what may stay behind there."""

from __future__ import annotations

from gateway.policy.jobs.job import ClaimAsk
from tests.store.conformance import Wall
from tests.store.jobs.redis_support import JobLender
from tests.store.jobs.support import Jobs, ids
from tests.store.jobs.test_redis_leases import let_leases_end

MIB = 1024 * 1024


async def test_large_requests_are_given_a_few_at_a_time(job_lends: JobLender, wall: Wall) -> None:
    """All at once would take longer to arrive than anybody waits, and nobody would ever have them."""
    jobs = Jobs(job_lends.make(wall=wall), wall)
    names = [(await jobs.call(payload=b"x" * 3 * MIB)).id for _ in range(5)]

    async def claim() -> list[str]:
        return ids(await jobs.store.claim([ClaimAsk("fast", 10)]))

    assert [await claim() for _ in range(4)] == [names[:2], names[2:4], names[4:], []]
    let_leases_end(job_lends)
    assert sorted([*await claim(), *await claim(), *await claim()]) == sorted(names)
