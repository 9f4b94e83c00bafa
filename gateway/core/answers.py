"""One try of one call at one target, up to the point where its answer can be given to the client.

In this order: the try (`dispatch`), the request that it sends (`outgoing_of`), what it makes of the answer, and the deadlines
that end a try without one (`AttemptDeadlines`). Until then nothing has reached the client, so a failure here may be repaired
by another target. The client's status line is held back until the first real event of a stream, or until a JSON answer is
complete.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import orjson

from gateway.core.call import Call, ErrorAnswer, Opened, ReadAnswers, Stream, Whole, upstream_model
from gateway.core.clock import Clock
from gateway.core.error_tables import in_band_status
from gateway.core.errors import InvalidRequest
from gateway.core.ledger import estimated_usage, media_usage
from gateway.core.openai import json_edit
from gateway.core.openai.bodies import LARGE_BYTES, BodyEdits, edited
from gateway.core.openai.headers import ACCOUNTS, ALL_REQUEST_IDS, REQUEST_IDS
from gateway.core.openai.json_edit import find_fields, insert_field, remove_fields
from gateway.core.openai.media import read_media_answer
from gateway.core.openai.sse import (
    BYTE_ORDER_MARK,
    answer_object,
    error_json,
    first_error,
    json_object,
    split_events,
)
from gateway.core.openai.transcript import usage_in
from gateway.core.openai.usage import add_beside, estimate_tokens, find_usage, read_usage
from gateway.core.openai.vectors import asks_base64, chunks_with_base64, with_base64
from gateway.core.relay import RawRelay, SseRelay, read_whole
from gateway.core.retry import Attempt
from gateway.core.snapshot import Target
from gateway.core.types import (
    Answer,
    Clocks,
    ErrorClass,
    Gap,
    How,
    NotExpressible,
    Outgoing,
    Phase,
    RawHeaders,
    Spliced,
    UpstreamFailed,
)

WHOLE_LIMIT = 16_000_000
"""A JSON answer beyond this many bytes is relayed instead of being read whole."""
ERROR_BODY_LIMIT = 1_000_000
PARSE_LIMIT = 65_536
"""Up to here parsing an answer is cheaper than searching it, and proves that it is whole."""
THREAD_BYTES = 1_000_000
"""A longer answer is changed in a thread, so that others do not wait."""
JSON_TYPE = b"application/json"
OK = 200
"""The status of every good answer at our own endpoints: some servers and proxies say 201 or 206, which clients take amiss."""
SIMPLE_CONNECTION = frozenset((b"close", b"keep-alive", b"Keep-Alive", b"Close"))
"""The values of `Connection` that name no other header."""
NOT_ASCII = bytes(range(0x80, 0x100))
"""Bytes that no request id has: some of them end a line in terminals and logs (C1, ISO 6429)."""
_OF_THE_BODY = frozenset((b"content-type", b"content-encoding", b"content-length"))
"""Headers that belong to the body, whatever `Connection` says of them."""
MAY_MEAN_PATH = frozenset((400, 404, 405))


async def dispatch(call: Call, attempt: Attempt, clock: Clock, watch: AttemptDeadlines) -> Opened:
    """Sends the call to the attempt's target and waits until there is something to give to the client.

    Records the attempt in the call's ledger. Raises UpstreamFailed when there is no usable answer in time, and NotExpressible,
    with nothing in the ledger, when the call has no words in the target's language.
    """
    request = call.request
    target, started_at = attempt.target, attempt.started_at
    clocks = clocks_of(target, call) if target.clocks_by else target.clocks
    # Listed before it begins: a try that fails, or is cancelled, stands in the ledger all the same.
    if attempt.beside is None:
        call.attempts.append(attempt)
    else:
        _list_beside(call.attempts, attempt, attempt.beside)
    if request.stream or request.deadline_is_callers:
        ends_at = _must_open_by(call, clocks, started_at)
    else:
        ends_at = started_at + clocks.total_s
    task = watch.begin(ends_at, attempt, call)
    is_usual = False
    try:
        outgoing = outgoing_of(call, attempt, clocks)
        upstream = target.upstream
        if target.converters_by_path:
            upstream = target.converters_by_path.get(request.path, upstream)
            attempt.remembers_for = request.tenant if call.route.model.remembers_thinking else None
            attempt.refuses_loss = call.route.model.on_loss == "refuse"
        answer = await upstream.send(outgoing)
        if answer.status in MAY_MEAN_PATH and target.on_unknown_path is not None:
            # The server may not know the path: then the call goes to it in another language, and that is remembered.
            attempt.status = answer.status  # NotExpressible needs it below: something was sent, and answered
            attempt.refuses_loss = call.route.model.on_loss == "refuse"
            answer = await target.on_unknown_path(outgoing, answer)
        attempt.status = answer.status
        attempt.first_byte_at = clock.monotonic()
        index = dict(answer.headers)
        if b"content-encoding" in index and (request.endpoint.request != "any" or call.reads is not None):
            await _unpack(call, target, answer, index)
        if not ALL_REQUEST_IDS.isdisjoint(index):
            for name in REQUEST_IDS:  # the first one present counts
                if index.get(name):
                    attempt.upstream_request_id = index[name]
                    break
        content_type = index.get(b"content-type", b"")
        if (
            answer.whole is not None
            and answer.status == 200
            and content_type == JSON_TYPE
            and request.endpoint.answer == "json"
        ):
            is_usual = True
            opened: Opened = _accept_json(call, attempt, answer, answer.whole, clock)  # the usual case, in one step
        else:
            opened = await _read_opening(call, attempt, answer, content_type, clock)
        # Before the attempt counts as answered: clients rely on what may be missing here, and money on the units.
        if request.endpoint.is_completed and isinstance(opened, Whole):
            if request.endpoint.has_vectors:
                await _complete_embeddings(call, opened)
            else:
                opened.usage = media_usage(call, target, opened.usage)
        provided_id = attempt.upstream_request_id
        if provided_id is not None and not provided_id.isascii():
            attempt.upstream_request_id = provided_id.translate(None, NOT_ASCII) or None
            opened.headers = _end_to_end(opened.headers)
        if b"connection" in index and index[b"connection"] not in SIMPLE_CONNECTION:
            opened.headers = _end_to_end(opened.headers)
    except asyncio.CancelledError:
        if not watch.uncancel_expired(task):  # the client has left, or the gateway stops: not ours to swallow
            raise
        phase = Phase.SENT if attempt.first_byte_at is None else Phase.ANSWERED
        _end_failed(attempt, ErrorClass.TIMEOUT, phase, clock)
        raise UpstreamFailed(ErrorClass.TIMEOUT, phase, "no usable answer in time") from None
    except InvalidRequest as refusal:  # it cannot be said in the target's language: the call was not tried there
        call.attempts.remove(attempt)
        phase = Phase.NOTHING_SENT if attempt.status is None else Phase.ANSWERED
        raise NotExpressible(phase, refusal.message, refusal.param, refusal.code) from None
    except UpstreamFailed as failure:
        _end_failed(attempt, failure.error_class, failure.phase, clock)
        raise
    finally:
        watch.end(task)
        if attempt.requests > 1 and attempt.reservation is not None:  # its limits have counted one
            attempt.reservation.gate.limits.charge_requests(attempt.requests - 1, clock.monotonic())
    if isinstance(opened, Whole):
        # The usual answer came whole with its head, so there was nothing to wait for.
        attempt.ended_at = attempt.first_byte_at if is_usual else clock.monotonic()
        attempt.status = opened.status
    elif isinstance(opened, Stream):
        if isinstance(opened.relay, SseRelay):
            attempt.first_byte_at = clock.monotonic()  # the first event, not the head: that is what a reader waits for
    else:
        # A model that the caller has chosen, and not the config, is missing for the caller, who hears so.
        is_configured = target.model is not None and request.endpoint.request != "any"
        if opened.diagnosis.error_class is ErrorClass.MODEL_NOT_FOUND and not is_configured:
            opened.diagnosis = replace(opened.diagnosis, error_class=ErrorClass.NOT_FOUND)
        attempt.ended_at = attempt.first_byte_at if is_usual else clock.monotonic()
        attempt.status = opened.status
        attempt.error_class = opened.diagnosis.error_class
        attempt.phase = Phase.ANSWERED
    return opened


def _list_beside(ledger: list[Attempt], attempt: Attempt, other: Attempt) -> None:
    """Lists an attempt that runs beside another one, which stays the last as long as it may decide."""
    if other.is_stalled or other not in ledger:
        ledger.append(attempt)
    else:
        ledger.insert(ledger.index(other), attempt)


def clocks_of(target: Target, call: Call) -> Clocks:
    """The target's time limits for a call to this endpoint, in this lane."""
    if not target.clocks_by:
        return target.clocks
    return target.clocks_by.get((call.request.endpoint.name, call.request.lane), target.clocks)


def _must_open_by(call: Call, clocks: Clocks, started_at: float) -> float:
    """When the attempt has to have something for the client: the first event of a stream, or a whole answer."""
    limit_s = clocks.total_s
    if call.request.stream:
        first_s = clocks.first_byte_s
        if clocks.first_event_s is not None and clocks.first_event_s < first_s:
            first_s = clocks.first_event_s
        # The limit of the first byte or event runs from the connection on.
        limit_s = clocks.connect_s + first_s
    ends_at = started_at + min(limit_s, clocks.total_s)
    return min(ends_at, call.request.deadline) if call.request.deadline_is_callers else ends_at


def _end_failed(attempt: Attempt, error_class: ErrorClass, phase: Phase, clock: Clock) -> None:
    attempt.ended_at = clock.monotonic()
    attempt.status = None
    attempt.error_class = error_class
    attempt.phase = phase


async def _unpack(call: Call, target: Target, answer: Answer, index: dict[bytes, bytes]) -> None:
    """The body as it would have come, had the provider heeded `accept-encoding: identity`.

    Sound in a coding that is not known goes on as it is: nobody here has to read it, and its client may.
    """
    try:
        answer.unpack(index[b"content-encoding"])
    except target.upstream.errors as exc:
        is_json = index.get(b"content-type", b"").startswith(JSON_TYPE)
        if call.request.endpoint.answer == "binary" and answer.status == 200 and not is_json:
            return
        await answer.aclose()
        raise target.upstream.failure(exc) from exc


def _end_to_end(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers without those that `Connection` names (RFC 9110, 7.6.1), and without odd bytes in request ids."""
    named = {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    } - _OF_THE_BODY
    return [
        (name, value)
        for name, value in headers
        if name not in named and (value.isascii() or name not in ALL_REQUEST_IDS)
    ]


# --- what is sent: the client's own bytes, changed only where a rule needs it ---

_STORED_PROMPT = re.compile(rb'"prompt"\s*:\s*\{')


def outgoing_of(call: Call, attempt: Attempt, clocks: Clocks) -> Outgoing:
    """Returns the request of this attempt; a caller's own deadline bounds the time to its first byte."""
    request = call.request
    target = attempt.target
    first_byte_s = clocks.first_byte_s
    if request.deadline_is_callers:
        first_byte_s = min(first_byte_s, max(0.001, request.deadline - attempt.started_at))
    model = target.model
    if model is None:
        model = upstream_model(call, target)
    headers, credential = request.headers, request.credential
    if credential is not None and target.name in call.route.model.without_caller_credential:
        headers, credential = [header for header in headers if header[0] not in ACCOUNTS], None
    body: bytes | Spliced = request.body
    if model != request.model_name or request.large is not None or request.stream:
        body = _body_for(call, model)
    if target.edits is not None and request.endpoint.request == "json":
        edits = target.edits.of_count() if request.endpoint.counts_tokens else target.edits
        body = _edited(body, edits, attempt, refuses_loss=call.route.model.on_loss == "refuse")
    return Outgoing(
        request.method,
        request.path,
        request.query,
        model,
        headers,
        body,
        credential,
        clocks,
        first_byte_s,
        attempt,
    )


def _body_for(call: Call, model: str) -> bytes | Spliced:
    """Returns the client's bytes, changed only where a rule needs it: the model's name, and the request for usage."""
    request = call.request
    body, large = request.body, request.large
    if large is not None and large.model is not None and request.model_name:
        new_model, is_asking = None if model == request.model_name else model, adds_usage(call)
        if new_model is None and not is_asking:
            return request.body
        return edited(request.body, large, new_model, request.stream_options, adds_usage=is_asking)
    if model != request.model_name and body:
        if request.model_span is not None and request.model_name and len(body) > LARGE_BYTES:
            return Spliced(body, [(*request.model_span, model.encode())])
        body = _with_model(body, model, request.model_span) if request.model_name else _named(body, model)
    if adds_usage(call):
        body = json_edit.with_include_usage(body, request.stream_options)
    return body


def _with_model(body: bytes, model: str, span: tuple[int, int] | None) -> bytes:
    if span is None:
        return json_edit.with_model(body, model)
    return body[: span[0]] + model.encode() + body[span[1] :]


def _named(body: bytes, model: str) -> bytes:
    """Adds the target's model to a body that names none, unless it has a stored prompt, which has a model of its own."""
    if _STORED_PROMPT.search(body) is not None:
        return body
    if json_edit.find_fields(body, "model"):  # null
        return json_edit.with_model(body, model)
    return json_edit.insert_field(body, "model", orjson.dumps(model))


def wants_usage(call: Call) -> bool:
    """Returns whether the client asks for usage in its stream."""
    options = call.request.stream_options
    return isinstance(options, dict) and options.get("include_usage") is True


def adds_usage(call: Call) -> bool:
    """Returns whether the gateway asks for usage in the stream, because the caller did not say."""
    if not (call.request.stream and call.request.endpoint.usage_option and call.route.model.include_usage):
        return False
    options = call.request.stream_options
    return options is None or (isinstance(options, dict) and options.get("include_usage") is None)


def _edited(body: bytes | Spliced, edits: BodyEdits, attempt: Attempt, *, refuses_loss: bool) -> bytes:
    """Makes what the target's config says of the body; what is dropped from it is reported as what is lost in a conversion.

    Raises InvalidRequest where nothing may be lost.
    """
    made, dropped = edits.apply(bytes(body))
    if dropped and refuses_loss:
        named = ", ".join(f"'{name}'" for name in dropped)
        message = f"The config of the model's target drops {named}. Send the call without, or use another model."
        raise InvalidRequest(message, param=dropped[0], code="unsupported_by_targets")
    attempt.gaps = [Gap(name, How.DROPPED, "the config of the target drops it") for name in dropped]
    return made


# --- what comes back ---


async def _read_opening(call: Call, attempt: Attempt, answer: Answer, content_type: bytes, clock: Clock) -> Opened:
    status, headers = answer.status, answer.headers
    if status >= 600:
        await answer.aclose()
        raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, f"there is no HTTP status {status}")
    if status >= 400:
        body, _ = await read_whole(attempt.target.upstream, answer, ERROR_BODY_LIMIT)
        body = body.removeprefix(BYTE_ORDER_MARK)
        # An error longer than the limit is still open: its beginning is enough to judge it by.
        await answer.aclose()
        diagnosis = attempt.target.errors.diagnose(Phase.ANSWERED, status, headers, body, clock.wall())
        return ErrorAnswer(attempt, status, headers, body, diagnosis)
    if status >= 300 and call.request.endpoint.request != "any":
        await answer.aclose()
        raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, f"redirects are not followed ({status})")
    if call.request.endpoint.answer == "json":
        if content_type.startswith(b"text/event-stream"):
            if not call.request.stream:
                return await _gather(call, attempt, answer, clock)
            return await _open_stream(call, attempt, answer, clock)
        return await _open_json(call, attempt, answer, clock)
    if call.request.endpoint.request == "any":
        if call.reads is not None and _is_read(call.reads, status, content_type):
            return await _read_passing(call.reads, attempt, answer)
        return Stream(attempt, status, headers, RawRelay(attempt.target.upstream, answer))
    return await _open_binary(call, attempt, answer, content_type, clock)


async def _open_stream(call: Call, attempt: Attempt, answer: Answer, clock: Clock) -> Opened:
    relay = SseRelay(call, attempt.target.upstream, answer, strip_usage=adds_usage(call))
    try:
        error = await relay.open(_activity_of(attempt, clock))
    except BaseException:
        # Nobody else holds the answer yet, so nobody else would close it.
        await answer.aclose()
        raise
    if error is None:
        return Stream(attempt, OK, answer.headers, relay)
    await answer.aclose()
    return _streamed_error(attempt, answer, error, clock)


def _streamed_error(attempt: Attempt, answer: Answer, error: dict[str, Any], clock: Clock) -> ErrorAnswer:
    diagnosis = attempt.target.errors.diagnose_error(Phase.STREAMING, None, error, answer.headers, clock.wall())
    status = in_band_status(error, diagnosis)
    return ErrorAnswer(attempt, status, _as_json(answer.headers), error_json(error), diagnosis)


def _as_json(headers: RawHeaders) -> RawHeaders:
    """Returns the headers of a stream for the JSON that is made of it."""
    kept = [header for header in headers if header[0] not in (b"content-type", b"cache-control")]
    return [*kept, (b"content-type", JSON_TYPE)]


async def _gather(call: Call, attempt: Attempt, answer: Answer, clock: Clock) -> Whole | ErrorAnswer:
    """Makes a whole answer of the stream that a provider sends unasked.

    Raises UpstreamFailed where the stream has no end, or does not tell how it is put together.
    """
    frames, is_whole = await read_whole(attempt.target.upstream, answer, WHOLE_LIMIT, _activity_of(attempt, clock))
    if not is_whole:
        await answer.aclose()
    frames = frames.removeprefix(BYTE_ORDER_MARK)
    error = next((found for event in split_events(frames) if (found := first_error(event)) is not None), None)
    if error is not None:
        return _streamed_error(attempt, answer, error, clock)
    body, as_whole = None, call.request.endpoint.shape.as_whole
    if is_whole and call.request.endpoint.tokens == "both":  # other endpoints' streams are no parts of an answer
        body = as_whole(frames) if len(frames) <= THREAD_BYTES else await asyncio.to_thread(as_whole, frames)
    if body is None:
        message = "the provider sent a stream in place of the whole answer, and it cannot be put together"
        raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, message)
    opened = _accept_json(call, attempt, answer, body, clock)
    opened.headers = _as_json(answer.headers)
    return opened


async def _open_json(call: Call, attempt: Attempt, answer: Answer, clock: Clock) -> Opened:
    body, is_whole = await read_whole(attempt.target.upstream, answer, WHOLE_LIMIT, _activity_of(attempt, clock))
    if not is_whole:
        relay = RawRelay(attempt.target.upstream, answer, body, count_tokens=True)
        headers = answer.headers
        if call.request.endpoint.has_vectors and asks_base64(call.request.body):
            relay.change(chunks_with_base64)
            # The vectors change on their way, and the announced length no longer holds.
            headers = [header for header in headers if header[0] != b"content-length"]
        return Stream(attempt, OK, headers, relay)
    return _accept_json(call, attempt, answer, body, clock)


async def _open_binary(call: Call, attempt: Attempt, answer: Answer, content_type: bytes, clock: Clock) -> Opened:
    """Speech or the text of it: anything, but not nothing, and no error object."""
    status, headers = answer.status, answer.headers
    if (b"content-length", b"0") in headers:
        await answer.aclose()
        raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "the provider answered with nothing")
    if not content_type.startswith(JSON_TYPE):
        return Stream(attempt, status, headers, RawRelay(attempt.target.upstream, answer, count_tokens=True))
    body, is_whole = await read_whole(attempt.target.upstream, answer, WHOLE_LIMIT, _activity_of(attempt, clock))
    if not is_whole:
        return Stream(attempt, status, headers, RawRelay(attempt.target.upstream, answer, body, count_tokens=True))
    parsed = answer_object(body) or {}
    error = call.request.endpoint.shape.error_inside(parsed)
    if error is None:
        written = estimate_tokens(str(parsed.get("text", "")).encode("utf-8", "surrogatepass"))
        usage = media_usage(call, attempt.target, read_media_answer(parsed), written)
        return Whole(attempt, status, headers, body, usage=usage)
    diagnosis = attempt.target.errors.diagnose_error(Phase.ANSWERED, None, error, headers, clock.wall())
    return ErrorAnswer(attempt, in_band_status(error, diagnosis), headers, body, diagnosis)


def _activity_of(attempt: Attempt, clock: Clock) -> Callable[[], None]:
    """Returns a function that notes a sign of life of the attempt's target."""

    def note() -> None:
        attempt.last_activity_at = clock.monotonic()

    return note


def _is_read(reads: ReadAnswers, status: int, content_type: bytes) -> bool:
    """Whether a feature reads the answer before it goes on; streams of events may be watched as they pass."""
    return status < 300 and (
        reads == "all" or not content_type.startswith((b"text/event-stream", b"audio/", b"video/"))
    )


async def _read_passing(reads: ReadAnswers, attempt: Attempt, answer: Answer) -> Opened:
    """A passed-through answer that a feature reads. Raises UpstreamFailed where it is too long, and must not go on unread."""
    body, is_whole = await read_whole(attempt.target.upstream, answer, WHOLE_LIMIT)
    if is_whole:
        return Whole(attempt, answer.status, answer.headers, body)
    if reads == "all":
        await answer.aclose()
        raise UpstreamFailed(
            ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "the list is too long; ask for fewer at once"
        )
    return Stream(attempt, answer.status, answer.headers, RawRelay(attempt.target.upstream, answer, body))


def _accept_json(call: Call, attempt: Attempt, answer: Answer, body: bytes, clock: Clock) -> Whole | ErrorAnswer:
    """A whole answer, if it is what a JSON endpoint answers with."""
    if len(body) > PARSE_LIMIT and body[-64:].rstrip().endswith((b"}", b"]")):
        # It ends as JSON does, which has to do as a proof that it is whole.
        return Whole(attempt, OK, answer.headers, body, usage=find_usage(body))
    parsed = json_object(body)
    if parsed is None and body.startswith(BYTE_ORDER_MARK):
        body = body.removeprefix(BYTE_ORDER_MARK)
        parsed = json_object(body)
    if not parsed:
        is_page = dict(answer.headers).get(b"content-type", b"").startswith(b"text/html")
        what = "an HTML page" if is_page else "something that is not a JSON object"
        what = what if parsed is None else "an empty object"
        raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, f"the provider answered with {what}")
    error = call.request.endpoint.shape.error_inside(parsed)
    if error is not None:
        diagnosis = attempt.target.errors.diagnose_error(Phase.ANSWERED, None, error, answer.headers, clock.wall())
        return ErrorAnswer(attempt, in_band_status(error, diagnosis), answer.headers, body, diagnosis)
    reported = parsed.get("usage") or usage_in(parsed)
    usage = read_usage(reported) if isinstance(reported, dict) else None
    if usage is not None and ("service_tier" in parsed or "tool_usage" in parsed):
        add_beside(usage, parsed)
    return Whole(attempt, OK, answer.headers, body, usage=usage)


async def _complete_embeddings(call: Call, opened: Whole) -> None:
    """Gives vectors the form that was asked for, and a `usage`, on which clients rely: estimated where none was reported."""
    if asks_base64(call.request.body):
        is_large = len(opened.body) > THREAD_BYTES
        opened.body = await asyncio.to_thread(with_base64, opened.body) if is_large else with_base64(opened.body)
    usage = estimated_usage(call, opened.attempt, 0) if opened.usage is None else None
    if usage is not None:
        usage_json = b'{"prompt_tokens":%d,"total_tokens":%d,"estimated":true}' % (usage.input, usage.input)
        body = remove_fields(opened.body, find_fields(opened.body, "usage"))
        opened.usage, opened.body = usage, insert_field(body, "usage", usage_json)


# --- tries that have no answer in time ---

SWEEP_S = 0.05
LOOK_S = 0.25
MANY = 500
"""With more open attempts than this, all of them are looked at less often."""
log = logging.getLogger("gateway")
Task: TypeAlias = asyncio.Task[Any]
OpenAttempts: TypeAlias = Mapping[Task, tuple[float, Attempt, Call]]
"""The open attempts by task: the monotonic time at which each ends, and the call that it belongs to."""


class AttemptDeadlines:
    """The attempts that have no answer yet, each by its task, with the time (monotonic seconds) at which it is cancelled.

    A transport's clocks watch single phases; this watches the whole attempt, up to the caller's own deadline. One sweep
    over the open attempts replaces a timer for each; now and then `look` is called with all of them. Invariant: a task is
    only cancelled while it is watched.
    """

    __slots__ = ("_expired", "_look_at", "_open", "_paired", "look")

    def __init__(self) -> None:
        self._open: dict[Task, tuple[float, Attempt, Call]] = {}
        self._expired: set[Task] = set()
        self._paired: dict[Task, tuple[Attempt, bool]] = {}
        self._look_at = 0.0
        self.look: Callable[[OpenAttempts, float], None] | None = None
        """A callback for all open attempts and the time, called every LOOK_S while there are any."""

    def begin(self, ends_at: float, attempt: Attempt, call: Call) -> Task | None:
        """Watches the current task for an attempt of the call; returns the task."""
        task = asyncio.current_task()
        if task is not None:
            self._open[task] = (ends_at, attempt, call)
        return task

    def end(self, task: Task | None) -> None:
        """Stops watching the task."""
        if task is not None:
            self._open.pop(task, None)
            if self._expired:
                self._expired.discard(task)
            if self._paired:
                self._paired.pop(task, None)

    def pair(self, task: Task, beside: Attempt, *, is_spared: bool) -> None:
        """Marks the task as one of two attempts of its call, of which the other is `beside`. A spared task may be late."""
        self._paired[task] = beside, is_spared

    def part(self, task: Task) -> None:
        """Marks the task as its call's only attempt again, because the other has failed."""
        self._paired.pop(task, None)

    def beside(self, task: Task) -> Attempt | None:
        """Returns the attempt that runs beside this task; None: the task is its call's only attempt."""
        return self._paired[task][0] if task in self._paired else None

    def is_spared(self, task: Task) -> bool:
        """Returns whether the task is left alone until its time is up or the other attempt has failed."""
        return task in self._paired and self._paired[task][1]

    def shorten(self, task: Task, ends_at: float) -> None:
        """Brings the end of the task's time forward to `ends_at`."""
        entry = self._open.get(task)
        if entry is not None and ends_at < entry[0]:
            self._open[task] = (ends_at, entry[1], entry[2])

    def expire(self, task: Task) -> None:
        """Cancels the task as if its time were up; does nothing if it is not watched any more."""
        # Taken out first, so that no second expiry cancels what the task does next.
        if self._open.pop(task, None) is not None:
            self._expired.add(task)
            task.cancel()

    def uncancel_expired(self, task: Task | None) -> bool:
        """Uncancels the task if the CancelledError that it has just caught came from here; returns whether nothing else did."""
        if task is None or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def sweep(self, now: float) -> None:
        """Cancels the tasks whose time is up; called every SWEEP_S."""
        for task in [task for task, (ends_at, _, _) in self._open.items() if ends_at <= now]:
            self.expire(task)
        if self._open and now >= self._look_at and self.look is not None:
            # Set before the look, so that one that fails is not repeated in each sweep.
            self._look_at = now + LOOK_S * max(1.0, len(self._open) / MANY)
            try:
                self.look(self._open, now)
            except Exception:  # a defect in `look` must not keep attempts from timing out
                log.exception("looking at the open attempts failed")
