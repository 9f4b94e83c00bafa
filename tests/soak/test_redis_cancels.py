"""A hundred thousand operations over one link, most of them given up on their way: no reply is ever another's."""

from __future__ import annotations

import pytest

from tests.drivers.test_redis_link import ask_and_cancel, linked
from tests.support.redis_servers import RedisCluster, RedisServer

pytestmark = pytest.mark.soak

OPERATIONS = 100_000


async def test_no_reply_is_anothers(a_redis: RedisServer) -> None:
    """On one server."""
    async with linked(a_redis.url, timeout_s=2.0) as link:
        assert await ask_and_cancel(link, OPERATIONS) == []

        assert link.operations >= OPERATIONS // 4


async def test_no_reply_is_anothers_in_a_cluster(a_cluster: RedisCluster) -> None:
    """On three."""
    async with linked(a_cluster.url, timeout_s=2.0) as link:
        assert await ask_and_cancel(link, OPERATIONS) == []
