"""One command of the store, the scripts that run inside the server, and the errors of a command without a reply.

Invariants: a command ends once, with a reply or an error; its future may be left unread; a script does only what its text
says, and two runs differ in keys and arguments only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

from hiredis import pack_command

Part = bytes | str | int | float

FOLDER = Path(__file__).parents[1] / "redis" / "lua"


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


class OperationCounts:
    """The number of commands sent, and of those that ended without a reply."""

    __slots__ = ("failures", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self.failures = 0


class StoreCommand:
    """One command and the future of its reply, which may be cancelled at any time: the reply is then read and discarded."""

    __slots__ = ("_tally", "deadline", "future", "home", "hops", "is_over", "key", "packed", "parts", "script")

    def __init__(
        self, parts: tuple[Part, ...], key: bytes, deadline: float, tally: OperationCounts, script: Script | None = None
    ) -> None:
        """Packs the command; raises redis's DataError when a part is none of bytes, str, int and float."""
        self.parts = parts
        self.packed = pack(parts)
        self.key = key
        """Selects server and connection, so that the commands of one key run in the order in which they were given."""
        self.deadline = deadline
        """The monotonic time by which the future is done."""
        self.script = script
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.home: object = None
        """The server that took it last."""
        self.is_over = False
        self.hops = 0
        """The number of times it was sent again: to another server, or with the script's text."""
        self._tally = tally

    @property
    def name(self) -> str:
        """Returns the name for log lines, without keys and arguments."""
        first = self.parts[0]
        return self.script.name if self.script else first.decode() if isinstance(first, bytes) else str(first)

    def answer(self, reply: Any) -> None:
        """Ends the command with the server's reply."""
        self.is_over = True
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: StoreGone) -> None:
        """Ends the command with an error."""
        if not self.is_over:
            self.is_over = True
            self._tally.failures += 1
            fail(self.future, error)

    def bring(self, text: bytes) -> None:
        """Turns EVALSHA into EVAL with the script's text, which the server then keeps."""
        self.packed = pack((b"EVAL", text, *self.parts[2:]))


def pack(parts: tuple[Part, ...]) -> bytes:
    """Returns the command in RESP; floats are written as by `repr`."""
    packed: bytes = pack_command(parts)  # type: ignore[arg-type]  # its hint allows one part only
    return packed


def fail(future: asyncio.Future[Any], error: StoreGone) -> None:
    """Sets the error, and reads it once so that asyncio does not log it as never retrieved."""
    if not future.done():
        future.set_exception(error)
        future.exception()
