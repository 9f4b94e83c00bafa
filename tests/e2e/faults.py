"""What a provider can do to a call, and what has to come of it: a table, and the stage on which it is played.

A `Fault` says what the first provider does and which targets the model has; an `End` what providers, client and metrics see
of one call. In both `A` is the model's target at the first provider, `B` the one at the second, `A#2` the first provider's
second credential. Sockets, gateway and SDK are real; only clocks and backoffs are short. The tests are in `test_faults.py`.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import trustme
import yaml

from gateway.core.types import PASSING
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_script_entry
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import WEB_KEY, Running
from tests.soak.support import Held, metrics
from tests.support.raw_server import RawServer, Script

WORDS = 20
"""The pieces of a whole answer."""
POLICIES: dict[str, Any] = {
    "timeouts": {
        "connect": "2s",
        "first_byte": "250ms",
        "idle": "250ms",
        "drip": {"below_events_per_s": 20, "over": "200ms"},
    },
    "retries": {"backoff": {"base": "1ms", "max": "5ms"}},
}
NAMES = {"first/m": "A", "first#2/m": "A#2", "second/m": "B"}
MESSAGES: Any = [{"role": "user", "content": "hello there"}]

Shape = Literal["alone", "beside", "fallback", "context", "accounts", "callers"]
"""Who is there besides A: nobody, B beside it, B at a fallback, B at a context fallback, A's second credential; or B beside an
A that gets the caller's own credential."""
Place = Literal["emulator", "raw", "closed", "nowhere", "tls"]
"""Where A is: an emulator, bytes as scripted, a port that nobody listens on, a name without an address, a stranger's TLS."""


@dataclass(frozen=True, slots=True)
class End:
    """What came of a call."""

    tries: str
    """As the client is told: each target with its status, or with its error class where there was none."""
    classes: str
    """Of the same tries, as the metrics count them."""
    raises: type[openai.APIError] | None = None
    status: int | None = None
    """Of the error; None: it came in the middle of a stream, or there is none."""
    code: str | None = None
    words: int | None = WORDS
    """The pieces of the answer that the client has got; 0 where there is none, None: some of them, as time allowed."""
    finish: str | None = "stop"
    should_retry: str | None = None


def served(tries: str, classes: str, finish: str | None = "stop", words: int = WORDS) -> End:
    """An answer, whole and once."""
    return End(tries, classes, finish=finish, words=words)


def failed(tries: str, classes: str, raises: type[openai.APIError], status: int, code: str | None) -> End:
    """An error, which an SDK may try again if it was the provider's own trouble."""
    is_passing = (classes.split() or ["overloaded"])[-1] in PASSING
    return End(
        tries, classes, raises, status, code, words=0, finish=None, should_retry="true" if is_passing else "false"
    )


def told(error_class: str, words: int | None, code: str | None = None) -> End:
    """A stream that began, and ends with an error event."""
    return End("A:200", error_class, openai.APIError, None, code or error_class, words, finish=None)


@dataclass(frozen=True, slots=True)
class Fault:
    """What the providers do, call by call, and what comes of a call; `streamed` where a stream ends in another way."""

    acts: tuple[str, ...]
    whole: End
    streamed: End | None = None
    shape: Shape = "alone"
    second: tuple[str, ...] = ()
    place: Place = "emulator"
    scripts: tuple[Script, ...] = ()
    """What a `raw` A does, connection by connection."""

    def end(self, *, is_stream: bool) -> End:
        """What comes of a call."""
        return self.streamed if is_stream and self.streamed is not None else self.whole


@dataclass
class Stage:
    """A gateway in front of two providers, and an SDK that tries nothing again by itself."""

    running: Running
    first: EmulatorServer | RawServer | None
    second: EmulatorServer
    before: Held
    requests: list[httpx.Request] = field(default_factory=list)
    """What the SDK has sent."""

    def script(self, *acts: str, second: tuple[str, ...] = ()) -> None:
        """What the providers do next."""
        if isinstance(self.first, EmulatorServer):
            self.first.emulator.faults.script("*", [parse_script_entry(act) for act in acts])
        self.second.emulator.faults.script("*", [parse_script_entry(act) for act in second])

    def reached(self) -> tuple[int, int]:
        """How many calls have come to the first provider and to the second."""
        first = self.first
        count = 0 if first is None else first.connections if isinstance(first, RawServer) else _calls(first)
        return count, _calls(self.second)

    async def ask(self, *, is_stream: bool) -> End:
        """One call, as an application makes it; what came of it, but for what the metrics say."""
        async with self._sdk() as sdk:
            try:
                raw = await sdk.chat.completions.with_raw_response.create(
                    model="m", messages=MESSAGES, stream=is_stream
                )
            except openai.APIStatusError as error:
                return _refused(error)
            tries = shown(raw.headers["x-gateway-attempts"])
            if not is_stream:
                answer: Any = raw.parse()
                return served(tries, "", answer.choices[0].finish_reason, answer.usage.completion_tokens)
            return await _read(tries, raw.parse())

    def classes(self) -> str:
        """The attempts that were settled, by their class; those of one target in the order of the alphabet."""
        found = []
        for family in metrics(self.running):
            for one in family.samples:
                if one.name == "gateway_attempts_total":
                    found += [f"{NAMES[one.labels['target']]}:{one.labels['class']}"] * int(one.value)
        return " ".join(sorted(found))

    def _sdk(self) -> openai.AsyncOpenAI:
        async def count(request: httpx.Request) -> None:
            self.requests.append(request)

        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading the usual authorities takes longer than a call
        client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]}, verify=no_tls)
        return openai.AsyncOpenAI(base_url=f"{self.running.url}/v1", api_key=WEB_KEY, max_retries=0, http_client=client)


def shown(trail: str) -> str:
    """An `x-gateway-attempts` without its times, and with short names."""
    trail = re.sub(r"\(\d+\.\ds\)", "", trail)
    return " ".join(f"{NAMES[name]}:{end}" for name, _, end in (each.partition(":") for each in trail.split()))


def counted(end: End) -> str:
    """What the metrics have to say of an end's tries."""
    names = [each.partition(":")[0] for each in end.tries.split() if ":skipped(" not in each]
    return " ".join(sorted(f"{name}:{kind}" for name, kind in zip(names, end.classes.split(), strict=True)))


def _calls(server: EmulatorServer) -> int:
    return server.emulator.stats.total


def _refused(error: openai.APIStatusError) -> End:
    headers = error.response.headers
    return End(
        shown(headers.get("x-gateway-attempts", "")),
        "",
        type(error),
        error.status_code,
        error.code,
        0,
        None,
        headers.get("x-should-retry"),
    )


async def _read(tries: str, stream: Any) -> End:
    words, finish = 0, None
    try:
        async for chunk in stream:
            for choice in chunk.choices:
                words += bool(choice.delta.content)
                finish = choice.finish_reason or finish
    except openai.APIError as error:
        return End(tries, "", type(error), getattr(error, "status_code", None), error.code, words, finish)
    return served(tries, "", finish, words)


def config_of(shape: Shape, url: str, second_url: str) -> dict[str, Any]:
    """The config of a stage."""
    first: dict[str, Any] = {"dialect": "openai", "base_url": url}
    if shape == "accounts":
        first["api_keys"] = ["one", "two"]
    elif shape != "callers":
        first["api_key"] = "one"
    second = {"dialect": "openai", "base_url": second_url, "api_key": "other"}
    model: dict[str, Any] = {"targets": ["first/m"], "choose": "in_order"}
    if shape in ("beside", "callers"):
        model["targets"].append("second/m")
    elif shape in ("fallback", "context"):
        model["fallbacks" if shape == "fallback" else "context_fallbacks"] = ["n"]
    models = {"m": model, "n": {"targets": ["second/m"]}}
    return {"providers": {"first": first, "second": second}, "models": models}


@asynccontextmanager
async def stage(start: StartGateway, folder: Path, fault: Fault, **policies: dict[str, Any]) -> AsyncIterator[Stage]:
    """A stage on which the fault is about to be played; `policies` are added to the short clocks."""
    for name, policy in (POLICIES | policies).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"default": policy}))
    async with AsyncExitStack() as stack:
        first, url = await _first(fault, stack)
        second = await stack.enter_async_context(_emulator())
        config = config_of(fault.shape, url, second.base_url) | {"policies": str(folder)}
        running = await start(lambda _url: config)
        on_stage = Stage(running, first, second, Held.by(running))
        on_stage.script(*fault.acts, second=fault.second)
        yield on_stage
        await running.stop()


async def _first(fault: Fault, stack: AsyncExitStack) -> tuple[EmulatorServer | RawServer | None, str]:
    if fault.place == "emulator":
        emulator = await stack.enter_async_context(_emulator())
        return emulator, emulator.base_url
    if fault.place == "closed":
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens: connections are refused
        return None, f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    if fault.place == "nowhere":
        return None, "http://nothing.invalid/v1"
    server = await stack.enter_async_context(
        RawServer(list(fault.scripts), _stranger() if fault.place == "tls" else None)
    )
    return server, f"{server.url}/v1"


@asynccontextmanager
async def _emulator() -> AsyncIterator[EmulatorServer]:
    server = EmulatorServer(EmulatorConfig(output_tokens=WORDS))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _stranger() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


def answer(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A whole HTTP answer."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)
