"""Makes stored entries of answers, and answers of stored entries, in the form that a call asks for.

Pure data work between a call and a store. It must not know when either happens. Invariants: only complete answers are stored,
an error only if it would be the same again; a body is given byte for byte as the first client got it, unless the call asks
for another form of it; the converted forms held in memory are bounded by bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

from gateway.core.call import CacheOutcome, Call, Reply
from gateway.core.types import ErrorClass, Kept, shown
from gateway.dialects.conversion import as_stream, as_whole, ends_well, with_usage, without_usage
from gateway.features.reuse.rules.keys import answer_headers
from gateway.features.reuse.rules.rules import CONVERTIBLE, Caching

SAME_AGAIN = frozenset(
    (
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTENT_POLICY,
        ErrorClass.CONTEXT_LENGTH_EXCEEDED,
        ErrorClass.NOT_FOUND,
        ErrorClass.PAYLOAD_TOO_LARGE,
    )
)
"""The errors that depend on the request alone."""
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")
OF_THE_ANSWER = frozenset(
    b"content-type content-encoding content-disposition openai-model openai-version x-gateway-lossy x-gateway-output "
    b"x-should-retry".split()
)
IDEMPOTENT = (b"idempotent-replayed", b"true")
MOST_BYTES = 16 * 1024 * 1024
OVERHEAD_BYTES = 300
SMALL_BYTES = 2048
"""A body below this size is converted anew, because that is faster than to look it up."""

Form = tuple[bytes, str, bool, bool]


def is_success(call: Call, status: int) -> bool:
    """Returns whether the call has a complete answer."""
    return call.outcome == "ok" and 200 <= status < 300


def is_terminal(call: Call, status: int) -> bool:
    """Returns whether sending the call again would bring nothing new: a complete answer, or an error that would be the same."""
    return is_success(call, status) or (400 <= status < 500 and call.outcome in SAME_AGAIN)


def is_worth_keeping(call: Call, reply: Reply, body: bytes) -> bool:
    """Returns whether other calls may get the answer: a complete one that is marked as complete itself."""
    if call.lowered is not None:  # others did not ask for less
        return False
    return is_success(call, reply.status) and ends_well(call.endpoint.name, is_stream(reply.shared), body)


def keep_answer(call: Call, reply: Reply, body: bytes, wall: float) -> Kept:
    """Returns the stored form of an answer; the caller sets for how long."""
    last = call.attempts[-1] if call.attempts else None
    replay = call.replay or CacheOutcome()
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
        includes_usage=wants_usage(call),
        usage_event=call.usage_event,
    )


def wants_usage(call: Call) -> bool:
    """Returns whether the client asks for usage in its stream."""
    options = call.stream_options
    return isinstance(options, dict) and options.get("include_usage") is True


def in_form(call: Call, kept: Kept) -> bytes | None:
    """Returns the stored body in the form that the call asks for; None: it cannot be converted."""
    if _has_one_form(kept):
        return kept.body
    if not call.stream:
        return as_whole(kept.endpoint, kept.body, kept.usage_event) if kept.is_stream else kept.body
    wants = wants_usage(call)
    if not kept.is_stream:
        return as_stream(kept.endpoint, kept.body, include_usage=wants)
    if wants == kept.includes_usage:
        return kept.body
    if not wants:
        return without_usage(kept.body)
    return with_usage(kept.body, kept.usage_event) if kept.usage_event else kept.body


class Forms:
    """The forms of stored answers that were converted lately: to convert a long stream takes milliseconds.

    Two bodies share a form only if they are equal byte for byte; the least recently used forms go first.
    """

    __slots__ = ("_bytes", "_made", "_most")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._made: OrderedDict[Form, bytes | None] = OrderedDict()
        self._bytes = 0

    def body(self, call: Call, kept: Kept) -> bytes | None:
        """Returns the stored body in the form that the call asks for; None: it cannot be converted."""
        if not (call.stream or kept.is_stream):
            return kept.body  # the usual case
        if len(kept.body) < SMALL_BYTES or (kept.is_stream == call.stream and kept.includes_usage == wants_usage(call)):
            return in_form(call, kept)
        form = sha256(kept.body + kept.usage_event).digest(), kept.endpoint, call.stream, wants_usage(call)
        if form in self._made:
            self._made.move_to_end(form)
            return self._made[form]
        made = in_form(call, kept)
        if made is not kept.body:
            self._hold(form, made)
        return made

    def _hold(self, form: Form, made: bytes | None) -> None:
        """Holds the form; also None, because to find out that a body cannot be converted takes as long."""
        self._made[form] = made
        self._bytes += _size(made)
        while self._bytes > self._most:
            _, gone = self._made.popitem(last=False)
            self._bytes -= _size(gone)


def _size(made: bytes | None) -> int:
    return OVERHEAD_BYTES + len(made or b"")


def replay_headers(call: Call, kept: Kept) -> list[tuple[bytes, bytes]]:
    """Returns those headers of a stored answer that are not about this one call."""
    if kept.is_stream == call.stream or _has_one_form(kept):
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
    """Notes on the call that it gets this stored answer."""
    replay = call.replay = call.replay or CacheOutcome()
    replay.layer, replay.result = layer, result
    replay.source, replay.target = kept.source, kept.target
    replay.age_s = max(0.0, wall - kept.stored_at)
    replay.fresh_s = kept.fresh_until - wall
    replay.saved, replay.saved_usd = kept.usage, kept.cost_usd
    replay.tried.append((layer, result if result == "stale" else "hit"))


def follow(call: Call, leader: Call) -> None:
    """Notes on the call that it shares the leader's answer."""
    replay = call.replay = call.replay or CacheOutcome()
    is_stale = leader.replay is not None and leader.replay.result == "stale"
    replay.result, replay.layer = "stale" if is_stale else "coalesced", "single_flight"
    replay.source = leader.id
    replay.target = leader.attempts[-1].target if leader.attempts else leader.replay.target if leader.replay else ""
    replay.attempts = shown(leader.attempts, skips=leader.skips)
    replay.tried.append(("single_flight", "hit"))


def count_saved(call: Call, leader: Call) -> None:
    """Notes on the follower what the answer would have cost again; to be called when the answer has ended."""
    replay = call.replay
    if replay is None or replay.layer != "single_flight":
        return
    spared = leader.replay if leader.replay is not None and leader.replay.saved is not None else None
    last = leader.attempts[-1] if leader.attempts else None
    replay.saved = leader.usage if spared is None else spared.saved
    replay.saved_usd = spared.saved_usd if spared is not None else last.cost_usd if last is not None else None


def room_of(caching: Caching, *, is_keyed: bool) -> int:
    """Returns the bytes of an answer that are worth buffering for late readers, and for the stores."""
    rules = [caching.max_record_bytes] if is_keyed else []
    if caching.exact.requests != "off" or caching.semantic is not None:
        rules.append(caching.exact.max_entry_bytes)
    return max([LEAST_ROOM, *rules])


LEAST_ROOM = 1_048_576


def _has_one_form(kept: Kept) -> bool:
    """Returns whether only calls for this very form find the answer: those with its key, or at endpoints with one form."""
    return not kept.group or kept.endpoint not in CONVERTIBLE


def is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    """Returns whether these are the headers of an event stream."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
