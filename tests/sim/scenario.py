"""The same calls in the same trouble two ways: straight to a provider, and through the whole gateway, in virtual time.

Through means the real config, intake, admission, attempts and pipeline; only sockets, bodies worth the name and time itself
are simulated. What a provider does with the n-th try of a call is a function of the seed, the call and n, and of the time:
so both ways meet the same strays and slow answers. Clients try again as openai-python does (`BaseClient._should_retry`
and `_calculate_retry_timeout`). It must not know what the ways are compared by.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import orjson

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines
from gateway.core.config.load import load_snapshot
from gateway.core.errors import GatewayError
from gateway.core.http.writing import Cycle
from gateway.core.intake import InFlight, Intake, ServedRequest
from gateway.core.pipeline import Pipeline
from gateway.core.render import error_headers
from gateway.core.snapshot import Policies, Provider
from gateway.core.types import ErrorClass, Lane, Outgoing, Phase, RawHeaders, StoreBounds, Upstream, UpstreamFailed
from gateway.core.waiting import Shedding
from gateway.dialects.config import DialectLanguages
from gateway.product_list import Core, install_products
from gateway.sections import SECTIONS
from gateway.stores import in_memory
from tests.sim import provider as simulated
from tests.sim.limits import ProviderLimit, Refill, Sliding
from tests.support.flow import CHAT, JSON, Recorder, read_all
from tests.support.virtual import START_S, WALL_S, LoopClock, Sweep, run

ERROR_S = 0.01
"""Errors come back sooner than answers."""
FIRST_RETRY_S, LONGEST_RETRY_S, LONGEST_RETRY_AFTER_S = 0.5, 8.0, 60.0
"""openai-python's: 0.5 s doubled up to 8 s, less up to a quarter at random; a longer `retry-after` is not obeyed."""
USAGE = {"prompt_tokens": 50, "completion_tokens": 10}
ANSWER = orjson.dumps({"choices": [{"message": {"role": "assistant", "content": "hi"}}], "usage": USAGE})
REFUSED_AS_IT_IS = orjson.dumps({"error": {"message": "no", "type": "server_error", "code": None}})
DEMAND = simulated.Demand(50, 10, None)

Fate = Literal[0, 400, 429, 500, 503, "hangs"]
"""A status; 0: the connection is refused; or there is never an answer."""


class Trouble(NamedTuple):
    """From `begins_s` to `ends_s`, in seconds from the beginning of the calls, all requests have this fate."""

    begins_s: float
    ends_s: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Target:
    """How a provider behaves, and what the gateway's config says of it."""

    answer_s: float = 0.3
    troubles: tuple[Trouble, ...] = ()
    stray_percent: float = 0.0
    stray: Fate = 503
    slow_percent: float = 0.0
    slow_s: float = 20.0
    rpm: float | None = None
    """Its true limit."""
    window: Literal["bucket", "sliding"] = "bucket"
    """How it counts: a bucket of one second's worth that refills, or a minute that slides."""
    tells: Literal["headers", "hints", "nothing"] = "headers"
    """Its limits and the time to wait with a 429; only that; neither."""
    written_rpm: float | None = None

    def limits(self) -> list[ProviderLimit]:
        if self.rpm is None:
            return []
        if self.window == "sliding":
            return [Sliding("requests", self.rpm)]
        return [Refill("requests", self.rpm, max(1.0, self.rpm / 60))]


@dataclass(frozen=True, slots=True)
class Clients:
    """Calls of one program."""

    calls: int = 30
    every_s: float = 0.0
    """The time from the beginning of one call to that of the next; 0: all at once."""
    lane: Lane = "interactive"
    retries: int = 2
    timeout_s: float | None = 600.0
    """The time after which a try is given up; None: never."""
    is_sdk: bool = True
    """Says its timeout and its name, as openai's SDKs do."""
    poison: Literal[400, 429, 500, 503] | None = None
    """What the first of its calls gets at each try, whatever the others get."""
    name: str = "a"


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that decides about a run."""

    targets: tuple[Target, ...] = (Target(),)
    """The first is the one that who goes straight calls."""
    clients: tuple[Clients, ...] = (Clients(),)
    fallback: bool = True
    """The second target belongs to a fallback; else to the model itself."""
    warm: int = 10
    """Good calls before time begins."""
    seed: int = 1


class Ended(NamedTuple):
    """What became of one call."""

    began_s: float
    ended_s: float
    status: int
    """The last one; 0: no answer."""
    said: str
    """Why, in the gateway's words."""
    tries: int
    """Of the client."""


@dataclass
class Result:
    """What became of all."""

    ended: dict[str, Ended] = field(default_factory=dict)
    asked: list[tuple[float, str, int, int]] = field(default_factory=list)
    """When (from the beginning), by which call, which target, and with what status: each request that reached a provider."""

    @property
    def served(self) -> set[str]:
        return {name for name, one in self.ended.items() if one.status == 200}

    @property
    def requests(self) -> int:
        return len(self.asked)

    def wait_s(self, name: str) -> float:
        return self.ended[name].ended_s - self.ended[name].began_s


class Said(NamedTuple):
    """What a client reads of an answer; a status of 0 is a connection that broke."""

    status: int
    headers: RawHeaders
    body: bytes = b""


LONGEST_S = 1800.0
"""Nobody waits for longer, also without a timeout."""
GAVE_UP = Said(0, [(b"x-should-retry", b"false")], b"no answer")


class Way:
    """Brings a request somewhere."""

    def begin(self) -> None:
        """The loop runs."""

    async def send(self, client: Clients, name: str, number: int) -> Said:
        """Raises nothing but CancelledError: the client has hung up."""
        raise NotImplementedError

    def end(self) -> None:
        """All is over."""


class WholeAnswer:
    """An answer that comes in one piece."""

    def __init__(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self.status = status
        self.headers = [JSON, *headers]
        self.whole = body

    async def aclose(self) -> None:
        return


class ScriptedProvider:
    """One target's other side."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, number: int, target: Target, scenario: Scenario, result: Result) -> None:
        self._number, self._target, self._result = number, target, result
        self._seed = scenario.seed
        self._tries: Counter[str] = Counter()
        self._poison = {f"{one.name}0": one.poison for one in scenario.clients if one.poison is not None}
        self._desk = simulated.Provider(
            f"p{number}",
            target.limits(),
            headers="openai" if target.tells == "headers" else "none",
            retry_after="none" if target.tells == "nothing" else "ms",
        )

    async def send(self, outgoing: Outgoing) -> WholeAnswer:
        status, headers = await self.ask(orjson.loads(bytes(outgoing.body))["user"])
        if not status:
            raise UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "refused")
        return WholeAnswer(status, headers, ANSWER if status == 200 else REFUSED_AS_IT_IS)

    def failure(self, error: Exception) -> UpstreamFailed:
        raise AssertionError("nothing breaks half-way") from error

    async def ask(self, name: str) -> tuple[int, RawHeaders]:
        """One request of this call: the status, 0 where nobody listens, and headers."""
        now = asyncio.get_running_loop().time()
        since_s = now - BEGINS_AT
        self._tries[name] += 1
        target = self._target
        draw = Random(f"{self._seed}/{self._number}/{name}/{self._tries[name]}")
        stray, slow = draw.random() * 100, draw.random() * 100
        fate: Fate | None = next((one.fate for one in target.troubles if one.begins_s <= since_s < one.ends_s), None)
        if fate is None and since_s >= 0:
            fate = self._poison.get(name) or (target.stray if stray < target.stray_percent else None)
        headers: RawHeaders = ()
        took_s, status = ERROR_S, 0
        if fate == "hangs":
            status, took_s = 0, 1e7
        elif fate is not None:
            status = fate
        else:
            answer = self._desk.ask(DEMAND, now)
            status, headers = answer.status, list(answer.headers)
            is_slow = since_s >= 0 and slow < target.slow_percent
            took_s = ERROR_S if status != 200 else target.slow_s if is_slow else target.answer_s
        self._result.asked.append((since_s, name, self._number, status))
        try:
            await asyncio.sleep(took_s)
        finally:
            if status == 200:
                self._desk.release(DEMAND, now)
        return status, headers


class Straight(Way):
    """To the first provider itself."""

    def __init__(self, providers: Sequence[ScriptedProvider]) -> None:
        self._provider = providers[0]

    async def send(self, client: Clients, name: str, number: int) -> Said:
        return Said(*await self._provider.ask(name))


class Through(Way):
    """Through a gateway of its own, with the policies that it has by itself."""

    def __init__(self, providers: Sequence[ScriptedProvider], scenario: Scenario, clock: LoopClock) -> None:
        def connect(provider: Provider, _model: str | None) -> Upstream:
            return cast(Upstream, providers[int(provider.name[1:])])

        with TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_bytes(orjson.dumps(_config(scenario)))  # JSON is YAML
            policy = load_snapshot(
                path, {}, sections=SECTIONS, languages=DialectLanguages(), connect=connect, version=1, now_wall=WALL_S
            )
        draw = Random(scenario.seed).random
        self.meter = Recorder()
        self.admission = Admission(clock, self.meter, policy, draw)
        self._watch = AttemptDeadlines()
        store = in_memory(StoreBounds({}, 0), clock.wall)
        self._pipeline = Pipeline(clock, self.meter, self._watch, self.admission, draw)
        install_products(Core(self._pipeline, store))
        self._intake = Intake(Policies(policy), clock, InFlight(), Shedding(), self._pipeline)
        self._connection: Any = SimpleNamespace(
            transport=None, flow=None, url=b"/v1/chat/completions", server_state=SimpleNamespace(default_headers=[])
        )

    def begin(self) -> None:
        self._sweep = Sweep(self._watch)

    def end(self) -> None:
        self._sweep.cancel()

    async def send(self, client: Clients, name: str, number: int) -> Said:
        headers = _headers(client, number)
        cycle = Cycle(self._connection, CHAT, headers, dict(headers), "1.1", True)
        cycle.first = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "user": name})
        cycle.more_body = False
        cycle.task = asyncio.current_task()
        served = ServedRequest(cycle)
        try:
            call = served.call = self._intake.take(served)
            assert call is not None
            reply = await self._pipeline.handle(call)
            try:
                body = await read_all(reply)
            finally:
                await reply.close()
            return Said(reply.status, reply.headers, body)
        except GatewayError as error:
            return Said(error.status, error_headers(error, 0), f"{error.code}: {error.message}".encode())


BEGINS_AT = START_S + 20.0
"""When the calls begin, behind those that warm up."""


def play(scenario: Scenario, *, is_straight: bool) -> Result:
    """What becomes of the scenario's calls on this way."""

    async def story(clock: LoopClock) -> Result:
        result = Result()
        providers = [ScriptedProvider(at, target, scenario, result) for at, target in enumerate(scenario.targets)]
        way: Way = Straight(providers) if is_straight else Through(providers, scenario, clock)
        way.begin()
        warming = [_later(number, way.send(Clients(), f"warm{number}", 0)) for number in range(scenario.warm)]
        await asyncio.gather(*warming)
        result.asked.clear()
        await asyncio.sleep(BEGINS_AT - clock.now)
        calls = [
            _call(way, client, f"{client.name}{number}", number * client.every_s, scenario.seed, result)
            for client in scenario.clients
            for number in range(client.calls)
        ]
        await asyncio.gather(*calls)
        way.end()
        return result

    return run(story)


async def _later(after_s: float, then: Coroutine[Any, Any, Said]) -> Said:
    await asyncio.sleep(after_s)
    return await then


async def _call(way: Way, client: Clients, name: str, begins_s: float, seed: int, result: Result) -> None:
    """One call of the SDK's, with all of its tries."""
    await asyncio.sleep(begins_s)
    loop = asyncio.get_running_loop()
    began_at, draw = loop.time(), Random(f"{seed}/{name}")
    said, number = Said(0, ()), 0
    for number in range(client.retries + 1):
        said = await _try(way, client, name, number)
        wait_s = _wait_s(said, number, draw.random())
        if said.status == 200 or wait_s is None or number == client.retries:
            break
        await asyncio.sleep(wait_s)
    words = "" if said.status == 200 else said.body.decode()
    result.ended[name] = Ended(began_at - BEGINS_AT, loop.time() - BEGINS_AT, said.status, words, number + 1)


async def _try(way: Way, client: Clients, name: str, number: int) -> Said:
    task = asyncio.get_running_loop().create_task(way.send(client, name, number))
    done, _ = await asyncio.wait([task], timeout=LONGEST_S if client.timeout_s is None else client.timeout_s)
    if done:
        return task.result()
    task.cancel("client_gone")
    await asyncio.wait([task])
    return GAVE_UP if client.timeout_s is None else Said(0, (), b"the client's timeout")


def _wait_s(said: Said, number: int, u: float) -> float | None:
    """How long the SDK waits before its next try; None: it makes none."""
    index = dict(said.headers)
    advice = index.get(b"x-should-retry")
    if advice != b"true" and (advice == b"false" or not (said.status in (0, 408, 409, 429) or said.status >= 500)):
        return None
    retry_after_s = float(index.get(b"retry-after-ms", b"0")) / 1000 or float(index.get(b"retry-after", b"0"))
    if 0 < retry_after_s <= LONGEST_RETRY_AFTER_S:
        return retry_after_s
    return min(FIRST_RETRY_S * 2.0**number, LONGEST_RETRY_S) * (1 - u / 4)


def _headers(client: Clients, number: int) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", b"localhost"), JSON]
    if client.is_sdk:
        headers += (b"user-agent", b"AsyncOpenAI/Python 2.8.0"), (b"x-stainless-lang", b"python")
        headers.append((b"x-stainless-retry-count", b"%d" % number))
        if client.timeout_s is not None:
            headers.append((b"x-stainless-read-timeout", b"%g" % client.timeout_s))
    else:
        headers.append((b"user-agent", b"python-httpx/0.28.1"))
    if client.lane != "interactive":
        headers.append((b"x-gateway-lane", client.lane.encode()))
    return headers


def _config(scenario: Scenario) -> Mapping[str, Any]:
    count = len(scenario.targets)
    targets = [
        {"provider": f"p{at}", "model": "m"} | ({} if one.written_rpm is None else {"rpm": one.written_rpm})
        for at, one in enumerate(scenario.targets)
    ]
    models: dict[str, Any] = {"m": {"targets": targets}}
    if scenario.fallback and count > 1:
        models = {"m": {"targets": targets[:1], "fallbacks": ["spare"]}, "spare": {"targets": targets[1:]}}
    providers = {
        f"p{at}": {"dialect": "openai", "base_url": f"http://p{at}.test/v1", "api_key": "sk-simulated"}
        for at in range(count)
    }
    return {"providers": providers, "models": models}
