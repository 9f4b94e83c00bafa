"""One command of the store, the scripts that run inside the server, and the errors of a command without a reply.

Invariants: a command ends once, with a reply or an error; its future may be left unread; a script does only what its text
says, and two runs differ in keys and arguments only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

from hiredis import pack_command

Part = bytes | str | int | float

GRACE_S = 0.002
"""Seconds after a deadline in which a reply that arrived while this process was busy is still read."""
FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with the prelude in front, which the server runs atomically."""

    name: str
    text: bytes
    sha: bytes
    """The digest by which EVALSHA names it once the server has seen the text."""


def load_script(name: str) -> Script:
    """Returns the script in `lua/<name>.lua`."""
    return script_of(name, (FOLDER / f"{name}.lua").read_text())


def script_of(name: str, body: str) -> Script:
    """Returns a script of the given text, for one that has no file of its own."""
    text = ((FOLDER / "prelude.lua").read_text() + body).encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


class StoreGone(Exception):
    """The store did not answer in time, or is known to be gone; the message says why."""


class StoreRefused(StoreGone):
    """The store rejected this one command; others work."""


class NoReply(StoreGone):
    """The command was sent, and its answer did not come: it may have been carried out, or be so yet."""


class OperationCounts:
    """The number of commands sent, of those that ended without a reply, and of connections made for them."""

    __slots__ = ("connections", "failures", "operations")

    def __init__(self) -> None:
        self.connections = 0
        self.operations = 0
        self.failures = 0


class StoreCommand:
    """One command and the future of its reply, which may be cancelled at any time: the reply is then read and discarded."""

    __slots__ = (
        "_tally",
        "_timer",
        "future",
        "hops",
        "is_over",
        "is_quiet",
        "key",
        "late",
        "packed",
        "parts",
        "script",
        "stays",
    )

    def __init__(
        self,
        parts: tuple[Part, ...],
        key: bytes = b"",
        tally: OperationCounts | None = None,
        script: Script | None = None,
    ) -> None:
        """Packs the command; raises redis's DataError when a part is none of bytes, str, int and float."""
        self.parts = parts
        self.packed = pack(parts)
        self.key = key
        """Selects server and connection, so that the commands of one key run in the order in which they were given."""
        self.script = script
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.late: Callable[[StoreCommand], None] | None = None
        """Is called when the deadline has passed; None: no server has taken the command yet."""
        self.is_over = False
        self.hops = 0
        """The number of times it was sent again: to another server, or with the script's text."""
        self.stays = False
        """It is for one connection, and sent nowhere else."""
        self.is_quiet = False
        """Whoever sent it tells of its refusal."""
        self._tally = tally
        self._timer: asyncio.TimerHandle | None = None

    def expire_after(self, timeout_s: float) -> None:
        """Sets the deadline: the command ends by then, wherever it is."""
        if not self.is_over:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._allow_grace)

    def _allow_grace(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._expire)

    def _expire(self) -> None:
        if self.late is not None:
            self.late(self)

    @property
    def name(self) -> str:
        """Returns the name for log lines, without keys and arguments."""
        first = self.parts[0]
        return self.script.name if self.script else first.decode() if isinstance(first, bytes) else str(first)

    def answer(self, reply: Any) -> None:
        """Ends the command with the server's reply."""
        self._end()
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: StoreGone) -> None:
        """Ends the command with an error."""
        if not self.is_over:
            self._end()
            if self._tally is not None and self.late is not None:  # without a server it counts as no operation
                self._tally.failures += 1
            if not self.future.done():
                self.future.set_exception(error)
                self.future.exception()  # is read once, so that asyncio does not log it as never retrieved

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def bring(self, text: bytes) -> None:
        """Turns EVALSHA into EVAL with the script's text, which the server then keeps."""
        self.packed = pack((b"EVAL", text, *self.parts[2:]))


def pack(parts: tuple[Part, ...]) -> bytes:
    """Returns the command in RESP; floats are written as by `repr`."""
    packed: bytes = pack_command(parts)  # type: ignore[arg-type]  # its hint allows one part only
    return packed
