"""A batch at a provider's limit, through the real pipeline in virtual time: its pace, its refusals, and how fast it stops."""

from __future__ import annotations

import asyncio

import pytest

from gateway.policy.jobs.job import JobFlag, JobState
from gateway.policy.limits.rules import Limits
from tests.flow.virtual import LoopClock, run
from tests.jobs.limited import LimitedStage, in_window
from tests.sim.limits import Refill
from tests.sim.provider import Latency, Provider

TOLD = Limits(requests_per_min=600, request_burst=10)
LINES = 600
LEARNED = Limits(untold_burst_s=5.0)
"""As the config compiles it where nothing is written down."""


def provider(**changes: object) -> Provider:
    """Ten requests a second, ten at once."""
    usual = {"limits": [Refill("requests", 600, 10)], "latency": Latency(0.3, 0.2)}
    return Provider("p0", **{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "tells", "most_refused", "most_time"),
    [(TOLD, "openai", 0.0, 1.03), (LEARNED, "openai", 0.01, 1.03), (LEARNED, "none", 0.03, 1.03)],
    ids=["configured", "learned-from-headers", "untold"],
)
def test_a_batch_goes_at_the_providers_pace(limits: Limits, tells: str, most_refused: float, most_time: float) -> None:
    """As fast as the limit lets it, hardly refused, and no line fails for it."""

    async def story(clock: LoopClock) -> None:
        stage = LimitedStage(
            clock,
            provider=provider(headers=tells, retry_after="ms" if tells == "openai" else "none"),
            limits=limits,
        )
        stage.worker.start()
        await stage.accept_batch(LINES, deadline=clock.wall() + 86_400)
        began = clock.now
        job = await stage.end_of("batch_1")
        took_s = clock.now - began
        ideal_s = (LINES - 10) / 10

        assert (job.state, job.tally.completed, job.tally.failed) == (JobState.SUCCEEDED, LINES, 0)
        assert stage.provider.served == LINES
        assert stage.provider.refused <= most_refused * LINES, stage.provider.refused
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
        await stage.accept_batch(10_000, deadline=clock.wall() + 86_400)
        await asyncio.sleep(60)
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
