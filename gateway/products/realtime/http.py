"""The door for realtime sessions: a handshake in, a relay out.

    who calls -> which model -> a session at a target -> 101, and frames from then on

In this order: subprotocols; what the doors of WebSockets have in common; the targets of sessions; and the endpoint. Everything
is refused before the upgrade, in OpenAI's shape. The task that serves the request ends with the 101: an open session is
callbacks alone. No exception leaves this file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import (
    CallerFault,
    GatewayError,
    InternalError,
    InvalidRequest,
    NotSupported,
    ShuttingDown,
    drop_frames,
)
from gateway.core.http.writing import AnyCycle, answer_error, write_whole
from gateway.core.intake import InFlight, Intake, ServedRequest, Serving, StopReason
from gateway.core.ledger import answer_headers
from gateway.core.ports import Meter
from gateway.core.render import OPENAI_UNKNOWN
from gateway.core.request_fields import MAX_MODEL_CHARS, Peeked
from gateway.core.snapshot import Model, PolicySnapshot, Provider
from gateway.core.types import Endpoint, RawHeaders, Upstream
from gateway.products.realtime.rules import why_no_sessions
from gateway.products.realtime.service import RealtimeSession, RealtimeSessions

if TYPE_CHECKING:
    from gateway.core.websocket import SocketEnd

# --- the subprotocols of a handshake: browsers cannot set headers, so OpenAI's clients put the key there ---

HEADER = b"sec-websocket-protocol"
_KEY = b"openai-insecure-api-key."
_ACCOUNT = (b"openai-organization.", b"openai-project.")
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Offered(NamedTuple):
    """The subprotocols of a handshake, apart."""

    key: bytes | None
    """The credential; None: there is none among them."""
    account: list[bytes]
    """Those that name an account at OpenAI."""
    others: list[bytes]
    """Those that may be chosen, in the client's order."""


def read_subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> Offered:
    """Returns what was offered. Raises InvalidRequest for what is no subprotocol, or two keys; without quoting either.

    A credential is taken out here, and goes nowhere else: not to a provider as a subprotocol, not into the answer, not into a
    log.
    """
    offers = [
        offer.strip() for name, value in headers if name == HEADER for offer in value.split(b",") if offer.strip()
    ]
    if any(not _TOKEN.issuperset(offer) for offer in offers):
        raise InvalidRequest(
            "The header 'Sec-WebSocket-Protocol' must be a list of tokens, such as 'realtime'.",
            param="Sec-WebSocket-Protocol",
        )
    keys = {offer[len(_KEY) :] for offer in offers if offer.startswith(_KEY)}
    if len(keys) > 1:
        raise InvalidRequest("Only one API key may be offered as a subprotocol.", param="Sec-WebSocket-Protocol")
    account = [offer for offer in offers if offer.startswith(_ACCOUNT)]
    others = [offer for offer in offers if not offer.startswith((_KEY, *_ACCOUNT))]
    return Offered(next(iter(keys), None), account, [*dict.fromkeys(others)])


# --- what the doors of WebSockets have in common: a handshake is checked, refused or answered (RFC 6455, 4.2) ---


class UpgradeRequired(CallerFault):
    """The path is for WebSocket sessions, and the request is no handshake (RFC 9110, 15.5.22)."""

    status = 426
    code = "upgrade_required"


def accept_of(cycle: AnyCycle) -> bytes:
    """Returns what a handshake is answered with. Raises GatewayError for what is none, or cannot be served here."""
    if b"upgrade" not in cycle.index or cycle.method != "GET" or cycle.http_version != "1.1":
        raise UpgradeRequired("Realtime sessions are WebSockets; connect with a WebSocket client.")
    if find_spec("websockets") is None:  # which is loaded with the first session, and not before
        raise NotSupported(
            "WebSockets need a package that is not installed here; the gateway's operator adds it: pip install '.[realtime]'.",
            param="Upgrade",
            code="websocket_not_supported",
        )
    from gateway.core.websocket import accept_key  # a gateway without sessions does not load it

    try:
        return accept_key("/", cycle.headers)
    except ValueError as fault:
        raise InvalidRequest(f"The WebSocket handshake is not valid: {fault}.", code="invalid_handshake") from fault


def offered_by(cycle: AnyCycle) -> Offered:
    """Returns the subprotocols on offer; a key among them is from now on the caller's, if no header names another."""
    offered = read_subprotocols(cycle.headers)
    if offered.key is not None and b"authorization" not in cycle.index:
        cycle.index[b"authorization"] = b"Bearer " + offered.key
    return offered


def switch(
    cycle: AnyCycle, accept: bytes, offered: Sequence[bytes], headers: RawHeaders, chosen: bytes | None = None
) -> SocketEnd | None:
    """Answers a handshake, and returns the client's end, which is to be listened to at once; None: the client has left.

    `chosen` is the subprotocol of the other side.
    """
    if cycle.disconnected or cycle.transport.is_closing():
        return None
    from gateway.core.websocket import client_end  # a gateway without sessions does not load it

    if chosen not in offered:  # a browser that offers some, and gets none, leaves (WHATWG WebSockets, 4)
        chosen = offered[0] if offered else None
    lines = [
        *cycle.default_headers,
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept),
        *headers,
    ]
    if chosen is not None:
        lines.append((HEADER, chosen))
    cycle.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n\r\n" % b"\r\n".join(map(b": ".join, lines)))
    cycle.response_started = cycle.response_complete = True
    end = client_end()
    cycle.connection.hand_over(end)
    return end


async def refuse(served: ServedRequest, error: GatewayError, meter: Meter, clock: Clock) -> None:
    """Answers a handshake with an error."""
    call, cycle = served.call, served.cycle
    if call is None or not call.settled:
        meter.refused(served.request_id, cycle.scope["path"], error.status, error.code)
    trail = [(b"x-request-id", served.request_id.encode())]
    if call is not None:
        trail = answer_headers(call, clock.monotonic())
    if isinstance(error, UpgradeRequired):
        trail.append((b"upgrade", b"websocket"))
    if b"upgrade" in cycle.index:  # what follows on the connection may be no HTTP
        cycle.keep_alive = False
    await answer_error(cycle, error, trail)


# --- the targets of a model for sessions: same names, limits and breakers, another wire ---

MOST_MODELS = 1024

Connect = Callable[[Provider, str | None], Upstream]


class SocketTargets:
    """Models for sessions, compiled when they are first asked for; those of an earlier policy are forgotten."""

    __slots__ = ("_connect", "_models", "_policy")

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._policy: PolicySnapshot | None = None
        self._models: dict[int, tuple[Model, Model]] = {}

    def of(self, call: Call) -> Model:
        """Returns what the call's model is for a session. Raises InvalidRequest where none of its targets can have one."""
        policy, model = call.route.policy, call.route.model
        if self._policy is not policy or len(self._models) > MOST_MODELS:
            self._policy, self._models = policy, {}
        known = self._models.get(id(model))
        if known is None:
            known = self._models[id(model)] = (model, self._compile(model, policy))
        if not known[1].plan:
            raise InvalidRequest(
                f"No target of '{call.request.model_name}' has realtime sessions{_reasons(call)}; name a model at OpenAI, "
                "Azure, or a server that speaks their Realtime API.",
                param="model",
                code="unsupported_by_targets",
            )
        return known[1]

    def _compile(self, model: Model, policy: PolicySnapshot) -> Model:
        targets = {
            target.name: replace(
                target,
                upstream=self._connect(policy.providers[target.provider], target.model),
                converters_by_path={},
                on_unknown_path=None,
                gaps={},
                edits=None,
            )
            for target in model.plan
            if why_no_sessions(policy.providers[target.provider]) is None
        }
        own = tuple(targets[one.name] for one in model.targets if one.name in targets)
        plan = tuple(targets[one.name] for one in model.plan if one.name in targets)
        return replace(
            model, targets=own or plan, plan=plan, context_plan=(), retries=replace(model.retries, hedging=None)
        )


def _reasons(call: Call) -> str:
    """Why, by provider: behind a colon, or nothing where there is none to tell of."""
    providers = call.route.policy.providers
    names = dict.fromkeys(target.provider for target in call.route.model.plan)
    reasons = [f"the provider '{name}' {why_no_sessions(providers[name])}" for name in names]
    return f": {'; '.join(reasons)}" if reasons else ""


log = logging.getLogger("gateway.edge")

REALTIME = Endpoint("realtime", "/realtime", OPENAI_UNKNOWN, answer="binary", tokens="both", is_model_optional=True)
PATHS = ("/v1/realtime", "/realtime")


class ServedSession(Serving):
    """An open session, as those who stop calls see it."""

    __slots__ = ("session",)

    def __init__(self, session: RealtimeSession) -> None:
        super().__init__(None)
        self.session = session
        self.call = session.call

    def stop(self, reason: StopReason) -> None:
        """The process goes: both sides hear so, and nobody is waited for."""
        self.stopped = reason
        self.session.restart(at_once=True)


class RealtimeEndpoint:
    """Opens sessions. One per process."""

    def __init__(
        self,
        sessions: RealtimeSessions,
        intake: Intake,
        targets: SocketTargets,
        meter: Meter,
        clock: Clock,
        inflight: InFlight,
    ) -> None:
        self._sessions = sessions
        self._intake = intake
        self._targets = targets
        self._meter = meter
        self._clock = clock
        self._inflight = inflight

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        """As an ASGI application, for requests that came by way of one of our own connections."""
        cycle: AnyCycle = scope["state"].pop("cycle")
        cycle.endpoint, cycle.task = REALTIME, asyncio.current_task()
        served = ServedRequest(cycle)
        serving, connection = self._inflight.serving, cycle.connection
        serving.add(served)
        connection.on_gone = served.client_gone
        try:
            offered = offered_by(cycle)
            self._intake.admit(served)  # a stranger does not learn what is served here
            accept = accept_of(cycle)
            call = self._call(served, offered)
            session, reply = await self._sessions.open(call)
            connection.on_gone = None
            if session is None:
                reply.headers.append((b"content-length", b"%d" % len(reply.body)))
                write_whole(cycle, reply.status, reply.headers, reply.body)
            else:
                try:
                    self._switch(cycle, session, reply, accept)
                finally:
                    if session.client is None:
                        session.abandon()
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", served.request_id, exc_info=error.__cause__ or error)
            drop_frames(error)
            await self._refuse(served, error)
        except asyncio.CancelledError:
            if served.stopped is None:
                raise
            if served.task is not None:
                served.task.uncancel()
            if served.stopped != "client_gone":
                await self._refuse(served, ShuttingDown("The gateway is shutting down; connect again."))
        except Exception:
            log.exception("defect while serving %s", served.request_id)
            await self._refuse(served, InternalError())
        finally:
            connection.on_gone = None
            serving.discard(served)
            if not cycle.response_complete and not cycle.disconnected:
                cycle.transport.close()

    def _call(self, served: ServedRequest, offered: Offered) -> Call:
        """The call that a handshake makes. Raises GatewayError."""
        model = _model_in(served.cycle.query)
        call = self._intake.without_body(served, Peeked(model, stream=True))
        call.change_route(replace(call.route, model=self._targets.of(call)))
        names = offered.others + (offered.account if served.plan.passes_account else [])
        headers = [header for header in call.request.headers if header[0] != b"content-type"]
        if names:
            headers.append((HEADER, b", ".join(names)))
        call.replace_request(replace(call.request, headers=headers), call.parsed)
        return call

    def _switch(self, cycle: AnyCycle, session: RealtimeSession, reply: Reply, accept: bytes) -> None:
        """Answers the handshake; from here on the connection is the session's, unless its client has left."""
        chosen = next((value for name, value in reply.headers if name == HEADER), None)
        headers = [header for header in reply.headers if header[0] != HEADER]
        end = switch(cycle, accept, read_subprotocols(cycle.headers).others, headers, chosen)
        if end is None:
            return
        self._intake.watch_messages(session.call.request.tenant, end)
        serving = ServedSession(session)
        self._inflight.serving.add(serving)
        session.on_over = lambda: self._inflight.serving.discard(serving)
        session.begin(end)

    async def _refuse(self, served: ServedRequest, error: GatewayError) -> None:
        await refuse(served, error, self._meter, self._clock)


def _model_in(query: bytes) -> str:
    """The model that the query names; empty: it names none. Raises InvalidRequest."""
    names = [value for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if name == "model"]
    if len(names) > 1 or (names and not (0 < len(names[0]) <= MAX_MODEL_CHARS and names[0].isprintable())):
        raise InvalidRequest(
            f"The query must name 'model' once, in 1 to {MAX_MODEL_CHARS} printable characters.",
            param="model",
            code="invalid_value",
        )
    return names[0] if names else ""
