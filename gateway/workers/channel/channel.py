"""The channel between the supervisor and one worker: JSON objects, one per line, over a pair of sockets.

This is the supervisor's end, which never blocks: it has no loop, and a worker that has stopped reading must not stop the
others. The worker's end is an asyncio stream. Either side learns from the end of the stream that the other has died.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

PIECE_BYTES = 262_144
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Unread bytes after which a worker gets no more messages."""

Message = dict[str, Any]


class Channel:
    """The supervisor's end of a channel."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._received = bytearray()
        self._unsent = bytearray()
        self.has_ended = False
        """The worker has closed its end, or died."""

    @property
    def has_unsent(self) -> bool:
        """Tells whether some message waits for the worker to read, and for `flush`."""
        return bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends the message as soon as the worker reads."""
        if len(self._unsent) < MOST_UNREAD_BYTES:
            self._unsent += pack(message)
        self.flush()

    def flush(self) -> None:
        """Sends the bytes that the worker takes now."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # it has died, of which the one that waits for its end will hear
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """Returns all messages that have arrived."""
        try:
            while piece := self.socket.recv(PIECE_BYTES):
                self._received += piece
            self.has_ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.has_ended = True
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Closes the channel, so that the worker reads its end."""
        self.socket.close()


def pack(message: Mapping[str, Any]) -> bytes:
    """Returns a message as one line of JSON; unlike orjson's, its numbers may be infinite."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
