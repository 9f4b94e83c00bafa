"""Answers on their way out: whole, in parts, or as the events of a stream whose head has gone while its call waited."""

from __future__ import annotations

from gateway.core.call import Call, Reply
from gateway.core.edge.served.served import EVENT_STREAM, ServedRequest
from gateway.core.http.writing.writing import answer_at_once, chunk_writer, end_stream, send_chunk, start_stream
from gateway.core.render import around_json, on_one_line, whole_as_events
from gateway.dialects.conversion.convert import as_stream
from gateway.features.reuse.layers.entries import wants_usage


async def give(served: ServedRequest, call: Call, reply: Reply) -> None:
    """Give an answer to its client, and close it."""
    cycle = served.cycle
    if served.kept_alive:
        await _give_events(served, call, reply)
        return
    served.started = True
    if reply.chunks is None:
        headers, body = _as_events(call, reply) if call.stream and reply.status == 200 else (reply.headers, reply.body)
        headers.append((b"content-length", b"%d" % len(body)))
        await answer_at_once(cycle, reply.status, headers, body)
        return
    try:
        await start_stream(cycle, reply.status, reply.headers)
        if reply.pass_on is not None and cycle.chunked_encoding:
            reply.pass_on(chunk_writer(cycle))
        async for chunk in reply.chunks:
            await send_chunk(cycle, chunk)
        await end_stream(cycle)
    finally:
        await reply.close()


async def _give_events(served: ServedRequest, call: Call, reply: Reply) -> None:
    """The answer to a stream that was kept alive: its head has gone, its events follow, or one event for all of it."""
    cycle = served.cycle
    served.started = True
    if reply.chunks is None:
        await end_stream(cycle, reply.body if _is_stream(reply) else events_of(call, reply))
        return
    try:
        if _is_stream(reply):
            async for chunk in reply.chunks:
                await send_chunk(cycle, chunk)
            await end_stream(cycle)
        else:
            before, after = around_json(call.endpoint)
            await send_chunk(cycle, before)
            async for chunk in reply.chunks:
                await send_chunk(cycle, on_one_line(chunk))
            await end_stream(cycle, after)
    finally:
        await reply.close()


def _is_stream(reply: Reply) -> bool:
    return dict(reply.headers).get(b"content-type", b"").startswith(b"text/event-stream")


def _as_events(call: Call, reply: Reply) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A provider that does not stream has answered a call that wants events: without any, SDKs would see an empty answer.

    The reply itself stays as it is: others may read it, too.
    """
    if call.endpoint.tokens != "both" or not _is_json(reply):
        return reply.headers, reply.body
    headers = [header for header in reply.headers if header[0] not in (b"content-type", b"cache-control")]
    return [*headers, *EVENT_STREAM], events_of(call, reply)


def _is_json(reply: Reply) -> bool:
    return dict(reply.headers).get(b"content-type", b"").startswith(b"application/json")


def events_of(call: Call, reply: Reply) -> bytes:
    """A whole answer as the events that a streaming provider would have sent; where that cannot be told, one event."""
    events = None
    if reply.status == 200:
        events = as_stream(call.endpoint.name, reply.body, include_usage=wants_usage(call))
    return whole_as_events(call.endpoint, reply.status, reply.body) if events is None else events
