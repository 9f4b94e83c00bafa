"""A gateway's admission in front of simulated providers, on a virtual clock.

Runs the real `Admission` (and with it the delay queue, gates, line-ups and the decision) without an event loop: the only
thing it awaits is a turn in the queue. `serve` is the loop of `gateway/core/pipeline.py` without bodies and sockets; keep
the two in step. Invariant: every call that is served ends once, whichever way.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Protocol, cast

from gateway.core.admission.admission import Admission
from gateway.core.attempts import LIMITS_RATE
from gateway.core.balancing import BUILT_IN_RULES, Retries
from gateway.core.config.error_tables import read_error_tables
from gateway.core.error_tables import Diagnosis
from gateway.core.errors import AdmissionDenied, GatewayError
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.headers import never_fits, retry_delay_s
from gateway.core.limits.limit_table import Limits
from gateway.core.limits.reservation import Refusal
from gateway.core.ports import Meter
from gateway.core.retry import Attempt
from gateway.core.snapshot import Counting, Holding, Key, Model, PolicySnapshot, Target
from gateway.core.types import Clocks, ErrorClass, Phase, QueueBounds, RawHeaders, Server, Upstream, Usage
from tests.sim.call import DEADLINES_S, MODEL, SimCall
from tests.sim.clock import START_S, Task, Turn, VirtualClock, until
from tests.sim.provider import ERROR_OF, Answer, Provider
from tests.sim.score import Score

_ERRORS = read_error_tables((), {}, []).of("")
_ONCE = Retries(by_cost=(), by_class={name: replace(rule, attempts=1) for name, rule in BUILT_IN_RULES.items()})
_CLOCKS = Clocks(connect_s=5, write_s=60, first_byte_s=600, idle_s=300, total_s=3600)
_NO_LIMITS = Limits()
_HOLDING = Holding()
_BOUNDS = QueueBounds()
_ANYBODY = Key("anonymous", "anonymous", b"")
OPENAI = Counting(kind="openai", charge="max")


@dataclass(frozen=True, slots=True)
class Site:
    """A target: what the operator says about it, and the provider behind it."""

    provider: Provider
    limits: Limits = _NO_LIMITS
    counting: Counting = OPENAI
    is_fallback: bool = False
    upstream: Upstream | None = None
    """Only where a whole pipeline runs: `serve` asks the provider itself."""


class Watch(Protocol):
    """Looks on, and says what must not be."""

    def waits(self, call: SimCall) -> None:
        """It is held now."""

    def waits_no_more(self, call: SimCall) -> None:
        """It was let through, at this very moment, or given up."""

    def goes(self, call: SimCall, target: str) -> None:
        """It has a grant for this target, at this very moment."""

    def told_to_wait(self, target: str, seconds: float | None) -> None:
        """The gateway has read a 429."""

    def let_in(self, target: str, sent_at: float) -> None:
        """It answers a call that was sent at this time."""


class _Loop:
    """All that admission asks of an event loop."""

    def __init__(self, world: World) -> None:
        self._world = world

    def create_future(self) -> Turn:
        world = self._world
        if world.watch is None:
            return Turn(world.clock, None, None)
        watch, call = world.watch, world.entering
        assert call is not None
        return Turn(world.clock, lambda: watch.waits(call), lambda: watch.waits_no_more(call))


@dataclass(eq=False, repr=False)
class World:
    """One model with its sites, and everybody who calls it."""

    sites: Sequence[Site]
    holding: Holding = _HOLDING
    bounds: QueueBounds = _BOUNDS
    seed: int = 1
    keeps: bool = True
    """Remember every call, not only the score."""
    watch: Watch | None = None
    clock: VirtualClock = field(default_factory=VirtualClock)
    score: Score = field(default_factory=Score)
    calls: list[SimCall] = field(default_factory=list)
    entering: SimCall | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.providers = {site.provider.name: site.provider for site in self.sites}
        targets = tuple(_target(site) for site in self.sites)
        own = tuple(target for target, site in zip(targets, self.sites, strict=True) if not site.is_fallback)
        self.model = Model(MODEL, own, targets, holding=self.holding, retries=_ONCE)
        # A meter has four methods; admission uses `waited`, which the score has.
        self.policy = _policy(self.model, self.bounds)
        self.admission = Admission(self.clock, cast(Meter, self.score), self.policy, self.random.random)
        self._loop = cast(asyncio.AbstractEventLoop, _Loop(self))

    @property
    def started_at(self) -> float:
        """When time began."""
        return START_S

    @property
    def since_s(self) -> float:
        """Seconds since the start."""
        return self.clock.now - START_S

    def run(self, for_s: float = inf) -> None:
        """Go on until everything has ended, or for so many seconds."""
        asyncio._set_running_loop(self._loop)  # made for those who write event loops
        collects = gc.isenabled()
        gc.disable()  # a call leaves nothing to collect, and looking through all who wait takes a third of the time
        try:
            self.clock.run(self.clock.now + for_s)
        finally:
            asyncio._set_running_loop(None)
            if collects:
                gc.enable()

    def offer(self, call: SimCall) -> Task:
        """A call comes in; it is served once all that is ready has happened."""
        return self.clock.start(self.serve(call))

    async def serve(self, call: SimCall) -> SimCall:
        """Serve one call to its end."""
        if self.keeps:
            self.calls.append(call)
        self.score.offered += 1
        outcome = "gone"
        try:
            outcome = await self._attempts(call)
        except GatewayError as error:
            outcome = error.code or error.type
            if isinstance(error, AdmissionDenied):
                call.refused_s = error.retry_after_s
        finally:
            self.admission.outcomes.settle(call, None, None)
            call.ended_at = self.clock.now
            call.outcome = outcome
            self.score.ended(call.request.lane, call.request.tenant, outcome, call.queue_s)
        return call

    async def _attempts(self, call: SimCall) -> str:
        clock, admission = self.clock, self.admission
        failed: list[Target] = []
        last, is_back = 0, True
        while clock.now < call.request.deadline:
            self.entering = call
            left = [
                target
                for target in self.model.plan
                if target not in failed
                and (
                    is_back
                    or clock.now <= admission.planner.latest_start(call, admission.gates.line(target, call).gate)
                )
            ]
            if not left:
                break
            attempt = await admission.enter(call, left if failed else None)
            self._goes(call, attempt)
            provider = self.providers[attempt.target.name]
            reach_s = provider.reach_s()
            if reach_s:
                await until(clock.now + reach_s)
            answer = provider.ask(call.demand, clock.now)
            if answer.status == 200:
                await self._answer(call, attempt, provider, answer)
                return "ok"
            await until(clock.now + answer.after_s)
            last = answer.status
            is_back = self._is_put_back(call, attempt, answer)
            if not is_back:
                failed.append(attempt.target)
        is_late = not last and (not failed or (call.request.deadline_is_callers and clock.now >= call.request.deadline))
        return "deadline_exceeded" if is_late else "failed"

    async def _answer(self, call: SimCall, attempt: Attempt, provider: Provider, answer: Answer) -> None:
        """The provider is at work; the slot there is given back even when the client leaves."""
        clock, demand = self.clock, call.demand
        try:
            await until(clock.now + answer.after_s)
            self.admission.outcomes.answered(call, attempt, answer.headers)
            if self.watch is not None:
                self.watch.let_in(attempt.target.name, call.granted_at)
            if answer.lasts_s:
                await until(clock.now + answer.lasts_s)
        finally:
            provider.release(demand, clock.now)
        self.score.worked(call.request.tenant, provider.admission_charge(demand))
        self.admission.outcomes.settle(call, attempt, Usage(demand.input_tokens, demand.output_tokens))

    def _is_put_back(self, call: SimCall, attempt: Attempt, answer: Answer) -> bool:
        """What an error means: whether the call may go to this target again."""
        error_class = ERROR_OF[answer.status]
        if not answer.status:
            self.admission.outcomes.failed(call, attempt, error_class, Phase.NOTHING_SENT)
            return False
        if error_class in LIMITS_RATE:
            self.score.refused_upstream += 1
            diagnosis = diagnosis_of(error_class, answer.status, answer.headers, answer.body, self.clock.wall())
            refusal = self.admission.outcomes.refused(call, attempt, diagnosis, answer.headers)
            if self.watch is not None:
                told_s = dict(answer.headers).get(b"retry-after-ms")
                self.watch.told_to_wait(attempt.target.name, None if told_s is None else float(told_s) / 1000)
            return refusal is Refusal.WAIT
        self.admission.outcomes.answered(call, attempt, answer.headers, is_error=True)
        self.admission.outcomes.failed(call, attempt, error_class, Phase.ANSWERED)
        return False

    def _goes(self, call: SimCall, attempt: Attempt) -> None:
        call.attempts.append(attempt)
        call.granted_at = self.clock.now
        self.score.attempts += 1
        if (
            self.watch is not None and call.checked is not attempt.reservation
        ):  # it did not wait, or not for long enough to be seen
            call.checked = attempt.reservation
            self.watch.goes(call, attempt.target.name)


def _target(site: Site) -> Target:
    name = site.provider.name
    upstream = cast(Upstream, site.upstream)
    return Target(
        name,
        name,
        MODEL,
        upstream,
        _CLOCKS,
        limits=site.limits,
        counting=site.counting,
        errors=_ERRORS,
        breaker=BreakerRules(is_enabled=False),  # it is limits that are simulated here
    )


def diagnosis_of(error_class: ErrorClass, status: int, headers: RawHeaders, body: bytes, wall_now: float) -> Diagnosis:
    """What a refusal tells, as far as admission wants to know."""
    return Diagnosis(error_class, delay_s=retry_delay_s(status, headers, body, wall_now), never_fits=never_fits(body))


def _policy(model: Model, bounds: QueueBounds) -> PolicySnapshot:
    """A snapshot of which admission reads the model's targets and the queue's bounds."""
    return PolicySnapshot(
        version=1,
        digest="",
        loaded_at=0.0,
        files=(),
        server=Server(),
        providers={},
        models={model.name: model},
        patterns=(),
        keys={},
        anonymous=_ANYBODY,
        lane_deadline_s=DEADLINES_S,
        queue=bounds,
    )
