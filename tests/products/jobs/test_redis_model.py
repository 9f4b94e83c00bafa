"""The Redis store beside the one in memory: whatever is done to both, they answer the same, whichever replica is asked.

Only two things differ, and neither matters where time goes on: what time makes due is seen to when somebody looks, so both are
made to look whenever it passes; and resumed pieces go before all others, so both queues are put in one order then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from gateway.products.jobs.model import ClaimedWork, ClaimRequest, JobFlag
from gateway.products.jobs.store import JobStore
from tests.products.jobs.test_model import NUMBERS, ROOM, TwoStores, name_of
from tests.support.redis_jobs import PromptJobStore, job_lender


class RedisBesideMemory(TwoStores):
    """As `TwoStores`, with replicas on a server."""

    url: ClassVar[str]
    stack: AsyncExitStack

    async def _open(self) -> None:
        if not hasattr(self, "stack"):
            self.stack = AsyncExitStack()
            self.lends = await self.stack.enter_async_context(job_lender(self.url))
        self.replica = self.lends.make(ROOM, self.wall, is_replica=hasattr(self, "other"))
        self.other: JobStore = self.replica

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.runner.run(self.other.aclose())
            self.runner.run(self.stack.aclose())
            del self.other
        super().teardown()

    async def _look(self) -> None:
        assert isinstance(self.replica, PromptJobStore)
        await self.replica.look()

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.tick()

    @rule(number=NUMBERS, tenant=st.sampled_from(["a", "b", None]), flag=st.sampled_from(list(JobFlag)))
    def flag(self, number: int, tenant: str | None, flag: JobFlag) -> None:
        self.both(lambda store: store.flag(name_of(number), tenant, flag))
        if flag is JobFlag.RESUME:
            self._put_in_order()

    def _put_in_order(self) -> None:
        """Claims all that is ready, and gives it back by name."""

        def key(work: ClaimedWork) -> tuple[str, int]:
            return work.job.id, work.piece

        async def claimed(store: JobStore) -> list[ClaimedWork]:
            return sorted(await store.claim([ClaimRequest("fast", 999), ClaimRequest("slow", 999)]), key=key)

        ours, theirs = [self.runner.run(claimed(store)) for store in (self.memory, self.other)]
        assert [replace(work, fence=0) for work in ours] == [replace(work, fence=0) for work in theirs]
        for pair in zip(ours, theirs, strict=True):
            self.works.append(pair)
            self.write(len(self.works) - 1, lambda store, work: store.give_back(work, run_at=None, is_attempt=False))

    @rule()
    def restart(self) -> None:
        """Another replica goes on: claims hold, whoever shows them."""
        self.runner.run(self.other.aclose())
        self.runner.run(self._open())


@pytest.fixture(autouse=True)
def _server(redis_url: str) -> Iterator[Any]:
    RedisBesideMemory.url = redis_url
    yield
    del RedisBesideMemory.url


TestRedisBesideMemory = RedisBesideMemory.TestCase
TestRedisBesideMemory.settings = settings(
    max_examples=settings().max_examples // 4,  # 7, and in the soak ten times as many and more
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],  # as beside SQLite
    suppress_health_check=list(HealthCheck),
)
