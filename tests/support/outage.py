"""Providers that fail at will, traffic against them, and what became of it, in virtual time.

No wire and no bodies worth the name, so that ten thousand calls take a second. Every story ends with `settle`: nothing that
was taken may be left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from gateway.core.admission.admission import Admission
from gateway.core.balancing import Retries
from gateway.core.errors import AdmissionDenied, GatewayError
from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.target_limits import Gate
from gateway.core.types import ErrorClass, Outgoing, Phase, UpstreamFailed
from tests.support.faults import leftovers
from tests.support.flow import Bench, Broken, Script, ScriptedAnswer, ScriptedUpstream, read_all, streamed, whole
from tests.support.virtual import LoopClock, Sweep

Fate = Callable[[], Awaitable[Script]]
ERROR = b'{"error":{"message":"no","type":"server_error","param":null,"code":null}}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def answers(after_s: float = 0.05) -> Fate:
    async def fate() -> Script:
        await asyncio.sleep(after_s)
        return whole()

    return fate


def streams(after_s: float = 0.05, lasts_s: float = 1.0) -> Fate:
    """A stream whose first word comes early, and its end late."""

    async def fate() -> Script:
        await asyncio.sleep(after_s)
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(lasts_s, gate.set)
        return streamed(EVENT, gate, END)

    return fate


def fails(status: int = 503, after_s: float = 0.05, *headers: tuple[bytes, bytes]) -> Fate:
    async def fate() -> Script:
        await asyncio.sleep(after_s)
        return whole(ERROR, status, *headers)

    return fate


def refuses(after_s: float = 0.001) -> Fate:
    """Nobody listens."""

    async def fate() -> Script:
        await asyncio.sleep(after_s)
        raise UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "refused")

    return fate


class Provider:
    """Does what `fate` says, which may be changed at any time."""

    errors: tuple[type[Exception], ...] = (Broken,)

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.asked_at: list[float] = []
        self.in_flight = 0

    async def send(self, _outgoing: Outgoing) -> ScriptedAnswer:
        self.asked_at.append(asyncio.get_running_loop().time())
        self.in_flight += 1
        try:
            return ScriptedAnswer(await self.fate())
        finally:
            self.in_flight -= 1

    def failure(self, error: Exception) -> UpstreamFailed:
        return UpstreamFailed(ErrorClass.CONNECTION, Phase.ANSWERED, str(error))

    def asked(self, since: float, until: float) -> int:
        return sum(since <= at < until for at in self.asked_at)


class Told(NamedTuple):
    """What one call was told."""

    at: float
    result: int | str
    """The status of what a provider said, or the code of our own error."""
    took_s: float
    attempts: int
    retry_after_s: float | None
    denied: str | None


@dataclass
class City:
    """A bench with providers and traffic."""

    providers: Sequence[Provider]
    clock: LoopClock
    fallbacks: int = 0
    accounts: Sequence[str] = ()
    retries: Retries = field(default_factory=Retries)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the bench."""
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(
            cast("list[ScriptedUpstream]", self.providers),
            clock=self.clock,
            fallbacks=self.fallbacks,
            accounts=self.accounts,
            retries=self.retries,
            breaker=self.breaker,
            **self.changes,
        )
        self._sweep = Sweep(self.bench.watch)

    @property
    def admission(self) -> Admission:
        return self.bench.admission

    def gate(self, number: int = 0) -> Gate:
        return self.admission.gates.lines[f"p{number}/m"].gate

    def breaker_of(self, number: int = 0) -> Breaker:
        return self.gate(number).health.breaker

    async def call(self, **changes: object) -> Told:
        """One call, to its end."""
        at = self.clock.now
        call = self.bench.call(**changes)
        retry_after_s = None
        result: int | str
        try:
            reply = await self.bench.pipeline.handle(call)
            try:
                await read_all(reply)
            finally:
                await reply.close()
            result = reply.status
        except GatewayError as error:
            result = error.code or error.type
            retry_after_s = error.retry_after_s if isinstance(error, AdmissionDenied) else None
        told = Told(at, result, self.clock.now - at, len(call.attempts), retry_after_s, call.denied)
        self.told.append(told)
        return told

    def start(self, **changes: object) -> asyncio.Task[Told]:
        return asyncio.get_running_loop().create_task(self.call(**changes))

    async def traffic(self, calls_per_s: float, for_s: float, **changes: object) -> None:
        """Steady traffic; returns when all of it was answered."""
        began_at = self.clock.now
        tasks = []
        for number in range(round(calls_per_s * for_s)):
            await self.until(began_at + number / calls_per_s)
            tasks.append(self.start(**changes))
        await asyncio.gather(*tasks)

    async def until(self, moment: float) -> None:
        if moment > self.clock.now:
            await asyncio.sleep(moment - self.clock.now)

    def results(self, since: float = 0.0) -> Counter[int | str]:
        return Counter(told.result for told in self.told if told.at >= since)

    @property
    def attempts(self) -> int:
        return sum(len(provider.asked_at) for provider in self.providers)

    def rest(self) -> None:
        """Nothing is watched any more: for stories of many hours."""
        self._sweep.cancel()

    async def settle(self) -> None:
        """All has ended: nothing is left over."""
        await asyncio.sleep(0)
        self.rest()
        left = leftovers(self.bench)
        assert not left, left


async def soon(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait until something is so."""
    ends_at = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < ends_at, "it never is"
        await asyncio.sleep(0.001)


async def gone(task: asyncio.Task[Any]) -> None:
    """The client leaves."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
