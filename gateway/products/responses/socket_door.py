"""`GET /v1/responses` as a WebSocket: each `response.create` on it is served as a POST of its body would be.

    handshake -> the caller's key -> 101; then an event -> its body -> the call, at any target, in any language -> frames

So no provider needs WebSockets for it. What a connection has said is remembered for it as long as it is open, where nobody
else keeps it. No exception leaves this file.
"""

from __future__ import annotations

import asyncio
import logging
from random import getrandbits
from typing import Any

import orjson

from gateway.core.clock import Clock
from gateway.core.edge import Edge
from gateway.core.errors import (
    BudgetExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    ShuttingDown,
    Unauthorised,
    drop_frames,
)
from gateway.core.http.writing import AnyCycle
from gateway.core.ledger import answer_headers
from gateway.core.openai.json_edit import Outline
from gateway.core.ports import Meter
from gateway.core.relay import StreamBroken
from gateway.core.serving import InFlight, ServedRequest
from gateway.core.snapshot.snapshot import Policies
from gateway.core.types import Endpoint, RawHeaders
from gateway.products.jobs.model import RESPONSE, is_ours
from gateway.products.realtime.http import Offered, accept_of, offered_by, refuse, switch
from gateway.products.realtime.service import POLICY
from gateway.products.responses.rules.keeping import is_stateless
from gateway.products.responses.service import is_converted
from gateway.products.responses.socket import ConversationMemory, ResponseConnection, SocketTurn, TurnCycle, WaitingTurn
from gateway.products.responses.socket_turns import TurnRequest, turn_body, warm_response, with_output

PATHS = ("/v1/responses", "/responses")
_OF_HANDSHAKE = tuple(b"upgrade connection content- transfer-encoding expect x-request-id".split())
"""What headers of no turn begin with, besides those of WebSockets."""
_OF_ONE_CALL = (b"idempotency-key", b"x-gateway-step", b"x-gateway-step-on-change", b"prefer")
_JSON_TYPE = (b"content-type", b"application/json")

log = logging.getLogger("gateway.edge")


class ResponseSocketDoor:
    """Opens connections of Responses. One per process."""

    def __init__(
        self, edge: Edge, endpoint: Endpoint, policies: Policies, meter: Meter, clock: Clock, inflight: InFlight
    ) -> None:
        """`endpoint` is that of Responses."""
        self._edge = edge
        self._endpoint = endpoint
        self._policies = policies
        self._meter = meter
        self._clock = clock
        self._inflight = inflight
        self.memory = ConversationMemory()

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        """As an ASGI application, for requests that came by way of one of our own connections."""
        cycle: AnyCycle = scope["state"].pop("cycle")
        cycle.endpoint, cycle.task = self._endpoint, asyncio.current_task()
        served = ServedRequest(cycle)
        try:
            offered = offered_by(cycle)
            self._edge.intake.admit(served)
            accept = accept_of(cycle)
            _refuse_headers_of_calls(cycle)
            self._open(served, accept, offered)
        except GatewayError as error:
            await refuse(served, error, self._meter, self._clock)
        except Exception:
            log.exception("defect while serving %s", served.request_id)
            await refuse(served, InternalError(), self._meter, self._clock)
        finally:
            if not cycle.response_complete and not cycle.disconnected:
                cycle.transport.close()

    def _open(self, served: ServedRequest, accept: bytes, offered: Offered) -> None:
        cycle = served.cycle
        end = switch(cycle, accept, offered.others, [(b"x-request-id", served.request_id.encode())])
        if end is None:
            return
        self._edge.intake.watch_messages(served.key.tenant, end)
        index = {name: value for name, value in cycle.index.items() if _is_for_turns(name)}
        headers = [header for header in cycle.headers if _is_for_turns(header[0])]
        named = [*_account_headers(offered), _JSON_TYPE]
        caller = _Caller([*headers, *named], {**index, **dict(named)}, served.key.digest)
        loop, tasks = asyncio.get_running_loop(), cycle.connection.tasks

        def spawn(work: Any) -> None:
            task = loop.create_task(work)
            tasks.add(task)  # whoever stops the server waits for them
            task.add_done_callback(tasks.discard)

        connection = ResponseConnection(
            end,
            self._clock.monotonic(),
            self._outline,
            lambda connection, turn: self._serve(connection, caller, turn),
            spawn,
            lambda: self._is_allowed(caller),
            self._forget,
        )
        self._inflight.serving.add(connection)
        connection.begin()

    async def _outline(self, data: bytes) -> Outline:
        server = self._policies.current.server
        return await self._edge.intake.large_bodies.outline(data, server.max_json_values)

    def _is_allowed(self, caller: _Caller) -> bool:
        keys = self._policies.current.keys
        return not keys or caller.digest in keys

    def _forget(self, connection: ResponseConnection) -> None:
        self._inflight.serving.discard(connection)
        self.memory.forget(id(connection))

    async def _serve(self, connection: ResponseConnection, caller: _Caller, waiting: WaitingTurn) -> None:
        """Serves a turn, whatever becomes of it."""
        cycle = TurnCycle(self._endpoint, caller.headers, dict(caller.index))
        cycle.task = asyncio.current_task()
        turn = SocketTurn(cycle, waiting.request.lane, connection.send)
        connection.turns.add(turn)
        self._inflight.serving.add(turn)
        try:
            await self._answer(connection, turn, waiting)
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", turn.request_id, exc_info=error.__cause__ or error)
            drop_frames(error)
            self._refuse(connection, turn, error)
        except StreamBroken:
            self._refuse(connection, turn, InternalError())
        except asyncio.CancelledError:
            if turn.stopped is None and (turn.call is None or not turn.call.left):
                raise
            if turn.task is not None and turn.stopped is not None:
                turn.task.uncancel()
            if turn.stopped == "shutdown":
                late = ShuttingDown("The gateway is shutting down and the response could not be finished.")
                self._refuse(connection, turn, late)
        except Exception:
            log.exception("defect while serving %s", turn.request_id)
            self._refuse(connection, turn, InternalError())
        finally:
            # It has failed: no turn goes on from there, as at OpenAI ("If a turn fails (4xx or 5xx), the service evicts the
            # referenced previous_response_id from the connection-local cache": developers.openai.com, WebSocket mode).
            if turn.response is None and waiting.request.generates:
                self.memory.drop(id(connection), waiting.request.previous_id)
            connection.turns.discard(turn)
            self._inflight.serving.discard(turn)

    async def _answer(self, connection: ResponseConnection, turn: SocketTurn, waiting: WaitingTurn) -> None:
        wanted, owner = waiting.request, id(connection)
        before = self.memory.find(owner, wanted.previous_id) if wanted.previous_id else None
        turn.cycle.first, items = turn_body(waiting.data, waiting.outline, before)
        if not wanted.generates:
            await self._warm(connection, turn, wanted, items)
            return
        reply = await self._edge.answer(turn)
        if turn.call is None:
            raise InternalError
        await turn.give(turn.call, reply, connection.drain)
        response = turn.response
        if response is not None and not connection.is_over and _is_nobodys(turn, wanted, response):
            self.memory.remember(owner, str(response.get("id")), with_output(items, response))

    async def _warm(self, connection: ResponseConnection, turn: SocketTurn, wanted: TurnRequest, items: bytes) -> None:
        """Makes the input known to the turns behind it. No provider is asked."""
        intake = self._edge.intake
        call = intake.take(turn) or await intake.wait(turn)
        response_id = f"resp_warm_{getrandbits(128):032x}"
        if not connection.is_over:
            self.memory.remember(id(connection), response_id, items)
        for event in warm_response(response_id, self._clock.wall(), call.model_name, wanted.previous_id):
            turn.send(orjson.dumps(event))

    def _refuse(self, connection: ResponseConnection, turn: SocketTurn, error: GatewayError) -> None:
        call = turn.call
        if call is None or not call.settled:  # nothing else counts it: it never came to the pipeline
            self._meter.refused(turn.request_id, PATHS[0], error.status, error.code)
        trail: RawHeaders = [(b"x-request-id", turn.request_id.encode())]
        if call is not None:
            trail = answer_headers(call, self._clock.monotonic())
        turn.refuse(error, trail)
        if isinstance(error, BudgetExceeded | Unauthorised):
            connection.end(POLICY, error.message)


class _Caller:
    """Who has opened a connection: what its handshake says for each turn."""

    __slots__ = ("digest", "headers", "index")

    def __init__(self, headers: RawHeaders, index: dict[bytes, bytes], digest: bytes) -> None:
        self.headers = headers
        self.index = index
        self.digest = digest


def _refuse_headers_of_calls(cycle: AnyCycle) -> None:
    """Raises InvalidRequest for a header that is about one call: a connection has many."""
    name = next((name for name in _OF_ONE_CALL if name in cycle.index), None)
    if name is not None:
        raise InvalidRequest(
            f"The header '{name.decode()}' is about one call, and a WebSocket has many; POST the call, or leave it out.",
            param=name.decode(),
            code="invalid_handshake",
        )


def _is_for_turns(name: bytes) -> bool:
    return not name.startswith(_OF_HANDSHAKE) and b"websocket" not in name


def _account_headers(offered: Offered) -> list[tuple[bytes, bytes]]:
    """What browsers can only say by subprotocols, as the headers that it stands for."""
    parts = [offer.partition(b".") for offer in offered.account]
    return [(name, value) for name, _, value in parts]


def _is_nobodys(turn: SocketTurn, wanted: TurnRequest, response: dict[str, Any]) -> bool:
    """Whether nobody keeps a response, so that no request could go on from it unless its connection remembers."""
    call = turn.call
    if call is None or is_ours(RESPONSE, str(response.get("id"))):
        return False
    keeping = turn.plan.keeping
    is_providers = keeping in (None, "provider") and len(call.model.plan) == 1
    is_providers = is_providers and not is_converted(call) and not is_stateless(call.model)
    return wanted.stores is False or not is_providers
