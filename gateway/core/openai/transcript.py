"""Follows an event stream: whether it is complete, has failed or makes no sense, and the tokens it reports.

First which calls think before they answer, then the estimate of a stream without usage (`extend_samples`), then
`Transcript`. Most events only bring more of the answer: `sse.py` recognises these without parsing them. All others are read
here, one by one. It must not know where bytes come from or go to. Invariants: nothing that is not a whole JSON object or
`[DONE]` is passed on as an event; once a stream has ended or failed, nothing more of it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.openai import sse
from gateway.core.openai.sse import (
    choices_of,
    ended_candidates,
    failed_finish_message,
    failed_reason,
    is_without_content,
    plain_events_of,
)
from gateway.core.openai.usage import (
    AUDIO_CHARACTERS,
    BYTES_PER_TOKEN,
    LONGEST_ANSWER,
    PICTURE_TOKENS,
    add_beside,
    find_usage,
    joined,
    merge_usage,
    output_tokens_in,
    read_usage,
)
from gateway.core.types import ErrorClass, RawHeaders, StreamForm, Usage

# --- calls that make a model think before it answers, so that minutes without output are usual ---


FIELDS = frozenset(("reasoning_effort", "reasoning", "include_reasoning", "thinking", "enable_thinking"))
"""The fields at the top of a request that ask for reasoning: of OpenAI (chat; responses), OpenRouter, Anthropic, Qwen."""
_LITTLE = frozenset((None, False, "none", "minimal", "disabled"))
_LONGEST_NAME = 256
_THINKERS = re.compile(
    r"(?:^|[/_:-])(?:o[1-9](?:$|-)|gpt-[5-9](?!.*chat)|gpt-oss|qwq|magistral|deepseek-r[1-9]|r1(?:$|[:-]))|reason|think",
    re.IGNORECASE,
)


def asks_for_reasoning(body: Mapping[str, Any]) -> bool:
    """Returns whether a request asks its model to think first, and more than a little.

    Where nobody says, a model's name decides (`is_thinker`). It must not know targets or clocks.
    """
    if FIELDS.isdisjoint(body):
        return False
    return any(_is_much(body[field]) for field in FIELDS & body.keys())


def is_thinker(model: str) -> bool:
    """Returns whether a model of this name thinks without being asked; models without a telling name are missed.

    Only the beginning of the name is looked at, which may be a client's and of any length.
    """
    model = model[:_LONGEST_NAME]
    return _THINKERS.search(model) is not None and "non-" not in model


def _is_much(effort: Any) -> bool:
    if isinstance(effort, Mapping):
        values = [effort[name] for name in ("effort", "type", "enabled") if name in effort]
        return bool(effort) and all(map(_is_much, values))
    return not isinstance(effort, list) and effort not in _LITTLE


# --- the tokens of what a stream has brought, where its usage does not come: its client leaves, or it breaks off ---


_FIRST_STEP = 4
MOST_SAMPLES = 48
_USUAL_WEIGHT = 100.0
"""The usual tokens of a byte weigh as much as samples that differ by 10 bytes."""
_MOST_KEPT_BYTES = 1_024
"""A longer sample is measured at once, and not kept."""


def extend_samples(samples: Sequence[tuple[int, float]], events: int, size: int) -> float:
    """Returns the estimated tokens of so many events that have `size` bytes together.

    Of each sample, at least one, the bytes and tokens are known. How many tokens a byte has follows from those that differ in
    length; of few, it is near what texts have. Source: the regression estimator (Cochran, Sampling Techniques, 7).

    An event that only brings more of the answer is not parsed. Its bytes are counted, and some events are kept as samples;
    what they hold is extended to all events at the end, where it is needed. Texts count as those of whole answers do, by
    their bytes.
    """
    mean_size = sum([one for one, _ in samples]) / len(samples)
    mean_tokens = sum([tokens for _, tokens in samples]) / len(samples)
    usual = mean_tokens / mean_size if mean_size > _MOST_KEPT_BYTES else 1 / BYTES_PER_TOKEN  # long ones may be sound
    both = sum([(one - mean_size) * (tokens - mean_tokens) for one, tokens in samples])
    spread = sum([(one - mean_size) ** 2 for one, _ in samples])
    per_byte = (both + usual * _USUAL_WEIGHT) / (spread + _USUAL_WEIGHT)
    return max(0.0, events * mean_tokens + max(0.0, per_byte) * (size - events * mean_size))


STREAM_ERROR = "stream_error"
"""The outcome of a stream in which the provider itself reported an error."""

NULL_USAGE = b',"usage":null'
_LAST = frozenset(("response.completed", "response.failed", "response.incomplete", "message_stop"))
_LAST_NAME = re.compile(
    rb"^event: ?(?:response\.(?:completed|incomplete)|message_stop)\r?$"
    rb'|^data: ?\{"type" ?: ?"(?:response\.(?:completed|incomplete)|message_stop)"',
    re.MULTILINE,
)
_FINISH = re.compile(rb'(?<!\\)"(?:finish_reason|finishReason)" ?: ?"')
_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_HEAD_BYTES = 256
_TAIL_BYTES = 32_768
"""The bytes kept of an event too long to be held: usage stands near its end, where metadata may follow it."""
_MOST_NUMBER = 1 << 53
"""No event has a number that is as high."""


# --- the transcript of one stream ---


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason to pass nothing more on: the call's outcome, and the error event that the client gets last, if any is due."""

    outcome: str
    event: bytes = b""


class Transcript:
    """One stream. Give it, in order, all blocks of whole events that are not plain, and the parts of long events."""

    __slots__ = (
        "_begun",
        "_first_plain",
        "_form",
        "_has_done",
        "_head",
        "_headers",
        "_long_bytes",
        "_long_tail",
        "_number",
        "_read_events",
        "_read_tokens",
        "_reported",
        "_reported_at",
        "_strips",
        "events",
        "failure",
        "finished",
        "is_over",
        "is_plain",
        "last_plain",
        "plain",
        "plain_bytes",
        "samples",
        "step",
        "usage",
        "usage_event",
    )

    def __init__(self, form: StreamForm, *, strips_usage: bool = False, headers: RawHeaders = ()) -> None:
        """`strips_usage`: take out what only asking for usage has added, the extra event and `"usage":null`.

        `headers` are the client's, for how it wants comments.
        """
        self._form = form
        self._headers = headers
        self._strips = strips_usage
        self._first_plain = b""
        """The first of the plain events, if it was counted by itself: it often has a role besides, or alone."""
        self._has_done = False
        self._head = b""
        self._long_bytes = 0
        self._long_tail = b""
        self._number = -1
        self._read_events = 0
        self._read_tokens = 0.0
        """The events read here that had output, and their estimated tokens."""
        self._reported_at = -1
        """The number of plain events when an event last reported usage; -1: one with output has come since."""
        self._begun: dict[str, Any] | None = None
        """The part of a response's beginning that its end repeats where it fails."""
        self._reported: dict[str, Any] = {}
        """The usage of a message as reported so far."""
        self.events = 0
        """The events read here that had content."""
        self.finished: set[object] = set()
        """The choices that have a finish reason."""
        self.is_over = False
        """The stream's last event has come."""
        self.is_plain = plain_events_of(form)
        """Returns whether a block needs no reading; it is then to be given to `pass_plain`."""
        self.last_plain = b""
        """The last event that was passed on without reading."""
        self.plain = self.plain_bytes = 0
        """The events that were passed on without reading, and their bytes."""
        self.samples: list[bytes | tuple[int, float]] = []
        """One in `step` of them; of long ones their bytes and tokens."""
        self.step = _FIRST_STEP
        self.failure: Failure | None = None
        self.usage: Usage | None = None
        self.usage_event = b""
        """The usage event that was taken out of the stream because only the gateway had asked for it."""

    @property
    def response_id(self) -> object:
        """Returns the id of a response that has begun; None: none has come."""
        return None if self._begun is None else self._begun.get("id")

    @property
    def is_inside(self) -> bool:
        """Returns whether the client has a part of an event, which was too long to be held back."""
        return bool(self._head)

    def pass_plain(self, event: bytes) -> None:
        """Counts an event that is passed on without reading."""
        if not self.plain:
            self._first_plain = event
        self.plain += 1
        self.plain_bytes += len(event)
        self.last_plain = event
        if self.plain % self.step == 0:
            self.samples.append(event if len(event) <= _MOST_KEPT_BYTES else _measured(event))
            if len(self.samples) > MOST_SAMPLES:
                self.thin_out()

    def thin_out(self) -> None:
        """Drops every other sample; from then on they are taken half as often."""
        del self.samples[::2]
        self.step *= 2

    def account(self) -> tuple[Usage | None, int]:
        """Returns the usage reported so far, and the tokens that what has come is estimated at; 0 where the last event has
        reported them, and no more than an answer has."""
        usage = find_usage(self.last_plain) if b'"usage' in self.last_plain else None
        if usage is not None and self.usage is not None:
            usage = joined(self.usage, usage, max)
        elif usage is None and self._reported_at != self.plain:
            return self.usage, self._tokens()
        usage = usage or self.usage
        return usage, 0 if usage is not None and 0 < usage.output <= LONGEST_ANSWER else self._tokens()

    def _tokens(self) -> int:
        samples = [_measured(one) if isinstance(one, bytes) else one for one in (*self.samples, self.last_plain)]
        size, plain = _measured(self._first_plain)
        others = self.plain - (size > 0)
        if others:
            plain += extend_samples(samples, others, self.plain_bytes - size)
        # An event has a token at least.
        return max(int(plain + self._read_tokens + self._long_tokens()), self.plain + self._read_events)

    def read(self, block: bytes, *, is_part: bool = False) -> bytes:
        """Returns the part of this block that may be passed on. `is_part`: it is the start or the middle of a long event."""
        if is_part or self._head:
            return self._read_long(block, is_part=is_part)
        kept = []
        for event in sse.split_events(block):
            if self.is_plain(event):
                self.pass_plain(event)
                kept.append(event)
                continue
            kept.append(self._read(event))
            if self.failure is not None:
                break  # nothing is passed on behind a failure
        passed = b"".join(kept)
        return passed.replace(NULL_USAGE, b"") if self._strips else passed

    def is_complete(self, choices: Callable[[], int], *, is_clean: bool) -> bool:
        """Returns whether the stream is complete; `is_clean`: the connection did not break. `choices` is asked for
        how many there have to be. Four kinds of stream:

        1. Those that end with an event of their own. 2. Chats end with `[DONE]`; some providers leave it out, then a clean
        end behind a finish reason for every choice will do. 3. Gemini's, in which that is all there is.
        4. Others, of which we know no last event: a clean end is all.
        """
        if self.is_over or self._head:
            return self.is_over
        if self._form == "chat":
            return is_clean and len(self.finished) >= choices()
        if self._form == "generate":
            return is_clean and (sse.PROMPT in self.finished or len(self.finished) >= choices())
        return is_clean and self._form == "other"

    def error_event(self, message: str, code: str) -> bytes:
        """Returns an error event as this stream's readers expect it."""
        if self._form == "responses":
            number = self._last_number() + 1
            failed = sse.response_failed({"code": code, "message": message}, number + 1, self._begun)
            return sse.response_error(message, code, number) + failed
        if self._form == "generate":
            return sse.google_error(message, code)
        return sse.message_error(message, code) if self._form == "messages" else sse.chat_error(message, code)

    def _last_number(self) -> int:
        """The sequence number of the last event: an error of ours is the next one."""
        plain = sse.event_json(self.last_plain) if self.last_plain else None
        return max(self._number, _number_of(plain or {}))

    def _read(self, event: bytes) -> bytes:
        data = sse.event_data(event).strip()
        if data == sse.DONE:
            return self._end(event)
        # Behind the last event only `[DONE]` may follow.
        if self.is_over:
            return b""
        error = sse.error_in(event)
        if not data and error is None and sse.is_silent(event):
            return sse.event_without_data(event, dict(self._headers))
        parsed = sse.json_object(data)
        if parsed is not None:
            # Before an error ends the stream, because its event may report a usage, too.
            self._note(parsed)
        if error is not None:
            return self._fail(event, parsed, error)
        if parsed is None:
            self.failure = self._interrupted("the provider sent an event that is not JSON")
            return b""
        if self._strips and parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict):
            self.usage_event = event
            return b""
        return self._take(event, parsed)

    def _end(self, event: bytes) -> bytes:
        """Passes `[DONE]` on once, also behind an end of another kind."""
        is_first, self._has_done = not self._has_done, True
        self._be_over()
        return event if is_first else b""

    def _be_over(self) -> None:
        # No event is plain from now on: each is read, and dropped.
        self.is_over, self.is_plain = True, plain_events_of("other")

    def _take(self, event: bytes, parsed: dict[str, Any]) -> bytes:
        """Passes on an event with an object that is no error."""
        if not is_without_content(parsed):
            self.events += 1
        for choice in choices_of(parsed):
            if choice.get("finish_reason"):
                index = choice.get("index")
                self.finished.add(index if isinstance(index, int) else 0)
        if self._form == "generate":
            self.finished.update(ended_candidates(parsed))
        reason = failed_reason(parsed) if self.finished else None
        if reason is not None:
            self.failure = Failure(
                STREAM_ERROR, self.error_event(failed_finish_message(reason), ErrorClass.STREAM_INTERRUPTED)
            )
        kind = parsed.get("type")
        if isinstance(kind, str) and kind in _LAST:
            self._be_over()
        return event

    def _note(self, parsed: dict[str, Any]) -> None:
        """Notes the event's output and usage. A stream of unknown form may also turn out to be one with a known end."""
        kind = parsed.get("type")
        if self._form == "other" and isinstance(kind, str):
            if kind == "message_start":
                self._form = "messages"
            elif kind.startswith("response."):
                self._form = "responses"
        if tokens := output_tokens_in(parsed):
            self._read_events += 1
            self._read_tokens += tokens
            self._reported_at = -1
        found = usage_in(parsed)
        usage = None if found is None else read_usage(found)
        if usage is not None:
            add_beside(usage, parsed)
        if usage is not None and found is not None:
            self._reported_at = self.plain
            if self._form == "messages":
                self._reported = merge_usage(self._reported, found, is_estimated=parsed.get("estimated") is True)
                self.usage = read_usage(self._reported)
            else:
                self.usage = usage if self.usage is None else joined(self.usage, usage, max)  # counts only grow
        if self._form == "responses":
            self._number = max(self._number, _number_of(parsed))
            if kind == "response.created" and isinstance(parsed.get("response"), dict):
                self._begun = sse.begun_response(parsed["response"])

    def _fail(self, event: bytes, parsed: dict[str, Any] | None, error: dict[str, Any]) -> bytes:
        """Passes on the provider's own error: as it is where clients recognise it, else in their form."""
        is_foreign = self._form == "messages" and (parsed is None or parsed.get("type") != "error")
        if parsed is not None and (parsed.get("error") or self._form != "chat") and not is_foreign:
            self.failure = Failure(STREAM_ERROR, self._failed_response(parsed, error))
            return event
        if parsed is None:
            message = error.get("message")
            self.failure = self._interrupted(str(message or "the provider reported an error"))
        elif is_foreign:
            self.failure = Failure(STREAM_ERROR, sse.message_error(str(error.get("message")), str(error.get("code"))))
        else:
            self.failure = Failure(STREAM_ERROR, b"data: %s\n\n" % sse.error_json(error))
        return b""

    def _failed_response(self, parsed: dict[str, Any], error: dict[str, Any]) -> bytes:
        """Returns what follows a provider's own error: in Responses the failed response, unless the event itself is that."""
        if self._form != "responses" or parsed.get("type") == "response.failed":
            return b""
        return sse.response_failed(error, self._last_number() + 1, self._begun)

    def _interrupted(self, why: str) -> Failure:
        outcome = ErrorClass.STREAM_INTERRUPTED
        return Failure(outcome, self.error_event(why, outcome))

    def _read_long(self, block: bytes, *, is_part: bool) -> bytes:
        """Reads a piece of an event that is not held back, of which only the first and the last bytes are known.

        If its end shows that it was no JSON, the client has a part of it already, and no event can follow.
        """
        if self.is_over:
            return b""
        end = None if is_part else _EVENT_END.search(block)
        piece = block if end is None else block[: end.end()]
        if not self._head and not sse.event_data(piece).startswith(b"{"):
            self.failure = self._interrupted("the provider sent an event that is not JSON")
            return b""
        self._head = self._head or piece[:_HEAD_BYTES]
        self._long_bytes += len(piece)
        self._long_tail = (self._long_tail + piece)[-_TAIL_BYTES:]
        if is_part:
            return block
        if not self._long_tail.rstrip().endswith(b"}"):
            self.failure = Failure(ErrorClass.STREAM_INTERRUPTED)
            return b""
        self.events += 1
        self._read_tokens += self._long_tokens()
        usage = find_usage(self._long_tail)
        self._reported_at = -1 if usage is None else self.plain
        self.usage = usage or self.usage
        if _LAST_NAME.search(self._head):
            self._be_over()
        if _FINISH.search(self._long_tail):
            self.finished.add(0)
        self._head = self._long_tail = b""
        self._long_bytes = 0
        return piece + self.read(block[len(piece) :])

    def _long_tokens(self) -> float:
        """Returns the estimated tokens of the long event that is being read, so far; 0.0: there is none."""
        if not self._head or (b"response." in self._head and b".delta" not in self._head):
            return 0.0
        if b'"image/' in self._head or b"data:image/" in self._head:
            return PICTURE_TOKENS
        tail = self._long_tail
        is_base64 = tail.isascii() and tail.count(b" ") + tail.count(b"\\") < len(tail) // _HEAD_BYTES
        return self._long_bytes / (AUDIO_CHARACTERS if is_base64 else BYTES_PER_TOKEN)


def _measured(event: bytes) -> tuple[int, float]:
    """Returns the bytes and the estimated tokens of an event."""
    return len(event), output_tokens_in(sse.event_json(event) or {})


def _number_of(event: dict[str, Any]) -> int:
    number = event.get("sequence_number")
    return number if isinstance(number, int) and abs(number) < _MOST_NUMBER else -1


def usage_in(event: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the usage object that an answer or an event holds, wherever its provider puts it."""
    usage = event.get("usage") or event.get("usageMetadata")
    if isinstance(usage, dict):
        return usage
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None  # Moonshot, at the end of a stream
    for holder in (event.get("response"), event.get("message"), event.get("x_groq"), first):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return usage
    return None
