"""The client and the provider of a system in one: it sends nothing before what it sent last has come out at the other end.

So the system handles one call after the other and one event after the other, however fast it is.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from tests.bench.canned import ANSWER, REFUSAL, STREAM_HEAD, message_events, stream_events, whole_body
from tests.bench.load import MESSAGES_PATH, PATH, chat_body, messages_body, request

PATIENCE_S = 120.0
_OURS = (b"chatcmpl-bench", b"[DONE]", b"event: ")
"""What the provider sends has one of these in it."""


class BothEnds:
    """The client and the provider of a system, which does one thing after the other and waits for what comes of it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._providers: list[socket.socket] = []
        """Its connections: the one that was asked last is the last one."""
        self._client: socket.socket | None = None
        self._port = 0
        self.headers: dict[str, str] = {}
        """What the client sends beside what every request has."""

    @property
    def provider_port(self) -> int:
        """Where it answers."""
        return int(self._listener.getsockname()[1])

    def connect(self, port: int) -> None:
        """Be the client of this port from now on, over one connection."""
        self._port = port
        self._client = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    def close(self) -> None:
        """Close its sockets."""
        for one in (self._client, *self._providers, self._listener):
            if one is not None:
                one.close()

    def plain(self, calls: int) -> None:
        """Make so many plain calls."""
        for _ in range(calls):
            self._ask(chat_body())
            self._answer(ANSWER, lambda data: whole_body(data) is not None)

    def refused_once(self) -> None:
        """Make one plain call that is answered with a 429, waits as long as that says, and is served then."""
        self._ask(chat_body())
        self._providers[-1].sendall(REFUSAL)
        self._wait_for_request()
        self._answer(ANSWER, lambda data: whole_body(data) is not None)

    def stream(self, events: int) -> None:
        """Make one call that is answered with so many events of text, each alone."""
        role, text, stop, _, done = stream_events()
        self._ask(chat_body(stream=True))
        self._answer(STREAM_HEAD + role, _ends_an_event)
        for _ in range(events):
            self._answer(text, _ends_an_event)
        self._answer(stop + done, lambda data: data.endswith(b"0\r\n\r\n"))

    def messages(self, events: int) -> None:
        """Make one call of Messages that is answered with so many events of text, each alone."""
        start, text, end = message_events()
        self._ask(messages_body(), MESSAGES_PATH)
        # What comes before the first word may be held until that is there.
        self._answer(STREAM_HEAD + start + text, lambda data: b"text_delta" in data and _ends_an_event(data))
        for _ in range(events):
            self._answer(text, _ends_an_event)
        self._answer(end, lambda data: data.endswith(b"0\r\n\r\n"))

    def _ask(self, body: bytes, path: str = PATH) -> None:
        assert self._client is not None
        self._client.sendall(request(self._port, body, self.headers, path))
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        asked = select.select([self._listener, *self._providers], (), (), PATIENCE_S)[0][0]
        if asked is self._listener:
            asked, _ = self._listener.accept()
            asked.settimeout(PATIENCE_S)
        else:
            self._providers.remove(asked)
        self._providers.append(asked)
        _read(asked, lambda data: whole_body(data) is not None)

    def _answer(self, data: bytes, is_over: Callable[[bytes], bool]) -> None:
        assert self._client is not None
        self._providers[-1].sendall(data)
        received = _read(self._client, is_over)
        assert any(one in received for one in _OURS), received


def _ends_an_event(data: bytes) -> bool:
    return data.endswith(b"\n\n\r\n")


def _read(connection: socket.socket, is_over: Callable[[bytes], bool]) -> bytes:
    data = b""
    while not is_over(data):
        part = connection.recv(65536)
        assert part, f"cut off behind {data!r}"
        data += part
    return data
