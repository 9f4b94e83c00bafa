"""What flow tests stand on: a clock moved by hand, an upstream that follows a script, a meter that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines
from gateway.core.balancing import BUILT_IN_RULES, Choice, Retries
from gateway.core.call import (
    EARLIER_TRIES,
    FALLBACK_ANSWER,
    Call,
    CallRecord,
    CallRoute,
    Reply,
    Request,
    Setbacks,
    Slot,
)
from gateway.core.config.error_tables import read_error_tables
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import Capabilities
from gateway.core.pipeline import Pipeline
from gateway.core.snapshot import Counting, Holding, Key, Model, PolicySnapshot, Provider, Rates, Target
from gateway.core.types import (
    Clocks,
    ErrorClass,
    Outgoing,
    Phase,
    QueueBounds,
    Server,
    StoreBounds,
    UpstreamFailed,
)
from gateway.dialects.endpoints import CHAT as CHAT
from gateway.dialects.endpoints import RESPONSES as RESPONSES
from gateway.dialects.endpoints import SPEECH as SPEECH
from gateway.features.identity import SENT_KEY
from gateway.features.outcome import OUTCOME
from gateway.features.reuse.keys import CACHE_CONTROL
from gateway.features.reuse.rules import CACHING, Caching
from gateway.features.runs.step import PART
from gateway.features.runs.steps import StepCalls
from gateway.features.runs.table import RunTable
from gateway.product_list import Core, find_product, install_products
from tests.support.stores import MemoryStore, Store, with_parts

CLOCKS = Clocks(connect_s=5, write_s=60, first_byte_s=600, idle_s=300, total_s=3600)
JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream")
RATES = Rates(input_usd=2e-6, output_usd=8e-6, cached_input_usd=1e-6)
BOUNDS = StoreBounds({"default": 10_000_000}, 10_000_000)
ONCE = Retries(by_cost=(), by_class={name: replace(rule, attempts=1) for name, rule in BUILT_IN_RULES.items()})
"""No target is tried again by a call that has failed there."""
P = TypeVar("P")
SLOTS: dict[str, Slot[Any]] = {
    "part": PART,
    "replay": OUTCOME,
    "idempotency_key": SENT_KEY,
    "cache_control": CACHE_CONTROL,
    "fallback_answer": FALLBACK_ANSWER,
}
"""The state of products that calls may be made with."""
ERRORS = read_error_tables((), {}, []).of("")
ANSWER = (
    b'{"id": "1", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 1000, "completion_tokens": 10}}'
)


@dataclass
class FakeTimer:
    """A call that is due when somebody moves the clock."""

    when: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that moves when it is told to."""

    ahead_s = 0.0
    """So far the wall clock is ahead of the machine's time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call_at(self, when: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(when, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, and let what is due on the way happen, each at its own moment."""
        ends_at = self.now + seconds
        while True:
            due = [timer for timer in self.timers if timer.when <= ends_at]
            if not due:
                break
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            if not timer.cancelled:
                timer.callback()
        self.now = ends_at


class Broken(Exception):
    """How the scripted upstream's wire breaks."""


@dataclass
class Script:
    """One answer: a head, then chunks; an exception among them is raised, a callable is called, an event is awaited."""

    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = (JSON,)
    chunks: Sequence[bytes | Exception | Callable[[], None] | asyncio.Event] = ()
    fails: UpstreamFailed | None = None
    closed: int = 0

    async def aclose(self) -> None:
        self.closed += 1


class ScriptedAnswer:
    """The answer that a script tells."""

    def __init__(self, script: Script) -> None:
        self.status = script.status
        self.headers = script.headers
        self.aclose = script.aclose
        self.whole: bytes | None = None
        self.chunks: AsyncIterator[bytes] = self._play(script.chunks)

    def unpack(self, codings: bytes) -> None:
        raise Broken(f"packed with {codings!r}")

    async def _play(
        self, chunks: Iterable[bytes | Exception | Callable[[], None] | asyncio.Event]
    ) -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(0)
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            elif isinstance(chunk, bytes):
                yield chunk
            else:
                chunk()


class ScriptedUpstream:
    """Plays its scripts one after the other and remembers what was sent."""

    errors: tuple[type[Exception], ...] = (Broken,)

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.sent: list[Outgoing] = []

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        script = self.scripts[len(self.sent)]
        self.sent.append(outgoing)
        await asyncio.sleep(0)
        if script.fails is not None:
            raise script.fails
        return ScriptedAnswer(script)

    def failure(self, error: Exception) -> UpstreamFailed:
        return UpstreamFailed(ErrorClass.CONNECTION, Phase.ANSWERED, str(error) or "broken")


@dataclass
class Recorder:
    """A meter that keeps every account."""

    accounts: list[CallRecord] = field(default_factory=list)
    began_count: int = 0
    waits: list[tuple[str, float]] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)

    def began(self) -> None:
        self.began_count += 1

    def waited(self, lane: str, seconds: float) -> None:
        self.waits.append((lane, seconds))

    def withdrew(self) -> None:
        pass

    def settled(self, record: CallRecord) -> None:
        self.accounts.append(record)

    def retry_denied(self, reason: str) -> None:
        self.denied.append(reason)

    def breaker_changed(self, name: str, state: str) -> None:
        self.moves.append((name, state))

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        raise AssertionError("no call is refused behind the edge")


@dataclass
class Bench:
    """A pipeline on a fake clock, and the calls to run on it."""

    upstreams: list[ScriptedUpstream]
    clock: FakeClock = field(default_factory=FakeClock)
    meter: Recorder = field(default_factory=Recorder)
    watch: AttemptDeadlines = field(default_factory=AttemptDeadlines)
    include_usage: bool = True

    limits: Sequence[Limits] = ()
    counting: Counting = field(default_factory=lambda: Counting(learns=False))
    holding: Holding = field(default_factory=Holding)
    fallbacks: int = 0
    """So many of the upstreams, the last ones, belong to a fallback."""
    bounds: QueueBounds = field(default_factory=QueueBounds)
    keys: Sequence[Key] = ()
    draw: Callable[[], float] = lambda: 0.5
    retries: Retries = ONCE
    breaker: BreakerRules = field(default_factory=BreakerRules)
    choice: Choice = "in_order"
    contexts: int = 0
    """So many of the upstreams, the very last ones, are for calls that are too long for the others."""
    accounts: Sequence[str] = ()
    """Who pays, target by target; those beyond have accounts of their own."""
    capabilities: Sequence[Capabilities] = ()
    clocks: Clocks = CLOCKS
    rates: Rates | None = RATES
    caching: Caching = field(default_factory=Caching)
    store: Store | None = None
    """None: in memory."""

    def __post_init__(self) -> None:
        self.policy = _policy(self._model(), self.bounds, self.keys)
        self.admission = Admission(self.clock, self.meter, self.policy, self.draw)
        if self.store is None:
            self.store = MemoryStore(BOUNDS, self.clock.wall)
        self.build()

    def build(self, *, runs: RunTable | None = None) -> None:
        """Makes the pipeline anew, with all products around its calls."""
        assert self.store is not None
        self.pipeline = Pipeline(self.clock, self.meter, self.watch, self.admission, self.draw)
        self.products = install_products(Core(self.pipeline, with_parts(self.store), runs=runs))

    @property
    def steps(self) -> StepCalls:
        """The steps of runs."""
        return self.product(StepCalls)

    def product(self, kind: type[P]) -> P:
        """The product of this class around calls."""
        found = find_product(self.products, kind)
        assert found is not None
        return found

    @property
    def account(self) -> CallRecord:
        """The one account; fails when there is none or more than one."""
        (account,) = self.meter.accounts
        return account

    def _model(self) -> Model:
        """A model whose targets are the upstreams, `p0/m`, `p1/m` and so on."""
        rates = self.rates
        limits = [*self.limits, *[Limits()] * len(self.upstreams)]
        accounts = [*self.accounts, *[f"p{number}" for number in range(len(self.accounts), len(self.upstreams))]]
        capabilities = [*self.capabilities, *[Capabilities()] * len(self.upstreams)]
        everyone = tuple(
            Target(
                f"p{number}/m",
                f"p{number}",
                "m",
                upstream,
                self.clocks,
                limits=limits[number],
                counting=self.counting,
                capabilities=capabilities[number],
                errors=ERRORS,
                account=accounts[number],
                breaker=self.breaker,
                find_rates=lambda _model: rates,
            )
            for number, upstream in enumerate(self.upstreams)
        )
        plan = everyone[: len(everyone) - self.contexts]
        own = plan[: len(plan) - self.fallbacks]
        return Model(
            "m",
            own,
            plan,
            holding=self.holding,
            include_usage=self.include_usage,
            retries=self.retries,
            choice=self.choice,
            context_plan=everyone[len(plan) :],
            settings={CACHING: self.caching},
        )

    def call(self, **changes: object) -> Call:
        """A call to the model. What `SLOTS` names is put there; `sdk_retry` counts its tries."""
        route: dict[str, Any] = {
            "policy": self.policy,
            "key": Key("web", "web", b""),
            "model": self.policy.models["m"],
            "endpoint": changes.get("endpoint", CHAT),
            "has_own_credential": changes.get("credential") is not None,
            "is_internal": True,
        }
        request: dict[str, Any] = {
            "id": "req_1",
            "endpoint": CHAT,
            "model_name": "m",
            "body": b'{"model":"m","messages":[]}',
            "stream": False,
            "stream_options": None,
            "model_span": None,
            "headers": [],
            "credential": None,
            "lane": "interactive",
            "received_at": self.clock.now,
            "deadline": self.clock.now + 30,
            "deadline_is_callers": False,
            "path": "/chat/completions",
            "tenant": "web",
        }
        tries: Any = changes.pop("sdk_retry", 0)
        not_expressible: Any = changes.pop("not_expressible", None)
        state = {slot: changes.pop(name) for name, slot in SLOTS.items() if name in changes}
        for part, kind in ((request, Request), (route, CallRoute)):
            part |= {one.name: changes.pop(one.name) for one in fields(kind) if one.name in changes}
        call = Call(Request(**request), CallRoute(**route), **cast("dict[str, Any]", changes))
        if tries:
            EARLIER_TRIES.put(call, tries)
        if not_expressible is not None:
            call.own_setbacks().not_expressible = not_expressible
        for slot, value in state.items():
            if value is not None:
                slot.put(call, value)
        return call

    async def serve(self, **changes: object) -> tuple[Reply, bytes]:
        """Serve a call to its end, and close it."""
        reply = await self.pipeline.handle(self.call(**changes))
        try:
            return reply, await read_all(reply)
        finally:
            await reply.close()


def changed(call: Call, **changes: object) -> Call:
    """A copy of a call with other fields, which are its own, its request's, its route's, or those of its setbacks."""
    parts: dict[str, Any] = {"request": call.request, "route": call.route, "setbacks": call.setbacks or Setbacks()}
    for name, part in parts.items():
        own = {one.name: changes.pop(one.name) for one in fields(part) if one.name in changes}
        if own:
            changes[name] = replace(part, **own)
    return replace(call, **changes)  # type: ignore[arg-type]  # fields by name, for the tests' convenience


async def read_all(reply: Reply) -> bytes:
    """All bytes of a reply."""
    if reply.chunks is None:
        return reply.body
    return b"".join([chunk async for chunk in reply.chunks])


def failed(error_class: ErrorClass = ErrorClass.CONNECTION) -> Script:
    """An attempt that gets no answer at all."""
    return Script(fails=UpstreamFailed(error_class, Phase.NOTHING_SENT, "refused"))


def whole(body: bytes = ANSWER, status: int = 200, *headers: tuple[bytes, bytes]) -> Script:
    """A JSON answer in one piece."""
    return Script(status, (JSON, *headers), [body])


def streamed(*chunks: bytes | Exception | Callable[[], None] | asyncio.Event) -> Script:
    """An event stream."""
    return Script(200, (SSE,), chunks)


def _policy(model: Model, bounds: QueueBounds, keys: Sequence[Key]) -> PolicySnapshot:
    return PolicySnapshot(
        version=1,
        digest="d",
        loaded_at=0.0,
        files=(),
        server=Server(),
        providers={"p0": Provider("p0", "openai", "http://p0.test", api_key="sk-ours-123")},
        models={"m": model},
        patterns=(),
        keys={key.digest: key for key in keys},
        anonymous=Key("anonymous", "anonymous", b""),
        lane_deadline_s={"critical": 30.0, "interactive": 30.0, "batch": 600.0, "background": 21600.0},
        queue=bounds,
    )
