"""One batch on several gateways that share a Redis, in virtual time: what is measured is how they share, and no processor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.products.batches.input import LEAST_LINES
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import BATCH, DRAW_BYTES, new_id
from gateway.products.jobs.rules import BatchRules, JobRules, SegmentRules
from tests.support.redis_servers import RedisServer
from tests.support.town import Process, Town, Where, town
from tests.support.virtual import LoopClock, run

LINES, LINE_S = 1024, 8.0
"""Longer than a gateway takes to look for work: news come in the time of the world, which does not pass here."""
ID = new_id(BATCH, bytes(DRAW_BYTES))
RULES = replace(JobRules(), segments=(SegmentRules("all"),), batches=BatchRules(parallel_chunks=2))


def seconds_of(url: str, number: int, joins_after_s: float = 0.0) -> tuple[float, list[int]]:
    """How long a batch takes so many gateways, and what the provider has had of each; the last one may join later."""
    asked = [0] * number

    def gateway(here: Town, place: int) -> Process:
        def answers(_request: StoredRequest, _try: int) -> float:
            asked[place] += 1
            return LINE_S

        return here.process(rules=RULES, script=answers)

    async def story(clock: LoopClock) -> float:
        async with town("redis", clock, Where(Path(), url)) as here:
            gateways = [gateway(here, place) for place in range(number)]
            for one in gateways[: -1 if joins_after_s else None]:
                one.worker.start()
            await asyncio.sleep(2)  # each has asked for work, and is counted
            began_at = clock.monotonic()
            await gateways[0].accept_batch(LINES, ID)
            if joins_after_s:
                await asyncio.sleep(joins_after_s)
                gateways[-1].worker.start()
            store = gateways[0].store
            while (job := await store.find(ID, None)) is None or not job.state.is_end:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.5)
            assert job.tally.completed == LINES
            return clock.monotonic() - began_at

    return run(story), asked


@pytest.fixture(scope="module")
def url(_redis_process: RedisServer) -> str:
    """The server that they share."""
    return _redis_process.url


@pytest.fixture(scope="module")
def alone_s(url: str) -> float:
    """How long it takes one gateway."""
    return seconds_of(url, 1)[0]


@pytest.mark.parametrize("number", [2, 4])
def test_so_many_gateways_need_that_part_of_the_time(url: str, alone_s: float, number: int) -> None:
    """Each line is asked for once, and each gateway asks for about as many."""
    took_s, asked = seconds_of(url, number)

    assert sum(asked) == LINES
    assert max(asked) - min(asked) <= 2 * LEAST_LINES
    assert took_s <= 1.15 / number * alone_s


def test_a_gateway_that_joins_has_its_part_of_what_is_left(url: str, alone_s: float) -> None:
    """From the next chunk on that ends."""
    joins_after_s = alone_s / 4
    took_s, asked = seconds_of(url, 2, joins_after_s)

    assert sum(asked) == LINES
    assert took_s <= 1.15 * (joins_after_s + (alone_s - joins_after_s) / 2)
