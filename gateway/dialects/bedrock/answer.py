"""An answer of Converse's as a chat completion: its blocks become one message, its counts all that was read and written.

In this order: a whole answer, the frames of AWS's event streams (`FrameReader`), the stream (`ConverseAsChat`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import crc32
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, cast

import orjson

from gateway.core.openai.json_edit import is_overcrowded
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import read_usage, tier_named
from gateway.core.types import Usage
from gateway.dialects.anthropic.out_thoughts import FORMAT
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    chat_usage,
    finish_fields,
    object_of,
    objects,
    text_of,
)
from gateway.dialects.bedrock.options import ContentRecorder, keep_content
from gateway.dialects.schema_tools.tools import with_own_name
from gateway.dialects.streams import NO_ARGUMENTS, TOO_LONG, UNCONVERTIBLE, ChatStreamWriter, OpenTool, chat_head

# --- A whole answer ---


_FINISH: Final = {
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    **dict.fromkeys(("end_turn", "stop_sequence"), "stop"),
}
"""The finish reason of a chat completion, by why the model stopped; one that is not known stays as it is."""
_MALFORMED_REASONS: Final = ("malformed_model_output", "malformed_tool_use")
OWN_FORMAT: Final = "bedrock-converse-v1"
"""The `format` of encrypted thoughts that are no text, as Anthropic's are, under Bedrock's base64."""


def chat_of_converse(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    content = object_of(object_of(body.get("output")).get("message")).get("content")
    if not isinstance(content, list):
        raise MalformedAnswer("the answer has no message")
    texts: list[str] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    details: list[Json] = []
    cited: list[Json] = []
    length = 0
    """The characters of the texts, by which citations have their places."""
    for place, block in enumerate(map(object_of, content)):
        if "text" in block:
            texts.append(text_of(block["text"]))
            length += len(texts[-1])
        elif "toolUse" in block:
            calls.append(tool_call(object_of(block["toolUse"]), is_whole=True))
        elif "reasoningContent" in block:
            inner = object_of(block["reasoningContent"])
            if "redactedContent" in inner:
                details.append(encrypted(inner["redactedContent"], place))
                continue
            reasoning = object_of(inner.get("reasoningText"))
            text, signature = text_of(reasoning.get("text")), text_of(reasoning.get("signature"))
            thoughts.append(text)
            detail = {"type": "reasoning.text", "text": text, "index": place}
            details.append(detail | ({"signature": signature, "format": FORMAT} if signature else {}))
        elif "citationsContent" in block:
            inner, start = object_of(block["citationsContent"]), length
            for part in objects(inner.get("content")):
                texts.append(text_of(part.get("text")))
                length += len(texts[-1])
            pages = (cited_page(one, start, length) for one in objects(inner.get("citations")))
            cited += [page for page in pages if page is not None]
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    more = {
        "reasoning_content": "".join(thoughts), "reasoning_details": details, "tool_calls": calls, "annotations": cited,
    }  # fmt: skip
    message |= {name: value for name, value in more.items() if value}
    finish = finish_of(body.get("stopReason"), has_calls=bool(calls))
    keep_content(content, sent.memory)
    choice = {"index": 0, "message": message, "logprobs": None, **finish_fields(sent, finish, has_calls=bool(calls))}
    made = {**chat_head(sent, "chat.completion"), **tier_of(sent, body), "choices": [choice]}
    usage = usage_of(body)
    return made | ({"usage": chat_usage(usage)} if usage else {})


def tier_of(sent: ConvertedRequest, answer: Json) -> Json:
    """Returns the tier by which the call was served, where one was asked for."""
    tier = text_of(object_of(answer.get("serviceTier")).get("type"))
    return {"service_tier": tier} if tier and sent.source.get("service_tier") else {}


def finish_of(reason: Any, *, has_calls: bool) -> str:
    """Returns why the answer ended. Raises MalformedAnswer where the model's words were no answer.

    A limit or a filter is never taken for calls (NousResearch/hermes-agent#43478).
    """
    if reason in _MALFORMED_REASONS:
        raise MalformedAnswer(f"the model's answer could not be read ({reason})")
    word = text_of(reason)
    finish = _FINISH.get(word, word) or "stop"
    return "tool_calls" if finish == "stop" and has_calls else finish


def tool_call(block: Json, *, is_whole: bool) -> Json:
    """Returns a block that calls a tool as a message has it; where it is not whole, its input follows.

    Raises MalformedAnswer.
    """
    id, name, given = block.get("toolUseId"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not isinstance(name, str) or (is_whole and not isinstance(given, dict | None)):
        raise MalformedAnswer("a call of a tool has no id, no name, or no object as its input")
    arguments = (orjson.dumps(given).decode() if given else NO_ARGUMENTS) if is_whole else ""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def encrypted(data: Any, place: int) -> Json:
    """Returns encrypted thoughts as a detail; Anthropic's are a text under Bedrock's base64, and go to Anthropic, too."""
    given = text_of(data)
    try:
        text = b64decode(given, validate=True).decode("ascii")
    except ValueError:
        text = ""
    if text and text.isprintable() and b64encode(text.encode()).decode() == given:
        return {"type": "reasoning.encrypted", "data": text, "format": FORMAT, "index": place}
    return {"type": "reasoning.encrypted", "data": given, "format": OWN_FORMAT, "index": place}


def redacted_content(data: str) -> str:
    """Returns encrypted thoughts of Claude's as Bedrock has them."""
    return b64encode(data.encode(errors="surrogatepass")).decode()


def cited_page(citation: Json, start: int, end: int) -> Json | None:
    """Returns a citation of a page with its place in the whole text; None: it cites something else."""
    url = object_of(object_of(citation.get("location")).get("web")).get("url")
    if not isinstance(url, str):
        return None
    page = {"start_index": start, "end_index": end, "url": url, "title": text_of(citation.get("title"))}
    return {"type": "url_citation", "url_citation": page}


def usage_of(answer: Json) -> Usage | None:
    """Returns the usage in an answer or its last event, with the tier that stands beside it."""
    usage = read_usage(object_of(answer.get("usage")))
    if usage is not None:
        usage.tier = tier_named(object_of(answer.get("serviceTier")).get("type"))
    return usage


# --- The frames of AWS's event streams ---


MOST_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The bytes of the longest frame that is waited for."""
_PRELUDE_BYTES: Final = 12
_LEAST_BYTES: Final = _PRELUDE_BYTES + 4
_unpack: Final = Struct(">III").unpack_from
_FIXED_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The bytes of a header's value, by its type, where these do not vary."""
_BYTES, _STRING = 6, 7
_MOST_KNOWN: Final = 64


class Frame(NamedTuple):
    """One frame, whose checksums are right.

        total u32 | headers u32 | crc32 of those 8 bytes | headers | payload | crc32 of all before

    All numbers are big-endian. A header is a name (u8 length), a type, and a value; those that matter here are strings
    (type 7, u16 length). Source: `application/vnd.amazon.eventstream`, Smithy's specification "Amazon Event Stream".
    """

    event: str | None
    """The event's name; None: the frame is no event but an error."""
    headers: Mapping[str, str]
    """The headers that are strings."""
    payload: bytes


_FRAME: Final = cast("Callable[[tuple[Any, ...]], Frame]", partial(tuple.__new__, Frame))
"""Makes a frame in a third of the time: there are as many as words."""


class BadFrame(Exception):
    """The bytes are no frames; what follows cannot be read."""


class FrameReader:
    """Cuts bytes into frames, and holds back what is no whole frame yet."""

    __slots__ = ("_known", "_pending", "_wanted", "fault")

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why nothing more can be read, once it is so: what follows is not read."""
        self._pending = bytearray()
        self._wanted = _PRELUDE_BYTES
        """The bytes that have to be there before anything more can be read."""
        self._known: dict[bytes, tuple[str | None, Mapping[str, str]]] = {}
        """Headers by their bytes, and the event that they name: a stream repeats a few."""

    @property
    def is_between(self) -> bool:
        """Returns whether nothing is held back: the stream could end here."""
        return not self._pending

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that are complete now, up to what is none (see `fault`)."""
        frames: list[Frame] = []
        if self.fault is None:
            try:
                self._read(chunk, frames)
            except BadFrame as error:
                self.fault = str(error)
                self._pending.clear()
        return frames

    def _read(self, chunk: bytes, frames: list[Frame]) -> None:
        if self._pending:
            self._pending += chunk
            if len(self._pending) < self._wanted:
                return
            chunk = bytes(self._pending)
            self._pending.clear()
            if is_overcrowded(chunk):
                raise BadFrame("a frame has too many values")
        start, there = 0, len(chunk)
        while there - start >= _PRELUDE_BYTES:
            total, size, checksum = _unpack(chunk, start)
            if crc32(chunk[start : start + 8]) != checksum:
                raise BadFrame("the checksum of a frame's lengths is wrong")
            if total > MOST_FRAME_BYTES:
                raise BadFrame(f"a frame is longer than {MOST_FRAME_BYTES} bytes")
            if size + _LEAST_BYTES > total:
                raise BadFrame("the headers of a frame are longer than the frame")
            end = start + total
            if end > there:
                self._wanted = total
                self._pending += chunk[start:]
                return
            at = end - 4
            if crc32(chunk[start:at]) != int.from_bytes(chunk[at:end], "big"):
                raise BadFrame("the checksum of a frame is wrong")
            payload = start + _PRELUDE_BYTES + size
            head = chunk[start + _PRELUDE_BYTES : payload]
            event, headers = self._known.get(head) or self._learn(head)
            frames.append(_FRAME((event, headers, chunk[payload:at])))
            start = end
        self._wanted = _PRELUDE_BYTES
        if start < there:
            self._pending += chunk[start:]

    def _learn(self, head: bytes) -> tuple[str | None, Mapping[str, str]]:
        headers = headers_in(head)
        found = headers.get(":event-type") if headers.get(":message-type") == "event" else None, headers
        if len(self._known) < _MOST_KNOWN:
            self._known[head] = found
        return found


def headers_in(head: bytes) -> Mapping[str, str]:
    """Returns the headers that are strings. Raises BadFrame where the bytes are no headers."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(head):
            end = at + 1 + head[at]
            name, kind = head[at + 1 : end].decode(), head[end]
            at = end + 1
            if kind in (_BYTES, _STRING):
                size = int.from_bytes(head[at : at + 2], "big")
                at += 2
            else:
                size = _FIXED_SIZES[kind]
            if at + size > len(head):
                raise BadFrame("a header of a frame is longer than its headers")
            if kind == _STRING:
                found[name] = head[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise BadFrame("the headers of a frame cannot be read") from error
    return found


# --- The stream ---


_UNREADABLE: Final = TOO_LONG


class ConverseAsChat:
    """Reads the frames of an answer; implements `base.Reader`.

    The end is `metadata`, which has the counts and comes last; a stream that ends behind `messageStop` has ended, too, and
    any other was cut. What is unknown is left out.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._out = ChatStreamWriter(sent)
        self._frames = FrameReader()
        self._tools: dict[int, OpenTool] = {}
        """The open calls, by their places among the blocks; usually one."""
        self._length = self._block_start = 0
        """Characters of text written, and those before the block that is open."""
        self._citations: list[Json] = []
        self._cited: list[Json] = []
        """The citations of the block that is open."""
        self._turn = ContentRecorder() if sent.memory is not None and "toolConfig" in sent.body else None
        """What is to be remembered, where there may be calls."""
        self._finish: str | None = None
        self._is_over = False
        self.reported: Usage | None = None

    @property
    def is_over(self) -> bool:
        return self._is_over

    def feed(self, chunk: bytes) -> bytes:
        if self._is_over:
            return b""
        made = []
        for frame in self._frames.feed(chunk):
            try:
                made.append(self._read(frame))
            except orjson.JSONEncodeError:
                made.append(self._fail(UNCONVERTIBLE))
        if (fault := self._frames.fault) is not None and not self._is_over:
            made.append(self._fail({"message": f"the provider's stream cannot be read: {fault}", "code": _UNREADABLE}))
        return made[0] if len(made) == 1 else b"".join(made)

    def close(self, *, is_clean: bool) -> bytes:
        """Behind the reason why the model stopped the counts alone may lack."""
        is_end = is_clean and self._finish is not None and self._frames.is_between and not self._is_over
        return self._end({}) if is_end else b""

    def _read(self, frame: Frame) -> bytes:
        if self._is_over:
            return b""
        event, headers, payload = frame
        if event is None:
            return self._fail(error_of(headers, payload))
        parsed = json_object(payload)
        if parsed is None:
            return self._fail({"message": "an event of the provider's is no JSON object", "code": _UNREADABLE})
        place = parsed.get("contentBlockIndex")
        number = place if type(place) is int else 0
        if event == "contentBlockDelta":
            delta = parsed.get("delta")
            if type(delta) is not dict:
                return b""
            return self._grow(number, delta) if self._out.before else self._begin() + self._grow(number, delta)
        return self._take(event, number, parsed)

    def _take(self, event: str, number: int, parsed: Json) -> bytes:
        if event == "messageStart":
            return self._begin()
        if event == "contentBlockStart":
            return self._begin() + self._open(number, object_of(parsed.get("start")))
        if event == "contentBlockStop":
            return self._close(number)
        if event == "messageStop" and parsed.get("stopReason"):
            try:
                self._finish = finish_of(parsed.get("stopReason"), has_calls=self._out.calls > 0)
            except MalformedAnswer as error:
                return self._fail({"message": str(error), "code": _UNREADABLE})
        if event == "metadata":
            self.reported = usage_of(parsed)
            return self._begin() + self._end(parsed)
        return b""

    def _begin(self) -> bytes:
        return b"" if self._out.head else self._out.begin(chat_head(self._sent, "chat.completion.chunk"))

    def _grow(self, place: int, delta: Json) -> bytes:
        text = delta.get("text")
        if type(text) is str:
            if not text:
                return b""
            self._length += len(text)
            if self._turn is not None:
                self._turn.append(place, text)
            return self._out.text(text)
        if type(inner := delta.get("toolUse")) is dict:
            tool, text = self._tools.get(place), inner.get("input")
            if self._turn is not None and type(text) is str:
                self._turn.argue(place, text)
            return self._out.arguments(tool, text) if tool is not None and type(text) is str and text else b""
        if type(inner := delta.get("reasoningContent")) is dict:
            return self._think(place, inner)
        if type(inner := delta.get("citation")) is dict:  # where the block ends is known at its end
            self._cited.append(inner)
            if self._turn is not None:
                self._turn.other(place)
        return b""

    def _think(self, place: int, inner: Json) -> bytes:
        if "redactedContent" in inner:
            if self._turn is not None:
                self._turn.hide(place, inner["redactedContent"])
            return self._out.delta({"reasoning_details": [encrypted(inner["redactedContent"], place)]})
        thought, signature = text_of(inner.get("text")), text_of(inner.get("signature"))
        if not thought and not signature:
            return b""
        if self._turn is not None:
            self._turn.think(place, thought, signature)
        signed = b',"signature":%b,"format":"%b"' % (orjson.dumps(signature), FORMAT.encode()) if signature else b""
        return self._out.thought(place, thought, signed)

    def _open(self, place: int, start: Json) -> bytes:
        block = start.get("toolUse")
        if self._turn is not None and start:
            self._turn.call(place, block) if type(block) is dict else self._turn.other(place)
        if type(block) is not dict:
            return b""
        try:
            made = with_own_name(tool_call(block, is_whole=False), self._sent.names)
        except MalformedAnswer as error:
            return self._fail({"message": str(error), "code": _UNREADABLE})
        self._tools[place] = OpenTool(self._out.calls)
        return self._out.call(made)

    def _close(self, place: int) -> bytes:
        """Ends a block; a call whose arguments did not come has none."""
        if self._cited:
            found = (cited_page(one, self._block_start, self._length) for one in self._cited)
            self._citations += [one for one in found if one is not None]
            self._cited = []
        self._block_start = self._length
        tool = self._tools.pop(place, None)
        return b"" if tool is None or tool.is_begun else self._out.arguments(tool, NO_ARGUMENTS)

    def _end(self, event: Json) -> bytes:
        if self._finish is None:  # no event has said why the model stopped
            return self._fail({"message": "the provider ended its answer without a reason", "code": _UNREADABLE})
        self._is_over = True
        made = b"".join(self._close(place) for place in [*self._tools, -1])  # of a server that does not end its blocks
        if self._turn is not None and self._sent.memory is not None:
            self._turn.keep(self._sent.memory)
        if self._citations:
            made += self._out.delta({"annotations": self._citations})
        if self._out.head:
            self._out.head |= tier_of(self._sent, event)
        fields = finish_fields(self._sent, self._finish, has_calls=self._out.calls > 0)
        return made + self._out.choice({"index": 0, "delta": {}, **fields}) + self._out.end(self.reported)

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        return self._out.failure(error)


def error_of(headers: Mapping[str, str], payload: bytes) -> Json:
    """Returns the error in a frame: an exception of the service's, or one of the stream itself."""
    parsed = json_object(payload) or {}
    name = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    text = text_of(parsed.get("message")) or text_of(parsed.get("Message")) or headers.get(":error-message")
    message = text or "the provider reported an error"
    # A status of 200 has no such header, and tables of errors know the names as errors of their own have them.
    return {**parsed, "type": f"{name[:1].upper()}{name[1:]}", "message": message}
