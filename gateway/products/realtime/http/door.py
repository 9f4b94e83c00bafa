"""The door for realtime sessions: a handshake in, a relay out.

    who calls -> which model -> a session at a target -> 101, and frames from then on

Everything is refused before the upgrade, in OpenAI's shape. The task that serves the request ends with the 101: an open session
is callbacks alone. No exception leaves this file.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qsl

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.edge.served.inflight import InFlight, Serving, StopReason
from gateway.core.edge.served.served import ServedRequest
from gateway.core.errors import GatewayError, InternalError, InvalidRequest, ShuttingDown
from gateway.core.http.writing.cycle import AnyCycle
from gateway.core.http.writing.writing import write_whole
from gateway.core.intake.intake.intake import Intake
from gateway.core.peek.peek import MAX_MODEL_CHARS, Peeked
from gateway.core.ports import Meter
from gateway.core.types.words import Endpoint
from gateway.products.realtime.http.credentials import HEADER, Offered, read_subprotocols
from gateway.products.realtime.http.handshake import accept_of, offered_by, refuse, switch
from gateway.products.realtime.http.targets import SocketTargets
from gateway.products.realtime.service.session import RealtimeSession
from gateway.products.realtime.service.sessions import RealtimeSessions

log = logging.getLogger("gateway.edge")

REALTIME = Endpoint("realtime", "/realtime", answer="binary", sse="other", tokens="both", is_model_optional=True)
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


class RealtimeDoor:
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
        call.model = self._targets.of(call)
        names = offered.others + (offered.account if served.plan.passes_account else [])
        call.headers = [header for header in call.headers if header[0] != b"content-type"]
        if names:
            call.headers.append((HEADER, b", ".join(names)))
        return call

    def _switch(self, cycle: AnyCycle, session: RealtimeSession, reply: Reply, accept: bytes) -> None:
        """Answers the handshake; from here on the connection is the session's, unless its client has left."""
        chosen = next((value for name, value in reply.headers if name == HEADER), None)
        headers = [header for header in reply.headers if header[0] != HEADER]
        end = switch(cycle, accept, read_subprotocols(cycle.headers).others, headers, chosen)
        if end is None:
            return
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
