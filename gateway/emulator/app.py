"""The emulator as one ASGI callable, and the server that serves it on loopback.

In this order: the life of a call (`Emulator.__call__` and `_generate`, top to bottom: find the endpoint, admit the call,
play the answer), the `/__emulator` endpoints, the server, which alone knows sockets. Invariant: a call is counted on
arrival and at its end, exactly once each, however it ends.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Any, Protocol, cast
from urllib.parse import parse_qs

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.emulator import routes
from gateway.emulator.batches import EmulatedBatches, EmulatedMessageBatches
from gateway.emulator.call import (
    CONNECTIONS,
    TRANSPORT,
    EmulatedCall,
    EmulatedPace,
    PeerGoneError,
    Receive,
    Recorded,
    Recorder,
    Scope,
    Send,
    Sleep,
    Stats,
    identity_of,
    key_of,
    let_in,
    perform,
    refusal_of,
    reset,
)
from gateway.emulator.config import EmulatorConfig, Fault, FaultPlan, parse_script_entry
from gateway.emulator.limits import EmulatedAccount, RequestDemand, open_account, open_native_account
from gateway.emulator.replies import (
    LANGUAGES,
    EmulatedProblem,
    EmulatedReply,
    EmulatedStream,
    ProblemError,
    context_length,
    json_reply,
    model_not_found,
    too_long,
    unknown_model,
    unknown_url,
    wrong_method,
)
from gateway.emulator.requests import CheckedRequest, refuse_unknown
from gateway.emulator.routes import ENDPOINTS, EmulatedEndpoint, canonical, is_of_batches
from gateway.emulator.writer import Writer

# --- The life of a call ---


_LISTED_MODELS = ("gpt-4o", "gpt-4o-mini", "gpt-4.1", "text-embedding-3-small", "text-embedding-3-large")
_MAX_ACCOUNTS = 10_000
_LIMIT_FIELDS = (
    "rpm",
    "burst",
    "tpm",
    "output_tpm",
    "max_concurrency",
    "model_limits",
    "dialect",
    "limit_headers",
    "charge",
)


class Emulator:
    """A scripted provider; `now` and `sleep` are its clock in seconds, `wall` the time of day in epoch seconds."""

    def __init__(
        self,
        config: EmulatorConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._wall = wall
        self.stats = Stats(wall)
        self.config = config
        self.on_change: Callable[[], None] = lambda: None
        """Runs after every change of config or start of the schedule, for the listener of connections."""
        self.reset()

    def configure(self, config: EmulatorConfig) -> None:
        """Puts `config` in force at once; buckets start full again only when a limit changed."""
        if any(getattr(config, name) != getattr(self.config, name) for name in _LIMIT_FIELDS):
            self._accounts.clear()
        if (config.recorded_requests, config.recorded_bytes) != (
            self.config.recorded_requests,
            self.config.recorded_bytes,
        ):
            self.recorder = Recorder(config.recorded_requests, config.recorded_bytes)
        self.config = config
        self.faults.rules = config.faults
        self._writer = Writer(config, self._rng, self._wall)
        self.on_change()

    def connection_fault(self) -> str | None:
        """Returns the present fault of the whole server, if any."""
        return self.faults.connection_fault(self._now())

    def reset(self) -> None:
        """Starts anew under the same config: counters, buckets, scripts, fault schedule and random draws."""
        self._rng = random.Random(self.config.seed)  # noqa: S311 - draws of faults and ids, not secrets
        self._accounts: dict[tuple[str, str, str], EmulatedAccount] = {}
        self.faults = FaultPlan(self.config.faults, self._rng, self._now())
        self.recorder = Recorder(self.config.recorded_requests, self.config.recorded_bytes)
        self._writer = Writer(self.config, self._rng, self._wall)
        self.batches = EmulatedBatches(
            self._wall, self._rng, self._answer_line, lambda: self.config.batch_s, self.config.dialect
        )
        self.message_batches = EmulatedMessageBatches(
            self._wall, self._rng, self._answer_message, lambda: self.config.batch_s
        )
        self.stats.clear()
        self.on_change()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call from its first byte to its last."""
        if scope["type"] != "http":
            await _lifespan(scope, receive, send)
            return
        is_control = scope["path"].startswith(PREFIX)
        stats = Stats(self._wall) if is_control else self.stats  # what looks at the counters is not counted
        call = EmulatedCall(scope, receive, send, stats, self._now, self._sleep)
        if is_control:
            await self._control(call)
            return
        self.stats.enter()
        try:
            native = None if call.path in ENDPOINTS else routes.language_of(call.path, call.headers)
            call.identify(*identity_of(native or self.config.dialect, self._rng.getrandbits(128)))
            await call.read_body()
            self._record(call)
            await self._serve(call)
        except ProblemError as exc:
            await call.reply(exc.problem.reply(call.dialect, request_id=call.request_id))
        except PeerGoneError:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not call.is_peer_gone or task is None:
                raise
            task.uncancel()
        finally:
            call.end()
            self.stats.leave(call.endpoint)

    async def _serve(self, call: EmulatedCall) -> None:
        if call.dialect in LANGUAGES:
            await self._serve_native(call)
            return
        path, deployment = canonical(call.path)
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            self._expect(call, "POST")
            await self._generate(call, endpoint, deployment)
        elif path.startswith(("/v1/files", "/v1/batches")):
            self._expect(call, call.method)
            call.endpoint = path.split("/")[2]
            query, content_type = call.scope.get("query_string", b""), call.header(b"content-type")
            await call.reply(self.batches.serve(call.method, path, query, content_type, call.body))
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            self._expect(call, "GET")
            call.endpoint = "models"
            await call.reply(self._models(path.removeprefix("/v1/models").strip("/")))
        else:
            raise ProblemError(unknown_url(call.method, call.path))

    async def _serve_native(self, call: EmulatedCall) -> None:
        """Serves a call of a provider's own API."""
        self._let_in(call)
        query, version = call.scope.get("query_string", b""), call.header(b"anthropic-version")
        if is_of_batches(call.path):
            call.endpoint = "messages/batches"
            await call.reply(self.message_batches.serve(call.method, call.path, query, call.headers, call.body))
            return
        endpoint = routes.endpoint_of(call.method, call.path, query, version)
        if endpoint is not None:
            await self._generate(call, endpoint, None)
            return
        call.endpoint = "models"
        await call.reply(routes.list_models(call.dialect, call.path, self.config.models))

    async def _generate(
        self, call: EmulatedCall, endpoint: EmulatedEndpoint | routes.NativeEndpoint, deployment: str | None
    ) -> None:
        now = self._now()
        call.endpoint = endpoint.name
        request = self._check(endpoint.request(call.body, deployment), call.dialect)
        if self.config.strict and not endpoint.pool:
            refuse_unknown(endpoint.name, request.data)
        call.model = request.model
        self.stats.count_call(request.model)

        key = key_of(call)
        account = self._account(key, request.model, endpoint.pool)
        refusal = account.admit(self._demand(call, endpoint.operation, request), now)
        if refusal is not None:
            await call.reply(refusal.reply(call.dialect, call.request_id))
            return
        call.limit_headers = lambda: account.headers(self._now())
        account.in_flight += 1
        try:
            fault = self.faults.pick(request.model, now, key)
            if fault is not None:
                self.stats.faults[fault.kind] += 1
                reply = refusal_of(fault, account, call, now)
                if reply is not None:
                    await call.reply(reply)
                    return
            answer = self._answer(endpoint, _filtered(request, fault))
            if call.recorded is not None:
                call.recorded.tokens = request.prompt_tokens, answer.tokens
            await perform(call, answer, fault, self._pace(), account)
        finally:
            account.in_flight -= 1

    def _expect(self, call: EmulatedCall, method: str) -> None:
        if call.method != method:
            raise ProblemError(wrong_method(call.method, call.path, method))
        self._let_in(call)

    def _let_in(self, call: EmulatedCall) -> None:
        if self.config.api_key is not None:
            let_in(call, self.config.api_key)

    def _check(self, request: CheckedRequest, dialect: str) -> CheckedRequest:
        config, is_native = self.config, dialect in LANGUAGES
        if config.models and request.model not in config.models:
            raise ProblemError(unknown_model(dialect, request.model) if is_native else model_not_found(request.model))
        if config.context_window is not None:
            used = request.prompt_tokens + (request.max_tokens or 0)
            if used > config.context_window:
                refuse = too_long if is_native else context_length
                raise ProblemError(refuse(dialect, config.context_window, used))
        return request

    def _answer(
        self, endpoint: EmulatedEndpoint | routes.NativeEndpoint, request: CheckedRequest
    ) -> EmulatedReply | EmulatedStream:
        try:
            return endpoint.answer(request, self._writer)
        except orjson.JSONEncodeError as exc:  # what an answer echoes may be nested deeper than orjson writes
            raise ProblemError(EmulatedProblem(400, f"Invalid body: {exc}.")) from exc

    def _answer_line(self, endpoint: EmulatedEndpoint, data: dict[str, Any]) -> EmulatedReply | EmulatedStream:
        return self._answer(endpoint, self._check(endpoint.read(data), self.config.dialect))

    def _answer_message(self, body: bytes) -> EmulatedReply | EmulatedStream:
        endpoint = routes.endpoint_of("POST", "/v1/messages", b"", b"2023-06-01")
        assert endpoint is not None  # noqa: S101  # that path has one
        return self._answer(endpoint, self._check(endpoint.request(body, None), "messages"))

    def _account(self, key: str, model: str, pool: str) -> EmulatedAccount:
        account = self._accounts.get((key, model, pool))
        if account is None:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                del self._accounts[next(iter(self._accounts))]
            if pool:
                account = open_native_account(self.config, pool.partition("/")[0], model, self._now(), self._wall)
            else:
                account = open_account(self.config, model, self._now(), self._wall)
            self._accounts[key, model, pool] = account
        return account

    def _demand(self, call: EmulatedCall, operation: str, request: CheckedRequest) -> RequestDemand:
        max_tokens = (request.max_tokens or 0) * request.choices
        if call.dialect != "azure":
            return RequestDemand(request.prompt_tokens, max_tokens)
        query = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
        return RequestDemand(request.prompt_tokens, max_tokens, operation, query.get("api-version", ["v1"])[0])

    def _pace(self) -> EmulatedPace:
        config = self.config
        per_token_s = 1.0 / config.tokens_per_second if config.tokens_per_second else 0.0
        slowness = max(1.0, self.stats.active / config.capacity) if config.capacity else 1.0
        ttft_s, per_token_s = config.ttft_s * slowness, per_token_s * slowness
        if not config.jitter or not (ttft_s or per_token_s):
            return EmulatedPace(ttft_s, per_token_s)
        draw = self._rng.lognormvariate
        return EmulatedPace(ttft_s * draw(0.0, config.jitter), per_token_s * draw(0.0, config.jitter))

    def _models(self, name: str) -> EmulatedReply:
        served = self.config.models or _LISTED_MODELS
        if not name:
            return json_reply({"object": "list", "data": [_model(each) for each in served]})
        if self.config.models and name not in self.config.models:
            raise ProblemError(model_not_found(name))
        return json_reply(_model(name))

    def _record(self, call: EmulatedCall) -> None:
        config = self.config
        if config.recorded_requests:
            query = call.scope.get("query_string", b"")
            kept = call.body[: config.recorded_bytes]
            size, number = len(call.body), self.stats.total
            call.recorded = Recorded(
                number, self._wall(), call.arrived_at, call.method, call.path, query, call.headers, kept, size
            )
            self.recorder.add(call.recorded)

    async def _control(self, call: EmulatedCall) -> None:
        try:
            await call.read_body()
            await call.reply(control(self, call))
        except ProblemError as exc:
            await call.reply(exc.problem.reply("openai"))
        except PeerGoneError:
            pass


def create_app(
    config: EmulatorConfig,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
    wall: Callable[[], float] = time.time,
) -> Emulator:
    """Returns the ASGI application of a scripted provider; see `Emulator` for the clocks."""
    return Emulator(config, now=now, sleep=sleep, wall=wall)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "emulator"}


def _filtered(request: CheckedRequest, fault: Fault | None) -> CheckedRequest:
    return replace(request, is_filtered=True) if fault is not None and fault.kind == "refusal" else request


async def _lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        return
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


# --- The `/__emulator` endpoints: read the counters, change what happens next ---


PREFIX = "/__emulator/"
_METHODS: Mapping[str, tuple[str, ...]] = {
    "stats": ("GET",),
    "reset": ("POST",),
    "config": ("GET", "POST"),
    "script": ("POST",),
    "requests": ("GET",),
}


class Controlled(Protocol):
    """The part of the emulator that the control endpoints use."""

    config: EmulatorConfig
    faults: FaultPlan
    stats: Stats
    recorder: Recorder

    def configure(self, config: EmulatorConfig) -> None: ...
    def reset(self) -> None: ...


def control(emulator: Controlled, call: EmulatedCall) -> EmulatedReply:
    """Answers one control call whose body has been read; raises ProblemError.

    The endpoints are for tests and demos, so without a key; the emulator listens on loopback. A change is applied whole or,
    with a 400 that names every bad field, not at all.
    """
    name = call.path.removeprefix(PREFIX)
    methods = _METHODS.get(name)
    if methods is None:
        raise ProblemError(unknown_url(call.method, call.path))
    if call.method not in methods:
        raise ProblemError(wrong_method(call.method, call.path, " or ".join(methods)))
    match name, call.method:
        case "stats", _:
            return json_reply(_stats(emulator, call))
        case "reset", _:
            emulator.reset()
            return json_reply({"ok": True})
        case "config", "GET":
            return json_reply(emulator.config.to_mapping())
        case "config", _:
            return json_reply(_configure(emulator, call.body))
        case "script", _:
            return json_reply(_script(emulator, call.body))
    return json_reply({"requests": emulator.recorder.last(_count(call.scope.get("query_string", b"")))})


def _stats(emulator: Controlled, call: EmulatedCall) -> dict[str, Any]:
    connections = call.scope.get(CONNECTIONS)
    return emulator.stats.to_mapping() | {
        "open_connections": len(connections) if connections is not None else None,
        "script_entries_waiting": emulator.faults.waiting(),
    }


def _configure(emulator: Controlled, body: bytes) -> dict[str, Any]:
    # In JSON a null removes an optional value, where a missing CLI flag's None changes nothing.
    values = {name: "none" if value is None else value for name, value in _object(body).items()}
    try:
        config = EmulatorConfig.from_mapping(values, emulator.config)
    except ValueError as exc:
        raise _bad(str(exc)) from exc
    emulator.configure(config)
    return config.to_mapping()


def _script(emulator: Controlled, body: bytes) -> dict[str, Any]:
    given = _object(body)
    model, entries = given.get("model", "*"), given.get("faults")
    unknown = sorted(set(given) - {"model", "faults"})
    if unknown:
        raise _bad(f"{unknown[0]}: unknown field of a script")
    if not isinstance(model, str) or not model:
        raise _bad("model: expected a non-empty string")
    if not isinstance(entries, list):
        raise _bad("faults: expected an array")
    try:
        waiting = emulator.faults.script(model, [_entry(index, entry) for index, entry in enumerate(entries)])
    except ValueError as exc:
        raise _bad(str(exc)) from exc
    return {"model": model, "waiting": waiting}


def _entry(index: int, entry: object) -> Fault | None:
    try:
        return parse_script_entry(entry)
    except ValueError as exc:
        raise ValueError(f"faults[{index}].{exc}") from exc


def _count(query: bytes) -> int:
    text = parse_qs(query.decode("latin-1")).get("last", ["1000000"])[0]
    if not text.isdigit():
        raise _bad(f"last: expected a whole number, got {text!r}")
    return int(text)


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise _bad(f"body: {exc}") from exc
    if not isinstance(given, dict):
        raise _bad("body: expected a JSON object")
    return given


def _bad(text: str) -> ProblemError:
    return ProblemError(EmulatedProblem(400, text, param=text.partition(":")[0], code="invalid_value"))


# --- The server, inside a loop that is already running, on a port that can fail as a whole ---


_BACKLOG = 4096
_FILLERS = 2  # a queue of length zero holds one connection
_SILENT = frozenset({"refuse", "blackhole"})


class Connection(Protocol):
    """An open connection; one that was used to control the emulator is spared, so that the fault can be ended."""

    is_control: bool

    @property
    def transport(self) -> asyncio.Transport: ...


class Listener:
    """The sockets of one server; `connections` are those that are open.

    It refuses connections, resets them, or leaves them unanswered. A port that refuses stays bound, so that no other
    process gets it; one that swallows connections listens with a full queue, which on Linux leaves every new connection
    without an answer.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], connections: Callable[[], Iterable[Connection]]
    ) -> None:
        self.fault: str | None = None
        """The fault in force; None: the port works."""
        self._make_protocol = make_protocol
        self._connections = connections
        self._wanted: str | None = None
        self._settling: asyncio.Task[None] | None = None
        self._addresses: list[tuple[int, Any]] = []
        self._servers: list[asyncio.Server] = []
        self._mute: list[socket.socket] = []

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._make_protocol, host, port, backlog=_BACKLOG)
        self._servers = [server]
        self._addresses = [(each.family, each.getsockname()) for each in server.sockets]
        return int(server.sockets[0].getsockname()[1])

    def want(self, fault: str | None) -> None:
        """Makes the port fail in this way from the next turn of the loop on; None: makes it work."""
        self._wanted = fault
        if fault != self.fault and (self._settling is None or self._settling.done()):
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def settle(self) -> None:
        """Waits until the wanted fault is in force."""
        if self._settling is not None:
            await self._settling

    def close(self) -> None:
        """Stops listening, once settled; open connections are left to their owner."""
        self._close_mute()
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """Waits until no task or socket is left in the loop."""
        for server in self._servers:
            await server.wait_closed()

    async def _settle(self) -> None:
        while self.fault != self._wanted:
            self.fault = self._wanted
            for connection in list(self._connections()):
                if not connection.is_control and not connection.transport.is_closing():
                    disturb(connection, self.fault)
            if self.fault in _SILENT:
                self._shut(is_swallowing=self.fault == "blackhole")
            elif not self._servers:
                await self._listen()

    async def _listen(self) -> None:
        self._close_mute()
        sockets = [_bound(family, address) for family, address in self._addresses]
        for each in sockets:
            each.listen(_BACKLOG)  # so that nobody is refused from here on
        loop = asyncio.get_running_loop()
        for each in sockets:
            self._servers.append(await loop.create_server(self._make_protocol, sock=each, backlog=_BACKLOG))

    def _shut(self, *, is_swallowing: bool) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        self._close_mute()
        self._mute = [_bound(family, address) for family, address in self._addresses]
        if is_swallowing:
            self._mute += [filler for each in list(self._mute) for filler in _fillers(each)]

    def _close_mute(self) -> None:
        for each in self._mute:
            each.close()
        self._mute = []


def disturb(connection: Connection, fault: str | None) -> None:
    """Applies a fault of the whole server to an open connection."""
    match fault:
        case None:
            connection.transport.resume_reading()
        case "refuse":
            connection.transport.abort()
        case "reset_on_accept":
            reset(connection.transport)
        case "blackhole":
            connection.transport.pause_reading()


def _bound(family: int, address: Any) -> socket.socket:
    """Returns a socket that has the address and does not listen, so that connections to it are refused."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setblocking(False)
    bound.bind(address)
    return bound


def _fillers(listening: socket.socket) -> list[socket.socket]:
    """Returns connections that fill the queue of a socket that begins to listen."""
    listening.listen(0)
    fillers = [socket.socket(listening.family, socket.SOCK_STREAM) for _ in range(_FILLERS)]
    for each in fillers:
        each.setblocking(False)
        each.connect_ex(listening.getsockname())
    return fillers


# --- The server itself, with uvicorn's protocol ---


_LOOK_S = 0.02
_STOP_PATIENCE_S = 1.0


class EmulatorProtocol(HttpToolsProtocol):
    """Uvicorn's protocol that puts its transport and the open connections into the scope.

    The app gets the transport, because resets and wrong framing have no ASGI message.
    """

    is_control = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[TRANSPORT] = self.transport
        scope[CONNECTIONS] = self.connections

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["path"].startswith(PREFIX):
            self.is_control = True


class ResettingProtocol(asyncio.Protocol):
    """Answers a connection with a reset."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        reset(cast("asyncio.Transport", transport))


class EmulatorServer:
    """One emulator on one port of loopback; port 0 takes a free one.

    It uses uvicorn's HTTP protocol without uvicorn's server: no signal handlers, no 100 ms ticks, and a stop that drops
    every connection at once. Invariants: the fault that was wanted last is in force once `settle` returns; after `stop`
    nothing of the server is left in the loop.
    """

    def __init__(
        self,
        config: EmulatorConfig | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.emulator = Emulator(config or EmulatorConfig(), now=now, sleep=sleep, wall=wall)
        self._host = host
        self._port = port
        self._state = ServerState()
        self._listener: Listener | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Returns the root, for `/__emulator/...`; valid once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def base_url(self) -> str:
        """Returns the `base_url` for clients; valid once started."""
        return f"{self.url}/v1"

    @property
    def connection_fault(self) -> str | None:
        """Returns the fault of the server as a whole that is in force."""
        return self._listener.fault if self._listener is not None else None

    async def start(self) -> str:
        """Listens and returns the base URL; raises OSError when the port is taken."""
        config = uvicorn.Config(
            cast("Any", self.emulator),
            http=EmulatorProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
        )
        config.load()

        def protocol() -> asyncio.Protocol:
            if listener.fault is not None:
                return ResettingProtocol()
            return EmulatorProtocol(config, self._state, {})

        listener = Listener(protocol, lambda: cast("Any", self._state.connections))
        self._port = await listener.start(self._host, self._port)
        self._listener = listener
        self._renew_date(asyncio.get_running_loop())
        self.emulator.on_change = self._look_at_faults
        self._look_at_faults()
        return self.base_url

    async def configure(self, **changes: Any) -> None:
        """Changes the emulator's config, field by field, and waits until the port behaves accordingly."""
        self.emulator.configure(replace(self.emulator.config, **changes))
        if self._listener is not None:
            await self._listener.settle()

    async def stop(self) -> None:
        """Stops listening and drops every connection; calls in flight end as if their peers had left."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        for timer in (self._tick, self._look):
            if timer is not None:
                timer.cancel()
        await listener.settle()
        listener.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=_STOP_PATIENCE_S)
            for task in late:
                task.cancel()
        while self._state.connections:  # noqa: ASYNC110 - each abort takes a turn of the loop to arrive
            await asyncio.sleep(0)
        await listener.wait_closed()

    def _look_at_faults(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._listener is None:
            return
        self._listener.want(self.emulator.connection_fault())
        if self.emulator.faults.is_about_connections:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_at_faults)

    def _renew_date(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._tick = loop.call_later(1.0, self._renew_date, loop)
