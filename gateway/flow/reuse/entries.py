"""What is kept of an answer, and how a kept one is given again, in whichever form the call wants it.

Pure data work between a call and a store. It must not know when either happens. Invariants: only complete answers are kept,
an error only where it would be the same again; a body is given byte for byte as the first client got it, unless the call
asks for another form of it.
"""

from __future__ import annotations

from gateway.call import Call, Replay, Reply
from gateway.errors import ErrorClass
from gateway.policy.conversion.convert import as_stream, as_whole, ends_well, with_usage, without_usage
from gateway.policy.reuse.cache_control import answer_headers
from gateway.policy.reuse.rules import CONVERTIBLE, Caching
from gateway.words import Kept, shown

SAME_AGAIN = frozenset(
    (
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTENT_POLICY,
        ErrorClass.CONTEXT_LENGTH_EXCEEDED,
        ErrorClass.NOT_FOUND,
        ErrorClass.PAYLOAD_TOO_LARGE,
    )
)
"""Errors that depend on the request alone."""
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")
OF_THE_ANSWER = frozenset(
    b"content-type content-encoding content-disposition openai-model openai-version x-should-retry".split()
)
IDEMPOTENT = (b"idempotent-replayed", b"true")


def is_success(call: Call, status: int) -> bool:
    """Whether the call has a complete answer."""
    return call.outcome == "ok" and 200 <= status < 300


def is_terminal(call: Call, status: int) -> bool:
    """Whether sending the call again would bring nothing new: a complete answer, or an error that would be the same."""
    return is_success(call, status) or (400 <= status < 500 and call.outcome in SAME_AGAIN)


def is_worth_keeping(call: Call, reply: Reply, body: bytes) -> bool:
    """Whether others may get it: a complete answer that says itself that it is one."""
    return is_success(call, reply.status) and ends_well(call.endpoint.name, reply.chunks is not None, body)


def keep_answer(call: Call, reply: Reply, body: bytes, wall: float) -> Kept:
    """What is kept, for no time yet."""
    last = call.attempts[-1] if call.attempts else None
    replay = call.replay or Replay()
    return Kept(
        status=reply.status,
        headers=[header for header in reply.shared if header[0] in OF_THE_ANSWER],
        body=body,
        is_stream=is_stream(reply.shared),
        endpoint=call.endpoint.name,
        model=call.model_name,
        tenant=call.tenant,
        group="",
        source=call.id,
        target=last.target if last is not None else replay.target,
        stored_at=wall,
        fresh_until=wall,
        stale_until=wall,
        outcome=str(call.outcome),
        usage=call.usage or replay.saved,
        cost_usd=last.cost_usd if last is not None else replay.saved_usd,
        tells_usage=wants_usage(call),
        usage_event=call.usage_event,
    )


def wants_usage(call: Call) -> bool:
    """Whether the client asks for usage in its stream."""
    options = call.stream_options
    return isinstance(options, dict) and options.get("include_usage") is True


def in_form(call: Call, kept: Kept) -> bytes | None:
    """The kept body as this call wants it; None: it cannot be made of this one."""
    if _was_asked_so(kept):
        return kept.body
    if not call.stream:
        return as_whole(kept.endpoint, kept.body, kept.usage_event) if kept.is_stream else kept.body
    wants = wants_usage(call)
    if not kept.is_stream:
        return as_stream(kept.endpoint, kept.body, include_usage=wants)
    if wants == kept.tells_usage:
        return kept.body
    if not wants:
        return without_usage(kept.body)
    return with_usage(kept.body, kept.usage_event) if kept.usage_event else kept.body


def replay_headers(call: Call, kept: Kept) -> list[tuple[bytes, bytes]]:
    """The headers of a kept answer that are not about this one call."""
    if kept.is_stream == call.stream or _was_asked_so(kept):
        headers = list(kept.headers)
    else:
        headers = [header for header in kept.headers if header[0] != b"content-type"]
        headers.append(EVENT_STREAM if call.stream else JSON)
    replay = call.replay
    if replay is not None and replay.layer == "idempotency":
        headers.append(IDEMPOTENT)
    elif replay is not None and replay.age_s is not None:
        headers += answer_headers(replay.age_s, replay.fresh_s or 0.0)
    return headers


def mark_served_from(call: Call, kept: Kept, layer: str, result: str, wall: float) -> None:
    """Note on the call that it gets this answer."""
    replay = call.replay = call.replay or Replay()
    replay.layer, replay.result = layer, result
    replay.source, replay.target = kept.source, kept.target
    replay.age_s = max(0.0, wall - kept.stored_at)
    replay.fresh_s = kept.fresh_until - wall
    replay.saved, replay.saved_usd = kept.usage, kept.cost_usd
    replay.tried.append((layer, result if result == "stale" else "hit"))


def follow(call: Call, leader: Call) -> None:
    """Note on the call that it gets the answer of this one."""
    replay = call.replay = call.replay or Replay()
    is_stale = leader.replay is not None and leader.replay.result == "stale"
    replay.result, replay.layer = "stale" if is_stale else "coalesced", "single_flight"
    replay.source = leader.id
    replay.target = leader.attempts[-1].target if leader.attempts else leader.replay.target if leader.replay else ""
    replay.attempts = shown(leader.attempts)
    replay.tried.append(("single_flight", "hit"))


def count_saved(call: Call, leader: Call) -> None:
    """What the one answer would have cost again; known when it has ended."""
    replay = call.replay
    if replay is None or replay.layer != "single_flight":
        return
    spared = leader.replay if leader.replay is not None and leader.replay.saved is not None else None
    last = leader.attempts[-1] if leader.attempts else None
    replay.saved = leader.usage if spared is None else spared.saved
    replay.saved_usd = spared.saved_usd if spared is not None else last.cost_usd if last is not None else None


def room_of(caching: Caching, *, is_keyed: bool) -> int:
    """So many bytes of an answer are worth holding for those who come late, and for the stores."""
    rules = [caching.max_record_bytes] if is_keyed else []
    if caching.exact.requests != "off" or caching.semantic is not None:
        rules.append(caching.exact.max_entry_bytes)
    return max([LEAST_ROOM, *rules])


LEAST_ROOM = 1_048_576


def _was_asked_so(kept: Kept) -> bool:
    """Whether only calls that ask for this very form find it: by their `Idempotency-Key`, or at endpoints with one form."""
    return not kept.group or kept.endpoint not in CONVERTIBLE


def is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether these are the headers of an event stream."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
