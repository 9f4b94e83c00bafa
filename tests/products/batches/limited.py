"""Jobs in virtual time through the real pipeline: admission, delay queue, learning, in front of a provider with limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.core.balancing import Retries
from gateway.core.call import Call, Reply
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting
from gateway.core.types import Outgoing, UpstreamFailed
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.rules import BatchRules, JobRules, SegmentRules
from tests.sim.provider import Demand, Provider
from tests.support.flow import Bench, ScriptedAnswer, whole
from tests.support.stage import Stage
from tests.support.virtual import LoopClock, Sweep

BATCHES = JobRules(segments=(SegmentRules("all", concurrency=10),), batches=BatchRules())
ANSWER = orjson.dumps(
    {"id": "1", "choices": [{"index": 0, "message": {}}], "usage": {"prompt_tokens": 30, "completion_tokens": 20}}
)


@dataclass
class LimitedUpstream:
    """A simulated provider, asked as an upstream is."""

    provider: Provider
    clock: LoopClock
    errors: tuple[type[Exception], ...] = ()
    served_at: list[float] = field(default_factory=list)

    async def send(self, _outgoing: Outgoing) -> ScriptedAnswer:
        """Answers by the provider's limits, after its time."""
        demand = Demand(30, 20, None)
        answer = self.provider.ask(demand, self.clock.now)
        if answer.status == 200:
            self.served_at.append(self.clock.now)
        try:
            await asyncio.sleep(answer.after_s + answer.lasts_s)
        finally:
            if answer.status == 200:
                self.provider.release(demand, self.clock.now)
        return ScriptedAnswer(whole(answer.body or ANSWER, answer.status, *answer.headers))

    def failure(self, error: Exception) -> UpstreamFailed:
        """Nothing breaks here."""
        raise AssertionError(error)


@dataclass
class LimitedStage(Stage):
    """A worker whose lines go through the pipeline to one provider."""

    provider: Provider = field(default_factory=lambda: Provider("p0"))
    limits: Limits = field(default_factory=Limits)
    rules: JobRules = BATCHES

    def __post_init__(self) -> None:
        self.upstream = LimitedUpstream(self.provider, self.clock)
        self.bench = Bench(
            [self.upstream],  # type: ignore[list-item]  # it sends
            clock=self.clock,
            limits=[self.limits],
            counting=Counting(kind="openai", charge="max"),
            retries=Retries(),
        )
        self.sweep = Sweep(self.bench.watch)
        super().__post_init__()

    async def make_call(self, request: StoredRequest) -> Call:
        """Returns the call of a line."""
        now = self.clock.now
        return self.bench.call(
            id=request.id, body=request.body, lane=request.lane, received_at=now, deadline=now + request.deadline_s
        )

    async def serve(self, call: Call) -> Reply:
        """Lets it through the pipeline."""
        self.tries.append(call.request.id)
        return await self.bench.pipeline.handle(call)

    async def close(self) -> None:
        """Ends the worker."""
        await self.worker.aclose()
        self.sweep.cancel()


def in_window(**changes: Any) -> JobRules:
    """Rules for batches with these changes."""
    return replace(BATCHES, batches=replace(BATCHES.batches, **changes))
