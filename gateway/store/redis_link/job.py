"""One thing asked of the store, and what its asker is told when there is no answer.

Invariants: a job is over once, with an answer or without; nobody has to look at how it ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hiredis import pack_command

from gateway.store.redis_link.script import Script

Part = bytes | str | int | float


class StoreGone(Exception):
    """The store did not answer in time, or is known to be gone; the message says why."""


class StoreRefused(StoreGone):
    """It answered, but could not do this one thing; others it can."""


class OperationCounts:
    """What was asked, and what of it has remained without an answer."""

    __slots__ = ("failures", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self.failures = 0


class StoreCommand:
    """The future may be cancelled at any time: the reply is read all the same, and thrown away."""

    __slots__ = ("_tally", "deadline", "future", "home", "hops", "is_over", "key", "packed", "parts", "script")

    def __init__(
        self, parts: tuple[Part, ...], key: bytes, deadline: float, tally: OperationCounts, script: Script | None = None
    ) -> None:
        """Raises what packing does when a part is none of bytes, str, int and float."""
        self.parts = parts
        self.packed = pack(parts)
        self.key = key
        """Decides who is asked; those of one key are carried out in the order in which they were asked for."""
        self.deadline = deadline
        """By the monotonic clock."""
        self.script = script
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.home: object = None
        """Who has taken it on, at last."""
        self.is_over = False
        self.hops = 0
        """How often it was sent again: to another server, or with the script's text."""
        self._tally = tally

    @property
    def name(self) -> str:
        """For a log line; no keys, no arguments."""
        first = self.parts[0]
        return self.script.name if self.script else first.decode() if isinstance(first, bytes) else str(first)

    def answer(self, reply: Any) -> None:
        """This is what the server said."""
        self.is_over = True
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: StoreGone) -> None:
        """There is no answer."""
        if not self.is_over:
            self.is_over = True
            self._tally.failures += 1
            fail(self.future, error)

    def bring(self, text: bytes) -> None:
        """From now on it brings the script's text along, which the server then keeps."""
        self.packed = pack((b"EVAL", text, *self.parts[2:]))


def pack(parts: tuple[Part, ...]) -> bytes:
    """As the server reads it; floats as `repr` says them."""
    packed: bytes = pack_command(parts)  # type: ignore[arg-type]  # its hint allows one part only
    return packed


def fail(future: asyncio.Future[Any], error: StoreGone) -> None:
    """An error that nobody asks for is not told of."""
    if not future.done():
        future.set_exception(error)
        future.exception()
