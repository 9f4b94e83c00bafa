"""Bodies that are no event streams: forwarded as they come, or read whole. Also the parts that all relays share.

Of a forwarded body only the end is kept, to read usage from. A relay's `on_end` callback is called exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from gateway.core.ledger.settle import CLIENT_GONE, INTERNAL_ERROR, why_stopped
from gateway.core.openai.usage.usage import find_usage
from gateway.core.types.exchange import Answer, Clocks, Upstream
from gateway.core.types.provider_errors import ErrorClass
from gateway.core.types.words import Usage

RAW_TAIL_BYTES = 8192

OnEnd = Callable[[str, Usage | None, int], None]
"""Called once when a relay ends, with the outcome, the provider's usage if it sent any, and the output tokens estimated."""


class StreamBroken(Exception):
    """A body broke off: the client's connection has to break off too, so that the client can see it."""


class RawRelay:
    """Forwards a body that is no event stream, as it comes."""

    __slots__ = ("_answer", "_chunks", "_count_tokens", "_first", "_upstream")

    def __init__(self, upstream: Upstream, answer: Answer, first: bytes = b"", *, count_tokens: bool = False) -> None:
        self._upstream = upstream
        self._answer = answer
        self._first = first
        self._chunks = answer.chunks
        self._count_tokens = count_tokens

    @property
    def answer(self) -> Answer:
        """Returns the answer whose body it is."""
        return self._answer

    async def aclose(self) -> None:
        """Stops reading the body, and closes it."""
        await self._answer.aclose()

    async def chunks(self, on_end: OnEnd, clocks: Clocks, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """Yields the body; raises StreamBroken when it breaks off."""
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


async def read_whole(
    upstream: Upstream, answer: Answer, limit: int, heard: Callable[[], None] | None = None
) -> tuple[bytes, bool]:
    """Reads the body up to `limit` bytes; returns it, and whether that is all of it. A body read to its end is closed.

    `heard` is called for each part that comes.

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
