"""Bodies that are no event streams: forwarded as they come, or read whole. And what all relays have in common.

Neither keeps more of a body than its end, to read usage from. What ends a relay is told to its `on_end` callback exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from gateway.errors import ErrorClass
from gateway.exchange import Answer, Clocks, Upstream
from gateway.flow.settle import CLIENT_GONE
from gateway.policy.openai.usage import find_usage
from gateway.words import Usage

RAW_TAIL_BYTES = 8192
INTERNAL_ERROR = "internal_error"

OnEnd = Callable[[str, Usage | None, int], None]
"""Told once how a relay ended: outcome, usage if the provider said, output tokens estimated otherwise."""


class StreamBroken(Exception):
    """A raw body broke off: the client's connection has to break off too, so that it can see it."""


class RawRelay:
    """Any other body: forwarded as it comes."""

    __slots__ = ("_answer", "_chunks", "_count_tokens", "_first", "_upstream")

    def __init__(self, upstream: Upstream, answer: Answer, first: bytes = b"", *, count_tokens: bool = False) -> None:
        self._upstream = upstream
        self._answer = answer
        self._first = first
        self._chunks = answer.chunks
        self._count_tokens = count_tokens

    async def aclose(self) -> None:
        """Give up on the body."""
        await self._answer.aclose()

    async def chunks(self, on_end: OnEnd, clocks: Clocks, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """The body; raises StreamBroken when it breaks off."""
        outcome: str = CLIENT_GONE
        ends_at = now() + clocks.total_s
        length = 0
        tail = b""
        try:
            if self._first:
                length, tail = len(self._first), self._first[-RAW_TAIL_BYTES:]
                yield self._first
            async for chunk in self._chunks:
                length += len(chunk)
                tail = (tail + chunk)[-RAW_TAIL_BYTES:]
                yield chunk
                if now() > ends_at:
                    outcome = ErrorClass.TIMEOUT
                    raise StreamBroken("the answer took longer than its total time")
            outcome = "ok"
        except self._upstream.errors as exc:
            outcome = ErrorClass.STREAM_INTERRUPTED
            raise StreamBroken(self._upstream.failure(exc).detail) from exc
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            raise
        except Exception as exc:
            if not isinstance(exc, StreamBroken):
                outcome = INTERNAL_ERROR
            raise
        finally:
            try:
                await self._answer.aclose()
            finally:
                usage = find_usage(tail) if self._count_tokens else None
                on_end(outcome, usage, length // 4 if self._count_tokens else 0)


def why_stopped(stopped: asyncio.CancelledError) -> str:
    """The outcome of a call that was cancelled: its client left, unless whoever cancelled it says otherwise."""
    return str(stopped.args[0]) if stopped.args and stopped.args[0] else CLIENT_GONE


async def read_whole(
    upstream: Upstream, answer: Answer, limit: int, heard: Callable[[], None] | None = None
) -> tuple[bytes, bool]:
    """The answer's body up to `limit` bytes, and whether that is all of it; closes the answer when it is.

    `heard` is told of each part that comes.

    Raises UpstreamFailed when the body breaks off.
    """
    if answer.whole is not None:
        return answer.whole, True
    parts: list[bytes] = []
    length = 0
    try:
        async for chunk in answer.chunks:
            parts.append(chunk)
            length += len(chunk)
            if heard is not None:
                heard()
            if length > limit:
                return b"".join(parts), False
    except upstream.errors as exc:
        await answer.aclose()
        raise upstream.failure(exc) from exc
    except BaseException:
        await answer.aclose()
        raise
    await answer.aclose()
    return parts[0] if len(parts) == 1 else b"".join(parts), True
