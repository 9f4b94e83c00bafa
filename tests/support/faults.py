"""What can go wrong at a provider, what a gateway in front of it makes of that, and how the two are told.

An `Act` is what a provider does with one request, played by a transport of httpx's kind behind a real `Wire`, in virtual
time. `play` sends calls through a pipeline with the default rules and tells what came of each as a `Seen`. The table of
faults and of what is expected is in `core/test_faults.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
import orjson

from gateway.core.balancing import Retries
from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.health.detector import BreakerRules
from gateway.core.http.client.redaction import with_phase
from gateway.core.http.client.wire import Wire
from gateway.core.ledger import answer_headers
from gateway.core.render import error_body, error_headers
from gateway.core.snapshot import Provider
from gateway.core.types import Clocks, Phase, RawHeaders
from tests.support.flow import JSON, SSE, Bench, ScriptedUpstream, read_all
from tests.support.virtual import LoopClock, Sweep

CLOCKS = Clocks(
    connect_s=1, write_s=60, first_byte_s=10, idle_s=5, total_s=60, least_events_per_s=1.0, drip_window_s=4.0
)
"""Short, so that silences are."""
BREAKER = BreakerRules(open_s=10.0)
USAGE = b'"usage":{"prompt_tokens":1000,"completion_tokens":10}'
ANSWER = b'{"id":"1","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],%b}' % USAGE
ANSWER_USD = 0.00208
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
TOTAL = b'data: {"choices":[],%b}\n\n' % USAGE
DONE = b"data: [DONE]\n\n"
REQUEST = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":100}'
HTML = (b"content-type", b"text/html")
Part = bytes | float | Exception
"""Of a body: bytes, seconds of silence, or what breaks it off."""


@dataclass(frozen=True)
class Act:
    """What a provider does with one request: nothing for `after_s`, then it breaks off, or answers."""

    status: int = 200
    headers: RawHeaders = (JSON,)
    parts: Sequence[Part] = (ANSWER,)
    events: Sequence[Part] | None = (ROLE, WORD, STOP, TOTAL, DONE)
    """The parts for who asked for a stream; None: the same as for anybody."""
    after_s: float = 0.1
    breaks: httpx.TransportError | None = None


OK = Act()


def error_of(kind: str, code: str | None = None, message: str = "no") -> bytes:
    """An error in OpenAI's shape."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def says(
    status: int, *headers: tuple[bytes, bytes], kind: str = "server_error", code: str | None = None, message: str = "no"
) -> Act:
    """An error answer."""
    return Act(status, (JSON, *headers), (error_of(kind, code, message),), None)


def breaks(error: httpx.TransportError, phase: Phase, after_s: float = 0.1) -> Act:
    """There is no answer."""
    return Act(breaks=with_phase(error, phase), after_s=after_s)


def body(*parts: Part, events: Sequence[Part] | None = None, content: tuple[bytes, bytes] = JSON) -> Act:
    """A 200 with this in it."""
    return Act(200, (content,), parts, events)


class Provided(httpx.AsyncBaseTransport):
    """Does one act after the other, the last one for ever, as the transport tells it: with the clocks of the request."""

    def __init__(self, *acts: Act) -> None:
        self.acts = acts
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        act = self.acts[min(self.requests, len(self.acts) - 1)]
        self.requests += 1
        clocks = request.extensions["timeout"]
        await _silence(act.after_s, clocks["first_byte"], Phase.SENT)
        if act.breaks is not None:
            raise act.breaks
        is_stream = act.events is not None and b'"stream":true' in await request.aread()
        headers = [header for header in act.headers if not is_stream or header[0] != b"content-type"]
        if is_stream:
            headers.append(SSE)
        parts = act.events if is_stream and act.events is not None else act.parts
        return httpx.Response(act.status, headers=headers, stream=_Body(parts, clocks["read"]))


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: Sequence[Part], idle_s: float) -> None:
        self._parts = parts
        self._idle_s = idle_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, bytes):
                yield part
            else:
                await _silence(part, self._idle_s, Phase.ANSWERED)


async def _silence(seconds: float, longest_s: float, phase: Phase) -> None:
    await asyncio.sleep(min(seconds, longest_s))
    if seconds > longest_s:
        raise with_phase(httpx.ReadTimeout(f"nothing came for {longest_s:g} s"), phase)


@dataclass(frozen=True)
class Seen:
    """All that came of one call. Seconds and dollars are rounded, targets are `p0`, `p1` … without the model's name."""

    trail: str
    """The attempts, as `x-gateway-attempts` tells them, without times."""
    status: int = 200
    code: str | None = None
    """Of the error that the client reads, in a body or as the last event; its type where it has none."""
    waits: tuple[float, ...] = ()
    """The seconds before each further attempt."""
    outcome: str = "ok"
    """What the meter was told."""
    should_retry: str | None = None
    retry_after: str | None = None
    denied: str | None = None
    moves: tuple[str, ...] = ()
    """What breakers did during the call."""
    left: str = ""
    """The breakers that are not closed afterwards."""
    usd: float | None = ANSWER_USD
    wasted_usd: float = 0.0
    took_s: float | None = None
    """Where it is worth telling."""
    text: int | None = None
    """How many words of the answer a stream brought; None where the answer is whole and good."""


@dataclass
class Stage:
    """Providers, a pipeline with the default rules in front of them, and the calls that are made."""

    acts: Sequence[Sequence[Act]]
    fallbacks: int = 0
    contexts: int = 0
    accounts: Sequence[str] = ()
    retries: Retries = field(default_factory=Retries)
    stream: bool = False

    async def play(self, clock: LoopClock, calls: int = 1, **changes: object) -> list[Seen]:
        """Make so many calls, one after the other."""
        self.providers = [Provided(*acts) for acts in self.acts]
        wires = [
            Wire(Provider(f"p{number}", "openai", f"http://p{number}.test", api_key="sk-1"), "m", provider)
            for number, provider in enumerate(self.providers)
        ]
        self.bench = Bench(
            cast("list[ScriptedUpstream]", wires),
            clock=clock,
            fallbacks=self.fallbacks,
            contexts=self.contexts,
            accounts=self.accounts,
            retries=self.retries,
            clocks=CLOCKS,
            breaker=BREAKER,
        )
        timer = Sweep(self.bench.watch)
        try:
            return [await self._see(clock, **changes) for _ in range(calls)]
        finally:
            timer.cancel()

    async def _see(self, clock: LoopClock, **changes: Any) -> Seen:
        bench = self.bench
        given_s = changes.pop("given_s", None)
        call = bench.call(body=REQUEST, stream=self.stream, max_tokens=100, **changes)
        if self.stream:
            call.replace_request(replace(call.request, body=REQUEST[:-1] + b',"stream":true}'))
        if given_s is not None:
            request = call.request
            call.replace_request(replace(request, deadline=request.received_at + given_s, deadline_is_callers=True))
        moves_before = len(bench.meter.moves)
        try:
            reply = await bench.pipeline.handle(call)
            try:
                status, headers, text = reply.status, reply.headers, await read_all(reply)
            finally:
                await reply.close()
        except GatewayError as error:
            status, text = error.status, error_body(error)
            headers = error_headers(error, 0) + answer_headers(call, clock.now)
        await asyncio.sleep(0)  # what breakers do is told at once, but not in the same breath
        return self._tell(call, status, dict(headers), text, bench.meter.moves[moves_before:])

    def _tell(
        self, call: Call, status: int, headers: dict[bytes, bytes], text: bytes, moves: list[tuple[str, str]]
    ) -> Seen:
        account = self.bench.meter.accounts[-1]
        code = code_in(text)
        is_good = status == 200 and code is None
        return Seen(
            trail=_plain(" ".join(f"{one.target.name}:{one.status or one.error_class}" for one in call.attempts)),
            status=status,
            code=code,
            waits=tuple(
                round(later.started_at - (earlier.ended_at or 0.0), 3)
                for earlier, later in zip(call.attempts, call.attempts[1:], strict=False)
            ),
            outcome=account.outcome,
            should_retry=_text(headers.get(b"x-should-retry")),
            retry_after=_text(headers.get(b"retry-after")),
            denied=_text(headers.get(b"x-gateway-retry-denied")),
            moves=tuple(_plain(f"{name} {state}") for name, state in moves),
            left=self._not_closed(),
            usd=None if account.cost_usd is None else round(account.cost_usd, 5),
            wasted_usd=round(account.retries_usd, 5),
            took_s=round(account.duration_s, 2),
            text=None if is_good and _is_whole(text, self.stream) else text.count(b'"hi"'),
        )

    def _not_closed(self) -> str:
        gates = self.bench.admission.gates
        breakers = [line.gate.health.breaker for line in gates.lines.values()]
        breakers += [account.breaker for account in gates.accounts.values()]
        return _plain(" ".join(f"{one.name} {one.state}" for one in breakers if one.state != "closed"))

    def leftovers(self) -> list[str]:
        """What was taken and not given back, now that all calls have ended."""
        return leftovers(self.bench)


def leftovers(bench: Bench) -> list[str]:
    """What was taken from gates, budgets and breakers and not given back, by its place."""
    found = []
    for line in bench.admission.gates.lines.values():
        gate, health = line.gate, line.gate.health
        places = {
            "in flight": gate.in_flight,
            "retries": health.retries.in_flight,
            "probes": health.breaker.probes_out,
            "account's probes": health.account.breaker.probes_out,
            "waiting": len(line.waiters),
        }
        found += [f"{gate.name} {place}: {count}" for place, count in places.items() if count]
    if bench.admission.queue.occupancy.calls or bench.admission.queue.occupancy.bytes:
        found.append("the queue is not empty")
    return found


def code_in(text: bytes) -> str | None:
    """The code of the error that a body or the last event is; its type where it has none."""
    last = text.rstrip().rpartition(b"data: ")[2]
    try:
        error = (orjson.loads(last) or {}).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return (error.get("code") or error.get("type")) if isinstance(error, dict) else None


def _is_whole(text: bytes, is_stream: bool) -> bool:
    return text.endswith(DONE) and text.count(b'"hi"') == 1 if is_stream else text == ANSWER


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _plain(text: str) -> str:
    return text.replace("/m", "")
