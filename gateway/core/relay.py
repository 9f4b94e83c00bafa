"""The relay of an answer: its bytes on their way to the client, as they come.

`RawRelay` forwards bodies that are no event streams; `read_whole` reads one instead. `SseRelay` forwards whole events, and
never lets a broken stream look like a finished one. What its events mean is decided in `openai/`; it keeps no more of an answer
than its end. A relay calls its `on_end` exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, cast

from gateway.core.call import Call
from gateway.core.ledger import CLIENT_GONE, INTERNAL_ERROR, why_stopped
from gateway.core.openai import sse
from gateway.core.openai.sse import FirstEventKind, StreamClock, first_error, first_word
from gateway.core.openai.transcript import MOST_SAMPLES, NULL_USAGE, STREAM_ERROR, Failure, Transcript
from gateway.core.openai.usage import LONGEST_ANSWER, find_usage
from gateway.core.types import (
    Answer,
    Clocks,
    ErrorClass,
    PassthroughChunks,
    Phase,
    ReportsUsage,
    Upstream,
    UpstreamFailed,
    Usage,
)

RAW_TAIL_BYTES = 8192
"""The bytes kept of a forwarded body's end, to read usage from."""

OnEnd = Callable[[str, Usage | None, int], None]
"""Called once when a relay ends, with the outcome, the provider's usage if it sent any, and the output tokens estimated of what
has come; 0 where the usage is of all of it."""


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

    def account(self) -> tuple[Usage | None, int]:
        """Returns the usage and the estimated tokens of what has come, as `OnEnd` gets them."""
        if not self._count_tokens:
            return None, 0
        return find_usage(self._first[-RAW_TAIL_BYTES:]), len(self._first) // 4

    def change(self, change: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]) -> None:
        """Lets `change` write the body anew on its way."""
        self._chunks, self._first = change(_after(self._first, self._chunks)), b""

    async def aclose(self) -> None:
        """Stops reading the body, and closes it."""
        await self._answer.aclose()

    async def chunks(self, on_end: OnEnd, clocks: Clocks, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """Yields the body; raises StreamBroken when it breaks off."""
        # A client that leaves closes this generator: then only `finally` runs, and this outcome stands.
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
            # An answer that cannot be closed must not leave its account open.
            finally:
                usage = find_usage(tail) if self._count_tokens else None
                on_end(outcome, usage, length // 4 if self._count_tokens else 0)


async def _after(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


async def read_whole(
    upstream: Upstream, answer: Answer, limit: int, on_chunk: Callable[[], None] | None = None
) -> tuple[bytes, bool]:
    """Reads the body up to `limit` bytes; returns it, and whether that is all of it. A body read to its end is closed.

    `on_chunk` is called for each part that comes.

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
            if on_chunk is not None:
                on_chunk()
            if length > limit:
                # The body stays open here: whoever reads it relays the rest, or closes it.
                return b"".join(parts), False
    except upstream.errors as exc:
        await answer.aclose()
        raise upstream.failure(exc) from exc
    except BaseException:
        # A reader that is cancelled would leave the connection open.
        await answer.aclose()
        raise
    await answer.aclose()
    return parts[0] if len(parts) == 1 else b"".join(parts), True


OPENING_LIMIT = 65_536
"""Bytes of announcements held back while waiting for the first real event."""
HELD_UP_S = 0.005
"""A client that takes a part within this has not held its stream up: it is our own work, of which a flood makes much."""


class SseRelay:
    """One event stream. Call `open` first; then iterate `chunks` once."""

    __slots__ = (
        "_answer",
        "_call",
        "_chunks",
        "_count",
        "_cutter",
        "_first",
        "_held",
        "_look_at",
        "_now",
        "_strips",
        "_transcript",
        "_upstream",
        "_write",
        "paused_s",
    )

    def __init__(self, call: Call, upstream: Upstream, answer: Answer, *, strip_usage: bool) -> None:
        self._call = call
        self._upstream = upstream
        self._answer = answer
        self._chunks = answer.chunks
        self._cutter = sse.EventCutter()
        self._strips = strip_usage
        self._transcript = Transcript(
            call.request.endpoint.shape.stream, strips_usage=strip_usage, headers=call.request.headers
        )
        self._held = b""
        self._first = b""
        self._look_at = 0.0
        """When the stream's clock is to be looked at again; before the stream has begun, at once."""
        self._now: Callable[[], float] = _never
        self._write: Callable[[bytes], bool] | None = None
        self._count: Callable[[], None] = _count_nothing
        """Counts the events that `chunks` did not see."""
        self.paused_s = 0.0
        """How long, when it has ended, the provider had to wait for a client that did not read."""

    async def open(self, on_chunk: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Read up to the first real event; returns its error object when that event is an error. `on_chunk` is told
        of each piece that comes before it.

        Raises UpstreamFailed when the stream ends, breaks or makes no sense before it: nothing reached the client, another
        target may try.
        """
        held = bytearray()
        try:
            async for chunk in self._chunks:
                block = self._cutter.feed(chunk)
                # The mark can only stand at the very start of a stream.
                if not held:
                    block = block.removeprefix(sse.BYTE_ORDER_MARK)
                for event in sse.split_events(block):
                    error = first_error(event)
                    if error is not None:
                        return error
                    if not self._announces(event):
                        self._held, self._first = bytes(held), block
                        return None
                held += block
                if len(held) > OPENING_LIMIT:
                    # Announcements may go on for ever, so from here on the stream passes as it is.
                    self._held = bytes(held)
                    return None
                if on_chunk is not None:
                    on_chunk()
        except self._upstream.errors as exc:
            raise self._upstream.failure(exc) from exc
        return self._ended_early(bytes(held))

    async def chunks(self, on_end: OnEnd, clocks: Clocks, now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """The stream from its first byte; ends with an error event when the provider's ended without its last event.

        Raises StreamBroken where that cannot be said any more, in the middle of an event too long to be held back.
        """
        transcript, cutter, strips = self._transcript, self._cutter, self._strips
        paused_s = 0.0
        outcome: str = CLIENT_GONE
        try:
            pace = StreamClock(clocks, now())
            self._now, self._look_at = now, pace.look_at
            block, is_plain = self._begin(), transcript.is_plain
            # `pass_on` may have come before the clock was known, and has left the tap to this line.
            if self._write is not None and not transcript.is_over:
                self._tap(self._write, now)
            if block:
                yield block
            del block  # it may be large, and the stream long
            async for chunk in self._chunks if transcript.failure is None else _nothing():
                # After a part of an event even a plain chunk is only that event's next part.
                if cutter.is_idle and is_plain(chunk):
                    transcript.pass_plain(chunk)
                    given_at = now()
                    yield chunk.replace(NULL_USAGE, b"") if strips else chunk
                elif block := cutter.feed(chunk):
                    del chunk  # a client that stops reading would keep it beside the block
                    block = transcript.read(block, is_part=cutter.inside)
                    is_plain = transcript.is_plain
                    if transcript.is_over:
                        # What follows the last event must not pass unread.
                        self._untap()
                    given_at = now()
                    if block:
                        yield block
                    if transcript.failure is not None:
                        # `_ending` writes the error event; what the provider may still send is not wanted.
                        break
                else:
                    # No event is whole yet: nothing was given, so no client was slow.
                    given_at = now()
                left_at = now()
                if left_at - given_at > HELD_UP_S:
                    paused_s += left_at - given_at
                if left_at > self._look_at:
                    # The tap counts events by itself, and the clock has to see those, too.
                    self._count()
                    late = pace.look(left_at, transcript.plain + transcript.events, paused_s)
                    if late is not None and not transcript.is_over:
                        outcome = ErrorClass.TIMEOUT
                        yield self._last_event(late, outcome)
                        # The client has its error event; `finally` hangs up on the provider.
                        return
                    self._look_at = pace.look_at
            # Set before `_ending`, which may raise: StreamBroken must not count as a client that has left.
            outcome = ErrorClass.STREAM_INTERRUPTED
            outcome, last = self._ending("the provider ended the stream before its last event", is_clean=True)
            if last:
                yield last
        except self._upstream.errors as exc:
            outcome = ErrorClass.STREAM_INTERRUPTED
            outcome, last = self._ending(self._upstream.failure(exc).detail)
            if last:
                yield last
        except StreamBroken:
            # Whoever raised it has set the outcome, which the branch for defects would change.
            raise
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            raise
        except Exception:
            outcome = INTERNAL_ERROR
            raise
        finally:
            self.paused_s = paused_s
            self._untap()
            try:
                await self._answer.aclose()
            finally:
                if transcript.is_over and transcript.failure is None and outcome != INTERNAL_ERROR:
                    outcome = "ok"  # whoever left, or was late, has missed nothing
                on_end(outcome, *self.account())

    def _begin(self) -> bytes:
        """Return what came before the client asked for anything, read."""
        held, first, self._held, self._first = self._held, self._first, b"", b""
        return self._transcript.read(held) + self._transcript.read(first, is_part=self._cutter.inside)

    def account(self) -> tuple[Usage | None, int]:
        """The usage that the provider has reported, and the estimated tokens of what has come, as `OnEnd` gets them."""
        if self._held or self._first:  # nobody has asked for the first chunk
            self._begin()
        usage, tokens = self._transcript.account()
        if self._transcript.is_over or not isinstance(self._answer, ReportsUsage):
            return usage, tokens
        reported, is_of_all = self._answer.reported()
        if reported is None:
            return usage, tokens
        return reported, 0 if is_of_all and 0 < reported.output <= LONGEST_ANSWER else tokens

    def pass_on(self, write: Callable[[bytes], bool]) -> None:
        """Let plain events go straight to `write` while `chunks` waits for the next, as `Reply.pass_on` tells.

        Where the provider's connection cannot do that, all of them come out of `chunks`.
        """
        if isinstance(self._chunks, PassthroughChunks):
            self._write = write
            if self._now is not _never and not self._transcript.is_over:
                self._tap(write, self._now)

    @property
    def response_id(self) -> object:
        """Returns the id that a stream of Responses has named, if any."""
        return self._transcript.response_id

    @property
    def usage_event(self) -> bytes:
        """The event with the usage that the client did not ask for, when the stream has ended; empty: there was none."""
        return self._transcript.usage_event

    async def aclose(self) -> None:
        """Give up on the stream."""
        self._untap()
        await self._answer.aclose()

    def _tap(self, write: Callable[[bytes], bool], now: Callable[[], float]) -> None:
        """Let events go straight to `write` that a turn of `chunks` would only have passed on; others have to be read there.

        Each event of each stream comes by, so it is as quick as it can be, and counts by itself (as `Transcript.pass_plain`).
        """
        transcript, cutter, strips = self._transcript, self._cutter, self._strips
        is_plain, samples = transcript.is_plain, transcript.samples
        events, size, most = 0, 0, transcript.step
        left = most

        def take(event: bytes) -> bool:
            nonlocal events, size, most, left
            if not cutter.is_idle or not is_plain(event) or now() > self._look_at:
                return False
            if not write(event.replace(NULL_USAGE, b"") if strips else event):
                return False
            transcript.last_plain = event
            size += len(event)
            left -= 1
            if not left:
                samples.append(event)
                if len(samples) > MOST_SAMPLES:
                    transcript.thin_out()
                events += most
                left = most = transcript.step
            return True

        def count() -> None:
            nonlocal events, size, most, left
            transcript.plain += events + most - left
            transcript.plain_bytes += size
            # The present step goes on with what is left of it, so no event counts twice.
            events, size, most = 0, 0, left

        if isinstance(self._chunks, PassthroughChunks):
            self._chunks.on_block, self._count = take, count

    def _untap(self) -> None:
        """Let go of the client and of the provider's connection, which lead back to here."""
        self._write = None
        # The counter holds events of its own, which would be lost with it.
        self._count()
        self._count = _count_nothing
        if isinstance(self._chunks, PassthroughChunks):
            self._chunks.on_block = None

    def _announces(self, event: bytes) -> bool:
        """Whether a failure may still follow this event unseen. Raises UpstreamFailed when it is nonsense."""
        # Only the beginning of a very long event is here, which no parser takes.
        if self._cutter.inside:
            word = FirstEventKind.SOMETHING if sse.event_data(event).startswith(b"{") else FirstEventKind.NONSENSE
        else:
            word = first_word(event)
        if word is FirstEventKind.DONE:
            raise _malformed("the provider ended the stream without having said anything")
        if word is FirstEventKind.NONSENSE:
            raise _malformed("the provider's first event is not JSON")
        return word is FirstEventKind.NOTHING

    def _ended_early(self, held: bytes) -> dict[str, Any] | None:
        """The stream ended without a real event: an error in plain JSON, a last event that lacks its end, or a failure."""
        rest = self._cutter.rest()
        rest = rest if held else rest.removeprefix(sse.BYTE_ORDER_MARK)
        error = first_error(rest)
        if error is not None:
            return error
        if sse.is_whole(rest):
            if not self._announces(rest):
                # Clients ignore an event without the blank line that the provider has left out.
                self._held, self._first = held, rest + b"\n\n"
                return None
        elif rest.lstrip().startswith((b"<", b"{", b"[")):
            # A page, or JSON that is no error, stands where events belong.
            raise _malformed("the provider's stream is none")
        raise UpstreamFailed(ErrorClass.STREAM_INTERRUPTED, Phase.ANSWERED, "the stream ended before its first event")

    def _ending(self, why: str, *, is_clean: bool = False) -> tuple[str, bytes]:
        """How the stream ended, and the bytes that the client still gets: the rest of a good one, or an error event."""
        transcript = self._transcript
        rest = self._cutter.rest() if transcript.failure is None else b""
        last = transcript.read(rest + b"\n\n") if sse.is_whole(rest) and not transcript.is_inside else b""
        if transcript.failure is None and not transcript.is_over and sse.error_in(transcript.last_plain) is not None:
            transcript.failure = Failure(STREAM_ERROR)  # it looked like any other event, and the client has it
        if transcript.failure is not None:
            if transcript.is_inside:
                raise StreamBroken(why)
            return transcript.failure.outcome, last + transcript.failure.event
        error = None if transcript.is_over else sse.error_in(rest)
        if error is None and transcript.is_complete(self._choices, is_clean=is_clean):
            return "ok", last
        if error is not None:
            why = str(error.get("message", why))
        return ErrorClass.STREAM_INTERRUPTED, last + self._last_event(why, ErrorClass.STREAM_INTERRUPTED)

    def _choices(self) -> int:
        if self._call.request.large is not None:
            return self._call.request.large.choices
        count = self._call.request.endpoint.shape.choices_wanted(sse.json_object(self._call.request.body) or {})
        return count if isinstance(count, int) and count > 0 else 1

    def _last_event(self, why: str, code: str) -> bytes:
        """An error event. Raises StreamBroken inside an event: the client could not tell where that ends."""
        if self._transcript.is_inside:
            raise StreamBroken(why)
        return self._transcript.error_event(why, code)


def _malformed(detail: str) -> UpstreamFailed:
    return UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, detail)


def _never() -> float:
    return inf


def _count_nothing() -> None:
    return None


async def _nothing() -> AsyncIterator[bytes]:
    for chunk in cast("tuple[bytes, ...]", ()):
        yield chunk


# --- a stream that has grown too long to be held back: what came is given, and the rest as it comes ---


@dataclass(slots=True)
class HeldEnd:
    """How a stream has ended; `None` in `outcome`: it has not."""

    outcome: str | None = None
    usage: Usage | None = None
    tokens: int = 0
    on_end: OnEnd | None = None

    def __call__(self, outcome: str, usage: Usage | None, tokens: int) -> None:
        self.outcome, self.usage, self.tokens = outcome, usage, tokens
        if self.on_end is not None:
            self.on_end(outcome, usage, tokens)


class OverlongStream:
    """A stream of which the beginning was held back, and the rest is relayed. Iterate `chunks` once."""

    __slots__ = ("_begun", "_end", "_rest")

    def __init__(self, begun: bytes, rest: AsyncGenerator[bytes, None], end: HeldEnd) -> None:
        self._begun = begun
        self._rest = rest
        self._end = end

    async def chunks(self, on_end: OnEnd, _clocks: Clocks, _now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """Yields the stream; its clocks have run since it was opened. `on_end` is called once with how it has ended."""
        self._end.on_end = on_end
        try:
            begun, self._begun = self._begun, b""
            yield begun
            # It may be large, and this frame lives as long as the stream.
            del begun
            async for chunk in self._rest:
                yield chunk
        finally:
            await self._rest.aclose()

    def account(self) -> tuple[Usage | None, int]:
        """Returns the usage and the estimated tokens of a stream that has ended, as `OnEnd` gets them."""
        return self._end.usage, self._end.tokens

    async def aclose(self) -> None:
        """Gives up on the stream."""
        await self._rest.aclose()
