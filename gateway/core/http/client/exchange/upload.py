"""Request bodies that take more than one write: long ones, and those that come as a stream.

An upload is a task beside the exchange. It knows nothing of answers. Invariant: it tells `uploaded` exactly once how it went,
unless it is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import httpx

from gateway.core.http.client.exchange.wire import EncodedRequest
from gateway.core.types.splice import pieces_of

PIECE_BYTES = 64 * 1024
"""A longer request body is written in pieces, each within the write timeout."""


class Uplink(Protocol):
    """The connection that an upload writes to."""

    @property
    def takes_more(self) -> bool:
        """Whether the socket takes bytes now."""
        ...

    def write(self, data: bytes) -> None: ...
    def gave_sign(self) -> None:
        """The provider has taken what was written to it."""
        ...

    def uploaded(self, error: BaseException | None) -> None:
        """The body has been written, or cannot be."""
        ...


class Upload:
    """One body on its way."""

    __slots__ = ("_drained", "_is_stopped", "_link", "_task")

    def __init__(self, link: Uplink, outgoing: EncodedRequest) -> None:
        self._link = link
        self._drained: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(outgoing))
        self._task.add_done_callback(self._ended)

    def go_on(self) -> None:
        """The socket takes bytes again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def stop(self) -> None:
        """Write no more; nobody is told."""
        self._is_stopped = True
        self._task.cancel()

    async def _run(self, outgoing: EncodedRequest) -> None:
        link, written, length = self._link, 0, outgoing.length
        async for piece in _pieces(outgoing):
            written += len(piece)
            if length is None and outgoing.stream is not None:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            elif length is not None and written > length:
                raise httpx.LocalProtocolError(f"the request's body is longer than the {length} bytes it declared")
            link.write(piece)
            if not link.takes_more:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
                link.gave_sign()
        if length is None and outgoing.stream is not None:
            link.write(b"0\r\n\r\n")
        elif length is not None and written < length:
            raise httpx.LocalProtocolError(f"the request's body ended {length - written} bytes early")

    def _ended(self, task: asyncio.Task[None]) -> None:
        cancelled = httpx.WriteError("the request's body was cancelled by its source")
        error = (
            cancelled if task.cancelled() else task.exception()
        )  # looked at in any case: else it is reported as lost
        if not self._is_stopped:
            self._link.uploaded(error)


async def _pieces(outgoing: EncodedRequest) -> AsyncIterator[bytes]:
    if outgoing.body is not None:
        for piece in pieces_of(outgoing.body, PIECE_BYTES):
            yield piece
    elif outgoing.stream is not None:
        async for piece in outgoing.stream:
            if piece:  # an empty chunk would end the body
                yield piece
