"""Claims of which somebody hears: what was claimed for a caller that has left is given back at once, uncounted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from gateway.drivers.redis.link import BackgroundTasks
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimAsk, ClaimedWork
from gateway.products.jobs.redis_claims.claims import RedisClaims
from gateway.products.jobs.redis_records.acceptance.places import JobPlaces
from gateway.products.jobs.redis_records.acceptance.writes import RedisWrites


class HeardClaims:
    """Claims for callers that may be cancelled. Without it, a lease would pass until others get the pieces."""

    def __init__(
        self, claims: RedisClaims, writes: RedisWrites, places: JobPlaces, background: BackgroundTasks
    ) -> None:
        self._claims = claims
        self._writes = writes
        self._places = places
        self._background = background

    async def claim(self, asks: Sequence[ClaimAsk]) -> Sequence[ClaimedWork]:
        """Claims the first of what is ready. Raises JobsUnavailable."""
        has_left = asyncio.Event()
        task = self._background.start(self._claim(asks, has_left))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            has_left.set()
            if task.done() and not task.cancelled() and task.exception() is None:
                self._background.start(self._give_back(task.result()))
            raise

    async def _claim(self, asks: Sequence[ClaimAsk], has_left: asyncio.Event) -> Sequence[ClaimedWork]:
        works = await self._claims.claim(asks)
        for work in works:
            self._places.learn_work(work)
        if has_left.is_set():
            await self._give_back(works)
        return works

    async def _give_back(self, works: Sequence[ClaimedWork]) -> None:
        for work in works:
            with suppress(JobsUnavailable):
                await self._writes.give_back(work, None, None, is_attempt=False)
