"""What the supervisor and its workers share: a channel for each worker, its place with its listeners, and one call log.

In this order. A channel carries JSON objects, one per line, over a pair of sockets. `Channel` is the supervisor's end,
which never blocks: it has no loop, and a worker that has stopped reading must not stop the others. The worker's end is an
asyncio stream. Either side learns from the end of the stream that the other has died.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from gateway.core.errors import ConfigError
from gateway.core.http.server import listen_on
from gateway.core.snapshot import PolicySnapshot
from gateway.drivers.durability import JOB_SETTINGS
from gateway.settings import Settings

# --- Channels ---


PIECE_BYTES = 262_144
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Unread bytes after which a worker gets no more messages."""

STACK_SIGNAL = signal.SIGUSR2
"""The signal that makes a worker write the stack of each of its threads to standard error, wherever it hangs."""

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
        """Returns whether some message waits for the worker to read, and for `flush`."""
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


# --- Places: each worker's process and listeners; and whether several workers are possible at all ---


@dataclass(eq=False, slots=True)
class ListenerPlace:
    """The place of one worker: its process, if any, and the time at which it started or the next one is due.

    Each place has a listener of its own on every port, all on the same address (SO_REUSEPORT), because there the kernel
    spreads connections evenly; with one listener for all, measured with four workers and 100 connections, one worker got 0
    to 2. The supervisor keeps the listeners open: a worker that dies takes no waiting connection with it, and another
    worker can accept from its listener. Where the kernel does not spread connections (anything but Linux), all share one
    listener.
    """

    number: int
    listeners: list[socket.socket]
    pid: int = 0
    """The worker's process id; 0: the place is empty."""
    channel: Channel | None = None
    """The channel to the worker; None: the place is empty, or its worker will end soon."""
    is_ready: bool = False
    changed_at: float = 0.0
    """The monotonic time at which the worker started, or the next one is due."""
    deaths: int = 0
    """The deaths in a row, without a steady run in between."""
    tended: list[int] = field(default_factory=list)
    """The other places from whose listeners this worker accepts."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to the worker, if there is one."""
        if self.channel is not None:
            self.channel.send(message)

    @property
    def url(self) -> str:
        """Returns the URL at which the worker listens for calls."""
        host, port = self.listeners[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def require_shared(settings: Settings, policy: PolicySnapshot, workers: int) -> None:
    """Raises ConfigError unless so many workers can share their state."""
    if workers > 1 and policy.shared is None:
        kind = policy.state.partition(":")[0]
        raise ConfigError(
            [
                f"{settings.config}: state: {workers} workers need one that they can share, and {kind!r} is none: each of them"
                " would allow itself the whole of every limit. Set state: redis://HOST:PORT, or run with --workers 1"
            ]
        )
    if workers > 1 and JOB_SETTINGS.of(policy).store:
        raise ConfigError(
            [
                f"{settings.config}: jobs.store: one process alone can have the file, not {workers} workers; leave it out,"
                " so that jobs are in the Redis, or run with --workers 1"
            ]
        )


def places(settings: Settings, policy: PolicySnapshot) -> list[ListenerPlace]:
    """Returns one place per worker, with its listener on each port of the policy. Raises OSError for a taken port."""
    server = policy.server
    port = server.port if settings.port is None else settings.port
    addresses = [(settings.host or server.host, port), *([server.admin_listen] if server.admin_listen else [])]
    by_port = [_share(host, port, settings.workers) for host, port in addresses]
    return [ListenerPlace(number + 1, [ports[number] for ports in by_port]) for number in range(settings.workers)]


def deals_out() -> bool:
    """Returns whether the kernel spreads connections over the listeners of one port."""
    return sys.platform == "linux"


def _share(host: str, port: int, count: int) -> list[socket.socket]:
    """Returns `count` listeners on one port; it is bound alone first, so that it is not shared with another gateway."""
    alone = listen_on(host, port)
    if not deals_out():
        return [alone] * count
    port = alone.getsockname()[1]
    alone.close()
    return [listen_on(host, port, reuse_port=True) for _ in range(count)]


# --- The call log, which all workers write to standard output ---


class LockedLog:
    """A stream whose writer takes a lock first; `lock` is the descriptor of `make_lock`, which all workers share.

    Whole batches are written, one worker at a time: a batch is longer than the bytes that a pipe takes atomically, so
    without a lock the lines of workers would be mixed. A process that dies releases the lock.
    """

    def __init__(self, stream: TextIO, lock: int) -> None:
        self._stream = stream
        self._lock = lock

    def write(self, text: str) -> int:
        """Writes and flushes the text."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            self._stream.write(text)
            self._stream.flush()
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
        return len(text)

    def flush(self) -> None:
        """Does nothing: `write` flushes."""


def make_lock() -> int:
    """Returns the descriptor of an unnamed file, whose lock the processes that inherit it take in turn."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gateway-log")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
