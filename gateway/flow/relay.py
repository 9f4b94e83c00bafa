"""Relays: an answer's bytes on their way to the client, as they come.

`SseRelay` forwards whole events unparsed, strips the usage event that only the gateway asked for, and never lets a broken
stream look like a finished one. `RawRelay` forwards any other body. Both keep a tail of constant size to read usage from.
What ends a relay is told to its `on_end` callback exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from gateway.call import Call, Usage
from gateway.errors import ErrorClass, Phase, UpstreamFailed
from gateway.flow.accounting import CLIENT_GONE
from gateway.policy import sse
from gateway.policy.usage import find_usage
from gateway.ports import Answer, Upstream

TAIL_BLOCKS = 6
TAIL_BLOCK_BYTES = 8192
INTERNAL_ERROR = "internal_error"
OPENING_LIMIT = 65_536
"""Bytes of announcements held back while waiting for the first real event."""

OnEnd = Callable[[str, Usage | None, int], None]
"""Told once how a relay ended: outcome, usage if the provider said, output tokens estimated otherwise."""


class StreamBroken(Exception):
    """A raw body broke off: the client's connection has to break off too, so that it can see it."""


class SseRelay:
    """One event stream. Call `open` first; then iterate `chunks` once."""

    __slots__ = (
        "_answer",
        "_call",
        "_chunks",
        "_cutter",
        "_ended",
        "_events",
        "_held",
        "_strip",
        "_tail",
        "_upstream",
        "_usage",
    )

    def __init__(self, call: Call, upstream: Upstream, answer: Answer, *, strip_usage: bool) -> None:
        self._call = call
        self._upstream = upstream
        self._answer = answer
        self._strip = strip_usage
        self._chunks = answer.chunks
        self._cutter = sse.EventCutter()
        self._held = b""
        self._ended = False
        self._events = 0
        self._usage: Usage | None = None
        self._tail: deque[bytes] = deque(maxlen=TAIL_BLOCKS)

    async def open(self) -> dict[str, Any] | None:
        """Read up to the first real event; returns its error object when that event is an error.

        Raises UpstreamFailed when the stream ends or breaks before it: nothing reached the client, another target may try.
        """
        held = bytearray()
        try:
            async for chunk in self._chunks:
                block = self._cutter.feed(chunk)
                self._note(block)
                held += block
                for event in sse.split_events(block):
                    error = sse.error_in(event)
                    if error is not None:
                        return error
                    if not sse.is_opening(event):
                        self._held = bytes(held)
                        return None
                if len(held) > OPENING_LIMIT or self._cutter.inside:
                    self._held = bytes(held)
                    return None
        except self._upstream.errors as exc:
            raise self._upstream.failure(exc) from exc
        return self._ended_early(bytes(held))

    async def chunks(self, on_end: OnEnd, total_s: float, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """The stream from its first byte; ends with an error event when the provider's ended without its last event."""
        outcome = CLIENT_GONE
        ends_at = now() + total_s
        feed = self._cutter.feed
        strip = self._strip
        try:
            held, self._held = self._held, b""
            if strip:
                held = sse.without_usage_events(held)
            if held:
                yield held
            del held  # it may be large, and the stream long
            async for chunk in self._chunks:
                block = feed(chunk)
                if not block:
                    continue
                self._note(block)
                if strip:
                    block = sse.without_usage_events(block)
                if block:
                    yield block
                if now() > ends_at:
                    outcome = ErrorClass.TIMEOUT
                    yield self._error_event(f"the answer took longer than the total of {total_s:g} s", outcome)
                    return
            outcome, last = self._ending("the provider ended the stream before its last event", is_clean=True)
            if last:
                yield last
        except self._upstream.errors as exc:
            outcome, last = self._ending(self._upstream.failure(exc).detail)
            if last:
                yield last
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            raise
        except Exception:
            outcome = INTERNAL_ERROR
            raise
        finally:
            try:
                await self._answer.aclose()
            finally:
                on_end(outcome, self._usage or find_usage(b"".join(self._tail)), self._events)

    async def aclose(self) -> None:
        """Give up on the stream."""
        await self._answer.aclose()

    def _note(self, block: bytes) -> None:
        """Remember the end of a block: enough for usage and the last event, however long the stream."""
        self._events += 1
        self._tail.append(block[-TAIL_BLOCK_BYTES:])
        if self._call.endpoint.sse == "responses" and not self._ended:
            self._ended = sse.ends_response(block)
            if self._ended:
                self._usage = find_usage(block)  # much may follow it in the same event

    def _is_complete(self, tail: bytes, rest: bytes, *, is_clean: bool) -> bool:
        """Whether the stream has said its last; `is_clean`: the connection did not break. Three kinds of stream:

        1. Responses end with their own event. 2. Chats end with `[DONE]`; some providers leave it out, then a clean end behind
        a finish reason for every choice will do. 3. Others have no last event that we know: a clean end is all there is.
        """
        if self._cutter.inside:
            return False
        kind = self._call.endpoint.sse
        if kind == "responses":
            return self._ended or sse.ends_response(rest)
        return is_clean if kind == "other" else sse.ends_chat(tail + rest, self._choices() if is_clean else None)

    def _choices(self) -> int:
        asked = sse.json_object(self._call.body)
        count = asked.get("n") if asked is not None else None
        return count if isinstance(count, int) else 1

    def _ended_early(self, held: bytes) -> dict[str, Any] | None:
        """The stream ended without a real event: an error in plain JSON, a terminal event alone, or a failure."""
        rest = self._cutter.rest()
        error = sse.error_in(held + rest)
        if error is not None:
            return error
        if (held or rest) and self._is_complete(held, _unless_torn(rest), is_clean=True):
            self._note(rest)
            self._held = held + rest
            return None
        raise UpstreamFailed(ErrorClass.STREAM_INTERRUPTED, Phase.ANSWERED, "the stream ended before its first event")

    def _ending(self, why: str, *, is_clean: bool = False) -> tuple[str, bytes]:
        """How the stream ended, and the bytes that the client still gets: the rest of a good one, or an error event."""
        rest = self._cutter.rest()
        forwarded = b"".join(self._tail)
        if sse.has_error(forwarded):
            return "stream_error", b""  # the provider's own error event has reached the client
        if self._is_complete(forwarded, _unless_torn(rest), is_clean=is_clean):
            return "ok", sse.without_usage_events(rest) if self._strip else rest
        error = sse.error_in(rest)
        if error is not None:
            why = str(error.get("message", why))
        return ErrorClass.STREAM_INTERRUPTED, self._error_event(why, ErrorClass.STREAM_INTERRUPTED)

    def _error_event(self, message: str, code: str) -> bytes:
        event = sse.response_error if self._call.endpoint.sse == "responses" else sse.chat_error
        return (b"\n\n" if self._cutter.inside else b"") + event(message, code)


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

    async def chunks(self, on_end: OnEnd, total_s: float, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """The body; raises StreamBroken when it breaks off."""
        outcome: str = CLIENT_GONE
        ends_at = now() + total_s
        length = 0
        tail = b""
        try:
            if self._first:
                length, tail = len(self._first), self._first[-TAIL_BLOCK_BYTES:]
                yield self._first
            async for chunk in self._chunks:
                length += len(chunk)
                tail = (tail + chunk)[-TAIL_BLOCK_BYTES:]
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


def _unless_torn(rest: bytes) -> bytes:
    """An unfinished event, if nothing but its blank line is missing: a torn one ends nothing."""
    data = sse.event_data(rest)
    return rest if data.strip() == b"[DONE]" or sse.json_object(data) is not None else b""


async def read_whole(upstream: Upstream, answer: Answer, limit: int) -> tuple[bytes, bool]:
    """The answer's body up to `limit` bytes, and whether that is all of it; closes the answer when it is.

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
