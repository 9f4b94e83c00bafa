"""Holds a stream back until it has ended, or has grown too long for that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from gateway.core.answers import FirstAnswer, clocks_of
from gateway.core.attempts.outgoing.deadlines import AttemptDeadlines
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import DeadlineExceeded
from gateway.core.ledger.settle import estimated_usage
from gateway.core.relay.raw_relay import StreamBroken
from gateway.core.relay.relay import SseRelay
from gateway.core.types.provider_errors import ErrorClass, Phase, UpstreamFailed
from gateway.features.output.rules.answers import OutputText
from gateway.features.output.rules.streamed import StreamedTexts
from gateway.features.output.service.overlong.overlong import HeldEnd, OverlongStream

MOST_HELD = 32 * 1024 * 1024
"""Bytes of one stream; a longer one is not held back any more."""


@dataclass(slots=True)
class HeldStream:
    """A stream that has ended well, its events being `opened.body`; or an answer that was whole from the beginning."""

    opened: FirstAnswer
    texts: list[OutputText] | None
    """None: they are not known."""


async def hold(
    call: Call, opened: FirstAnswer, relay: SseRelay, clock: Clock, watch: AttemptDeadlines
) -> HeldStream | OverlongStream:
    """Reads a stream to its end, by the caller's own deadline.

    Raises UpstreamFailed when it breaks off: the client has nothing of it; DeadlineExceeded when the caller's time is up.
    """
    attempt, end, texts = call.attempts[-1], HeldEnd(), StreamedTexts(call.endpoint.name)
    chunks = relay.chunks(end, clocks_of(opened.target, call), clock.monotonic)
    parts, size = [], 0
    task = watch.begin(call.deadline, call.task, call) if call.deadline_is_callers else None
    try:
        async for chunk in chunks:
            attempt.sign_at = clock.monotonic()  # it is anything but silent, though nobody hears of it
            texts.feed(chunk)
            parts.append(chunk)
            size += len(chunk)
            if size > MOST_HELD:
                return OverlongStream(b"".join(parts), chunks, end)
    except StreamBroken as broken:
        raise UpstreamFailed(ErrorClass.STREAM_INTERRUPTED, Phase.STREAMING, str(broken)) from broken
    except asyncio.CancelledError:
        await chunks.aclose()
        if task is None or not watch.uncancel_expired(task):
            raise
        raise DeadlineExceeded("The deadline passed before the answer, which is held back until it is whole.") from None
    finally:
        watch.end(task)
    call.usage_event = relay.usage_event
    if end.outcome != "ok":
        raise UpstreamFailed(_class_of(end.outcome), Phase.STREAMING, "the stream broke off while it was held back")
    attempt.ended_at = clock.monotonic()
    usage = end.usage if end.usage is not None and end.usage.output else estimated_usage(call, end.tokens)
    return HeldStream(replace(opened, body=b"".join(parts), usage=usage, relay=None), texts.texts())


def _class_of(outcome: str | None) -> ErrorClass:
    known = {str(one): one for one in ErrorClass}
    return known.get(outcome or "", ErrorClass.STREAM_INTERRUPTED)
