"""A batch at a provider's limit, through the real pipeline in virtual time: its pace, its refusals, and how fast it stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from random import Random

import orjson
import pytest

from gateway.core.call import Call
from gateway.core.limits.limit_table import Limits
from gateway.dialects.endpoints import EMBEDDINGS
from gateway.features.grouping.rules import LINES_WINDOW_S, GroupRules
from gateway.features.grouping.service import GROUP_RULES
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import JobFlag, JobState
from tests.products.batches.limited import LimitedStage, in_window
from tests.sim.limits import Refill
from tests.sim.provider import Latency, Provider
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

TOLD = Limits(requests_per_min=600, request_burst=10)
LEARNED = Limits(unstated_burst_s=5.0)
"""As the config compiles it where nothing is written down."""


def provider(**changes: object) -> Provider:
    """Ten requests a second, ten at once."""
    usual = {"limits": [Refill("requests", 600, 10)], "latency": Latency(0.3, 0.2)}
    return Provider("p0", **{**usual, **changes})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("lines", sampled([300, 600], lambda lines: lines == 300))
@pytest.mark.parametrize(
    ("limits", "tells", "most_refused", "most_time"),
    [(TOLD, "openai", 0, 1.03), (LEARNED, "openai", 6, 1.03), (LEARNED, "none", 18, 1.05)],
    ids=["configured", "learned-from-headers", "untold"],
)
def test_a_batch_goes_at_the_providers_pace(
    limits: Limits, tells: str, most_refused: int, most_time: float, lines: int
) -> None:
    """As fast as the limit lets it, refused only until it is known, however many lines there are, and no line fails for it."""

    async def story(clock: LoopClock) -> None:
        stage = LimitedStage(
            clock,
            provider=provider(headers=tells, retry_after="ms" if tells == "openai" else "none"),
            limits=limits,
        )
        stage.worker.start()
        await stage.accept_batch(lines, deadline=clock.wall() + 86_400)
        began = clock.now
        job = await stage.end_of("batch_1")
        took_s = clock.now - began
        ideal_s = (lines - 10) / 10

        assert (job.state, job.tally.completed, job.tally.failed) == (JobState.SUCCEEDED, lines, 0)
        assert stage.provider.served == lines
        assert stage.provider.refused <= most_refused, stage.provider.refused
        assert took_s <= most_time * ideal_s, took_s / ideal_s
        await stage.close()

    run(story)


def test_a_cancelled_batch_stops_at_once_and_ends_within_its_grace() -> None:
    """No line is sent a second later; what was under way ends; output and errors together are the input."""

    async def story(clock: LoopClock) -> None:
        stage = LimitedStage(
            clock, provider=provider(latency=Latency(20.0)), limits=TOLD, rules=in_window(cancel_grace_s=30.0)
        )
        stage.worker.start()
        await stage.accept_batch(2000, deadline=clock.wall() + 86_400)
        await asyncio.sleep(30)
        await stage.store.flag("batch_1", "t", JobFlag.CANCEL)
        cancelled_at = clock.now
        job = await stage.end_of("batch_1")
        took_s = clock.now - cancelled_at

        assert job.state is JobState.CANCELLED
        assert max(stage.upstream.served_at) <= cancelled_at + 1.0
        assert took_s <= 30 + 5
        assert job.tally.completed == len(stage.upstream.served_at)
        await stage.close()

    run(story)


@dataclass(frozen=True, slots=True)
class Beside:
    """What live calls have met: when each was answered, how much of the limit was used, when another tenant's batch began."""

    times: list[float]
    used: float
    refused: int
    second_after_s: float

    @property
    def p99(self) -> float:
        """Of the times."""
        return sorted(self.times)[int(0.99 * len(self.times))]


def live_calls(*, beside_a_batch: bool, calls: int) -> Beside:
    """A third of a limit of 100 a second is asked for live, at random, so many times in all."""

    async def story(clock: LoopClock) -> Beside:
        stage = LimitedStage(
            clock,
            provider=provider(limits=[Refill("requests", 6000, 100)], latency=Latency(0.3)),
            limits=Limits(requests_per_min=6000, request_burst=100),
        )
        times = list[float]()

        async def ask(number: int) -> None:
            began = clock.now
            call = stage.bench.call(id=f"live_{number}", received_at=began, deadline=began + 30)
            assert (await stage.bench.pipeline.handle(call)).status == 200
            times.append(clock.now - began)

        if beside_a_batch:
            stage.worker.start()
            await stage.accept_batch(12 * calls, deadline=clock.wall() + 86_400)
            await asyncio.sleep(5)
        stage.upstream.served_at.clear()
        draws, tasks, began, second_at = Random(5), list[asyncio.Task[None]](), clock.now, clock.wall()
        for number in range(calls):
            if beside_a_batch and number == calls // 5:
                second_at = clock.wall()
                await stage.accept_batch(12 * calls, "batch_2", tenant="u", deadline=clock.wall() + 86_400)
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(draws.expovariate(100 / 3))
        used = len(stage.upstream.served_at) / (100 * (clock.now - began))
        await asyncio.gather(*tasks)
        second = await stage.store.find("batch_2", None)
        after_s = inf if second is None or second.started_at is None else second.started_at - second_at
        await stage.close()
        return Beside(times, used, stage.provider.refused, after_s)

    return run(story)


@pytest.mark.parametrize("calls", sampled([250, 500], lambda calls: calls == 250))
def test_live_calls_beside_a_batch_at_the_limit_wait_no_longer(calls: int) -> None:
    """Nobody is refused, the batch takes what live calls leave, and another tenant's begins soon."""
    alone, beside = live_calls(beside_a_batch=False, calls=calls), live_calls(beside_a_batch=True, calls=calls)

    assert beside.refused == 0
    assert beside.used >= 0.97
    assert beside.p99 <= 1.10 * alone.p99
    assert beside.second_after_s <= 15


@dataclass
class GroupedStage(LimitedStage):
    """Its lines are embeddings, eight in one request."""

    async def make_call(self, request: StoredRequest) -> Call:
        """Returns the call of a line."""
        body = orjson.dumps({"model": "m", "input": request.id})
        call = await super().make_call(request._replace(body=body))
        call.request.endpoint = EMBEDDINGS
        GROUP_RULES.put(call, GroupRules(LINES_WINDOW_S, 8))
        return call


def test_lines_that_go_together_stop_as_fast_as_others() -> None:
    """What waits in the delay queue is the group: its lines have cost nothing, and are not sent any more."""

    async def story(clock: LoopClock) -> None:
        stage = GroupedStage(
            clock,
            provider=provider(limits=[Refill("requests", 60, 1)]),
            limits=Limits(requests_per_min=60, request_burst=1),
        )
        stage.worker.start()
        await stage.accept_batch(1000, deadline=clock.wall() + 86_400)
        await asyncio.sleep(4)
        await stage.store.flag("batch_1", "t", JobFlag.CANCEL)
        cancelled_at, before = clock.now, len(stage.upstream.served_at)
        job = await stage.end_of("batch_1")

        assert before >= 4
        assert job.state is JobState.CANCELLED
        assert (
            max(stage.upstream.served_at) <= cancelled_at + 1.01
        )  # the look that is to stop them and the next refill meet
        assert clock.now - cancelled_at <= 5
        await stage.close()

    run(story)
