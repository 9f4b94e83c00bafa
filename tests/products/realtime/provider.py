"""A provider of realtime sessions that says what a test has it say."""

from __future__ import annotations

import asyncio
import http
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

Script = Callable[[ServerConnection], Awaitable[None]]
USAGE = {
    "total_tokens": 30,
    "input_tokens": 20,
    "output_tokens": 10,
    "input_token_details": {"text_tokens": 20, "audio_tokens": 0, "cached_tokens": 8},
    "output_token_details": {"text_tokens": 10, "audio_tokens": 0},
}


def done(usage: Mapping[str, Any] | None = USAGE, **more: Any) -> str:
    """The event that ends a response."""
    response = {"id": "resp_1", "object": "realtime.response", "status": "completed", "usage": usage, **more}
    return orjson.dumps({"type": "response.done", "event_id": "event_9", "response": response}).decode()


def created() -> str:
    """The first event of a session."""
    return orjson.dumps(
        {
            "type": "session.created",
            "event_id": "event_1",
            "session": {"type": "realtime", "object": "realtime.session", "id": "sess_1", "model": "gpt-realtime"},
        }
    ).decode()


def delta(text: str) -> str:
    """A piece of a response's text."""
    event = {"type": "response.output_text.delta", "event_id": "e", "response_id": "resp_1", "item_id": "i"}
    return orjson.dumps({**event, "output_index": 0, "content_index": 0, "delta": text}).decode()


async def one_turn(socket: ServerConnection) -> None:
    """Greets, and answers each `response.create` with two pieces and the usage."""
    await socket.send(created())
    async for message in socket:
        if orjson.loads(message)["type"] == "response.create":
            for event in (delta("Hel"), delta("lo"), done()):
                await socket.send(event)


class Provider:
    """A scripted provider; `handshakes` are the requests that have come."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.handshakes: list[Request] = []
        self.refuse: list[tuple[int, dict[str, Any]]] = []
        """Answers to the next handshakes instead of a session: status and error object."""
        self.sockets: list[ServerConnection] = []
        self.closed: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()
        """How its sessions have ended."""
        self.url = ""

    async def serve(self, socket: ServerConnection) -> None:
        """One session."""
        self.sockets.append(socket)
        try:
            await self.script(socket)
        except ConnectionClosed:
            pass
        finally:
            await socket.wait_closed()
            self.closed.put_nowait((socket.close_code, socket.close_reason))

    def admit(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuses a handshake, if one is to be refused."""
        self.handshakes.append(request)
        if not self.refuse:
            return None
        status, error = self.refuse.pop(0)
        answer = socket.respond(http.HTTPStatus(status), orjson.dumps({"error": error}).decode())
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = "application/json"
        return answer


def _choose(_socket: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol("realtime") if "realtime" in offered else None


@asynccontextmanager
async def provider(script: Script = one_turn, **options: Any) -> AsyncIterator[Provider]:
    """Runs one on loopback."""
    running = Provider(script)
    options.setdefault("ping_interval", None)
    options.setdefault("compression", None)
    async with serve(
        running.serve, "127.0.0.1", 0, process_request=running.admit, select_subprotocol=_choose, **options
    ) as server:
        port = server.sockets[0].getsockname()[1]
        scheme = "https" if options.get("ssl") is not None else "http"
        running.url = f"{scheme}://127.0.0.1:{port}/v1"
        yield running
        for socket in running.sockets:
            socket.transport.abort()
