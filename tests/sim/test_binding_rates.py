"""The rate that binds is none of those that are written; or none binds, and a provider refuses a call now and then."""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest

from gateway.core.limits.limit_table import Limits
from tests.sim.clock import until
from tests.sim.limits import ProviderLimit, Refill, Sliding, Windows
from tests.sim.provider import Fault, Latency, Provider
from tests.sim.traffic import Caller, burst, poisson
from tests.sim.world import Site, World

LOOSE = {
    "tokens": Limits(tokens_per_min=1_000_000),
    "requests": Limits(requests_per_min=1_000_000, unstated_burst_s=10.0),
    "nothing": Limits(),
}
"""What is written, all of it far above what the provider takes."""


def limit_of(counts: str, rpm: float) -> ProviderLimit:
    """The limit that binds, of which the config says nothing."""
    if counts == "bucket":
        return Refill("requests", rpm, 1)
    return Sliding("requests", rpm) if counts == "sliding" else Windows("requests", rpm, 60.0)


@pytest.mark.parametrize("hint", ["ms", "none"])
@pytest.mark.parametrize("written", LOOSE)
@pytest.mark.parametrize(("counts", "rpm", "calls"), [("bucket", 60, 40), ("bucket", 300, 150), ("sliding", 60, 240)])
def test_a_limit_that_is_not_written_costs_about_two_requests_a_call(
    counts: str, rpm: float, calls: int, written: str, hint: Literal["ms", "none"]
) -> None:
    """All at once, in the batch lane: all are served, and twice as many requests are sent at most, or few more."""
    provider = Provider("p0", [limit_of(counts, rpm)], headers="none", retry_after=hint)
    world = World([Site(provider, LOOSE[written])])
    world.clock.start(burst(world, Caller("batch", deadline_s=3600), calls))

    world.run()

    assert world.score.count("ok") == calls
    assert provider.asked <= 2.3 * calls


@pytest.mark.parametrize("hint", ["ms", "none"])
@pytest.mark.parametrize("written", LOOSE)
def test_a_limit_that_headers_tell_binds_below_what_is_written(written: str, hint: Literal["ms", "none"]) -> None:
    """The first flight is refused, the rest goes as fast as the provider's bucket refills."""
    provider = Provider("p0", [Refill("requests", 60, 1)], headers="openai", retry_after=hint)
    world = World([Site(provider, LOOSE[written])])
    world.clock.start(burst(world, Caller("batch", deadline_s=3600), 40))

    world.run()

    assert world.score.count("ok") == 40
    assert provider.asked <= 2.3 * 40


def test_one_request_a_minute_is_found() -> None:
    """Far below what is written; the provider says when to come back."""
    provider = Provider("p0", [Refill("requests", 1, 1)], headers="none", retry_after="ms")
    world = World([Site(provider, LOOSE["tokens"])])
    world.clock.start(burst(world, Caller("batch", deadline_s=3600), 10))

    world.run()

    assert world.score.count("ok") == 10
    assert provider.asked <= 3 * 10


@pytest.mark.parametrize(("targets", "per_s"), [(1, 8), (2, 8), (1, 50)])
@pytest.mark.parametrize("hint_s", [None, 1.0])
def test_one_stray_in_a_hundred_costs_its_call_a_short_wait(targets: int, per_s: float, hint_s: float | None) -> None:
    """No limit binds: nobody is lost, nearly nobody waits, and no queue builds up behind a refusal."""
    faults = [Fault(0.0, 1e9, 429, hint_s, 0.01)]
    providers = [
        Provider(f"p{n}", latency=Latency(0.6, 0.3), headers="none", retry_after="ms", faults=faults, random=Random(n))
        for n in range(targets)
    ]
    world = World([Site(provider) for provider in providers])
    most_held = 0

    async def watch() -> None:
        nonlocal most_held
        for _ in range(1200):
            await until(world.clock.now + 0.1)
            most_held = max(most_held, world.admission.queue.occupancy.calls)

    world.clock.start(poisson(world, Caller("interactive"), per_s, for_s=120))
    world.clock.start(watch())

    world.run()

    waits = world.score.waits["interactive"]
    assert world.score.count("ok") == len(world.calls)
    assert max(waits) <= 5.0
    assert sum(waits) / len(waits) <= 0.3
    assert most_held <= 5 * per_s


@pytest.mark.parametrize("written", ["tokens", "nothing"])
def test_a_rate_that_is_believed_and_let_go_is_told_once_each(written: str, caplog: pytest.LogCaptureFixture) -> None:
    """The provider takes 60 a minute, and after three minutes whatever comes."""
    caplog.set_level("WARNING", "gateway.health")
    provider = Provider("p0", [Refill("requests", 60, 1)], headers="none", retry_after="none")
    world = World([Site(provider, LOOSE[written])])
    world.clock.start(burst(world, Caller("batch", deadline_s=3600), 150))
    world.run(180)
    found = [record.message for record in caplog.records]
    provider.limits = ()
    world.clock.start(poisson(world, Caller("batch", deadline_s=3600), 20, for_s=200))

    world.run()

    assert [message.partition(",")[0] for message in found] == [found[0].partition(",")[0]]
    assert "p0 takes about" in found[0]
    assert [record.message for record in caplog.records[1:]] == [
        "p0 takes more than that: no rate of its own binds it any more"
    ]
