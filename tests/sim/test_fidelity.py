"""The simulation's short loop and the real pipeline let the same calls through at the same moments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import cast

import orjson
import pytest

from gateway.core.answers import AttemptDeadlines
from gateway.core.errors import GatewayError
from gateway.core.pipeline import Pipeline
from gateway.core.ports import Meter
from gateway.core.types import Answer, ErrorClass, Lane, Outgoing, Phase, StoreBounds, UpstreamFailed
from gateway.product_list import Core, install_products
from gateway.stores import in_memory
from tests.sim.call import SimCall
from tests.sim.cases import requests_site
from tests.sim.clock import VirtualClock, until
from tests.sim.provider import Demand, Fault, Header, Latency, Provider
from tests.sim.score import Score
from tests.sim.traffic import Caller, Sizes, burst, poisson
from tests.sim.world import Site, World

JSON = (b"content-type", b"application/json")
FAULTS = [
    Fault(0.5, 1.0, 429, retry_after_s=0.7),
    Fault(2.0, 2.2, 500),
    Fault(3.0, 3.1, 0),
    Fault(4.0, 4.1, 429),
]


class WholeAnswer:
    """An answer that comes in one piece."""

    def __init__(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.status = status
        self.headers = [JSON, *headers]
        self.whole = body

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        return self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        yield self.whole

    def unpack(self, codings: bytes) -> None:
        raise OSError(codings)

    async def aclose(self) -> None:
        return


class SimUpstream:
    """The wire to a simulated provider; a call's body says what it will use."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, clock: VirtualClock, provider: Provider) -> None:
        self._clock = clock
        self._provider = provider

    async def send(self, outgoing: Outgoing) -> Answer:
        demand = Demand(*orjson.loads(bytes(outgoing.body))["demand"])
        await until(self._clock.now + self._provider.reach_s())
        answer = self._provider.ask(demand, self._clock.now)
        await until(self._clock.now + answer.after_s)
        if not answer.status:
            raise UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "refused")
        if answer.status != 200:
            return WholeAnswer(answer.status, answer.headers, answer.body)
        self._provider.release(demand, self._clock.now)
        usage = {"prompt_tokens": demand.input_tokens, "completion_tokens": demand.output_tokens}
        return WholeAnswer(200, answer.headers, orjson.dumps({"choices": [{}], "usage": usage}))

    def failure(self, error: Exception) -> UpstreamFailed:
        raise AssertionError("nothing breaks half-way") from error


class BookKeeper(Score):
    """The whole of a meter."""

    def began(self) -> None:
        return

    def settled(self, record: object) -> None:
        return


STORE = in_memory(StoreBounds({}, 0), lambda: 0.0)


class PipelineWorld(World):
    """A world whose calls are served by the real pipeline."""

    def __post_init__(self) -> None:
        self.sites = [replace(site, upstream=SimUpstream(self.clock, site.provider)) for site in self.sites]
        super().__post_init__()
        self._pipeline = Pipeline(self.clock, cast(Meter, BookKeeper()), AttemptDeadlines(), self.admission)
        install_products(Core(self._pipeline, STORE))

    async def serve(self, call: SimCall) -> SimCall:
        self.calls.append(call)
        demand = call.demand
        call.request.body = orjson.dumps({"demand": [demand.input_tokens, demand.output_tokens, demand.max_tokens]})
        self.entering = call
        try:
            reply = await self._pipeline.handle(call)
            call.outcome = "ok" if reply.status == 200 else "failed"
        except GatewayError as error:
            call.outcome = "failed" if error.code == "no_target_available" else str(error.code)
        call.ended_at = self.clock.now
        return call


def run(world: World) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Mixed traffic, to the end: of each call what became of it, when, and when it went where."""
    sizes = Sizes(200, 0.8, 100, 0.5, error_sigma=0.2)
    lanes: list[Lane] = ["interactive", "batch"]
    for lane in lanes:
        world.clock.start(poisson(world, Caller(lane, ["a", "b"], sizes, deadline_s=2.0), 70, for_s=5))
    world.clock.start(burst(world, Caller("batch", ["c"], sizes), 200))
    world.run()
    return [
        (call.outcome, call.ended_at, [(attempt.target.name, attempt.started_at) for attempt in call.attempts])
        for call in world.calls
    ]


@pytest.mark.parametrize("has_fallback", [False, True])
@pytest.mark.parametrize("tells", ["headers", "nothing"])
def test_the_short_loop_does_as_the_pipeline_does(has_fallback: bool, tells: str) -> None:
    """Through 429s with and without a time, errors and lost connections: every attempt at the same moment."""

    def sites() -> list[Site]:
        latency = Latency(0.2, reach_s=0.01)
        first = requests_site(tells="headers" if tells == "headers" else "nothing", faults=FAULTS, latency=latency)
        return [first, *([requests_site(1200, 20, name="p1", is_fallback=True)] if has_fallback else [])]

    short, whole = run(World(sites())), run(PipelineWorld(sites()))

    assert len(short) > 700
    assert short == whole
