"""What Claude answers, for callers of chat completions: the whole message first, then the stream of its events.

The blocks of a message become one message of a chat completion. Blocks of text are joined without anything between, for
citations cut one sentence into many blocks.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse import error_in, event_data, is_silent, json_object
from gateway.core.openai.usage import read_usage
from gateway.dialects.anthropic.out_thoughts import FORMAT, TurnRecorder, detail_of, keep_message
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
from gateway.dialects.schema_tools.tools import with_own_name
from gateway.dialects.streams import (
    NO_ARGUMENTS,
    TOO_LONG,
    ChatStreamWriter,
    ConvertingReader,
    OpenTool,
    chat_head,
    data_of,
)

# --- The whole message ---


FINISH: Final = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "tool_use": "tool_calls",
    **dict.fromkeys(("compaction", "end_turn", "pause_turn", "stop_sequence"), "stop"),
}
"""The finish reason of a chat completion, by why a message ended; one that is not known stays as it is."""
_TIERS: Final = {"standard": "default", "priority": "priority"}


def chat_of_message(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    content = body.get("content")
    if not isinstance(content, list):
        raise MalformedAnswer("the answer has no content")
    texts: list[str] = []
    thoughts: list[str] = []
    details: list[Json] = []
    calls: list[Json] = []
    cited: list[Json] = []
    length = 0
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            text = text_of(block.get("text"))
            cited += cited_pages(block.get("citations"), length, length + len(text))
            length += len(text)
            texts.append(text)
        elif kind == "tool_use":
            calls.append(tool_call(block))
        elif kind in ("thinking", "redacted_thinking"):
            details.append(detail_of(block, place) or {})
            thoughts.append(text_of(block.get("thinking")))
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if details:
        message["reasoning_details"] = details
    if calls:
        message["tool_calls"] = calls
    if cited:
        message["annotations"] = cited
    finish = finish_of(body.get("stop_reason"), has_calls=bool(calls))
    if finish == "content_filter":
        message["refusal"] = refusal_of(body)
    choice = {"index": 0, "message": message, "logprobs": None, **finish_fields(sent, finish, has_calls=bool(calls))}
    keep_message(content, sent.memory)
    usage = read_usage(object_of(body.get("usage")))
    made = {**head(sent, body, "chat.completion"), "choices": [choice]}
    return made | ({"usage": chat_usage(usage)} if usage else {})


def head(sent: ConvertedRequest, body: Json, kind: str) -> Json:
    tier = _TIERS.get(text_of(object_of(body.get("usage")).get("service_tier")))
    return chat_head(sent, kind, id=body.get("id"), model=body.get("model"), tier=tier)


def finish_of(reason: Any, *, has_calls: bool) -> str:
    """Returns why the answer ended; a limit or a refusal is never taken for calls (NousResearch/hermes-agent#43478)."""
    word = text_of(reason)
    finish = FINISH.get(word, word) or "stop"
    return "tool_calls" if finish == "stop" and has_calls else finish


def refusal_of(body: Json) -> str | None:
    """Returns in words why the model, or what watches over it, has refused."""
    return text_of(object_of(body.get("stop_details")).get("explanation")) or None


def tool_call(block: Json) -> Json:
    """Returns a block that calls a tool as a message has it. Raises MalformedAnswer."""
    id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not isinstance(name, str) or not isinstance(given, dict | None):
        raise MalformedAnswer("a call of a tool has no id, no name, or no object as its input")
    try:
        arguments = orjson.dumps(given).decode() if given else NO_ARGUMENTS
    except orjson.JSONEncodeError as error:
        raise MalformedAnswer("the input of a call is nested too deeply") from error
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def cited_pages(citations: Any, start: int, end: int) -> list[Json]:
    """Returns a block's citations of pages, as chat completions have them: with their places in the whole text."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": start,
                "end_index": end,
                "url": text_of(one.get("url")),
                "title": text_of(one.get("title")),
            },
        }
        for one in objects(citations)
        if one.get("type") == "web_search_result_location"
    ]


# --- The stream ---


_MALFORMED: Final = TOO_LONG
_OF_THE_END: Final = ("stop_reason", "stop_details")
PING: Final = b": ping\n\n"


class MessagesAsChat(ConvertingReader):
    """Reads the events of a message; implements `base.Reader`.

    No word is held back; citations are, because chat completions have them at once. The end is written when the target has
    sent its own: a stream without `message_stop` was cut. What is unknown is left out, for the provider promises new kinds
    of blocks and events.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._out = ChatStreamWriter(sent)
        self._tools: dict[int, OpenTool] = {}
        """The open calls, by their places among the blocks; usually one."""
        self._thought = -1
        """The place of the last block of thoughts that was written."""
        self._length = self._block_start = 0
        """Characters of text written, and those before the block that is open."""
        self._citations: list[Json] = []
        self._cited: list[Json] = []
        """The citations of the block that is open."""
        self.reported: Json = {}
        self._end: Json = {}
        """Why the message ended, as far as it is known."""
        self._turn = TurnRecorder() if sent.memory is not None and sent.body.get("tools") else None
        """What is to be remembered, where there may be calls."""
        self._is_begun = False
        """A block has begun."""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None:
            return self._read_odd(event)
        kind = parsed.get("type")
        if kind == "content_block_delta" and self._out.before:
            delta = parsed.get("delta")
            if type(delta) is dict:
                return self._grow(parsed.get("index"), delta)
            return b""
        return self._take(kind, parsed, event)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what is no event of the usual form: an error, a comment, nonsense."""
        if (error := error_in(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        parsed = json_object(data)
        if parsed is not None:
            return self._take(parsed.get("type"), parsed, event)
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, kind: Any, parsed: Json, event: bytes) -> bytes:
        if kind == "ping":
            return PING
        if kind == "error" or (kind is None and "error" in parsed):
            return self._fail(error_in(event) or object_of(parsed.get("error")))
        if kind == "message_start":
            return self._start(object_of(parsed.get("message")))
        if kind == "content_block_start":
            return self._begin({}) + self._open(_place(parsed), object_of(parsed.get("content_block")))
        if kind == "content_block_delta":
            return self._begin({}) + self._grow(parsed.get("index"), object_of(parsed.get("delta")))
        if kind == "content_block_stop":
            return self._close(_place(parsed))
        if kind == "message_delta":
            self._count(parsed.get("usage"))
            self._end |= {name: value for name, value in object_of(parsed.get("delta")).items() if value is not None}
        elif kind == "message_stop":
            return self._begin({}) + self._finish()
        return b""

    def _start(self, message: Json) -> bytes:
        """Begins the stream. Some servers begin twice, which says nothing new.

        Where another message begins in the middle, a server behind has begun again: merged, the two make no sense, and the
        thoughts of the first would be refused with the conversation for ever (vercel/ai#18331).
        """
        if not self._out.head:
            made = bytearray(self._begin(message))
            for place, block in enumerate(objects(message.get("content"))):  # some bring a part already
                made += b"" if self._is_over else self._open(place, block) + self._close(place)
            self._end |= {name: message[name] for name in _OF_THE_END if message.get(name) is not None}
            return bytes(made)
        is_another = bool(message.get("id")) and message["id"] != self._out.head["id"]
        if not is_another or not self._is_begun:
            return b""
        return self._fail({"message": "another message began in the middle of the answer", "code": _MALFORMED})

    def _begin(self, message: Json) -> bytes:
        if self._out.head:
            return b""
        self._count(message.get("usage"))
        return self._out.begin(head(self._sent, message, "chat.completion.chunk"))

    def _grow(self, place: Any, delta: Json) -> bytes:
        kind = delta.get("type")
        if kind == "text_delta":
            text = delta.get("text")
            if type(text) is not str or not text:
                return b""
            self._length += len(text)
            if self._turn is not None:
                self._turn.grow(place, text)
            return self._out.text(text)
        if kind == "input_json_delta":
            text, tool = delta.get("partial_json"), self._tools.get(place) if type(place) is int else None
            if self._turn is not None and type(text) is str:
                self._turn.grow(place, text)
            return self._out.arguments(tool, text) if tool is not None and type(text) is str and text else b""
        if kind == "thinking_delta" or kind == "signature_delta":
            return self._think(place if type(place) is int else 0, delta)
        if kind == "citations_delta":  # where the block ends is known at its end
            self._cited.append(object_of(delta.get("citation")))
            if self._turn is not None:
                self._turn.cite(place, self._cited[-1])
        return b""

    def _think(self, place: int, delta: Json) -> bytes:
        text, signature = delta.get("thinking"), delta.get("signature")
        thought = text if type(text) is str else ""
        signed = signature if type(signature) is str else ""
        if not thought and not signed:
            return b""
        if self._turn is not None:
            self._turn.grow(place, thought)
            self._turn.sign(place, signed)
        fields = b',"signature":%b' % orjson.dumps(signed) if signed else b""
        if place != self._thought:  # of the pieces of a block only the first has the format
            self._thought = place
            fields = b',"format":"%b"%b' % (FORMAT.encode(), fields)
        return self._out.thought(place, thought, fields)

    def _open(self, place: int, block: Json) -> bytes:
        kind = block.get("type")
        self._is_begun = True
        if self._turn is not None:
            self._turn.open(place, block)
        if kind == "text":
            self._block_start = self._length
            self._cited = objects(block.get("citations"))
            return self._grow(place, {"type": "text_delta", "text": block.get("text")})
        if kind == "thinking":
            return self._think(place, block)
        if kind == "redacted_thinking":
            return self._out.delta({"reasoning_details": [detail_of(block, place)]})
        if kind != "tool_use":
            return b""
        try:
            made = with_own_name(tool_call(block), self._sent.names)
        except MalformedAnswer as error:
            return self._fail({"message": str(error), "code": _MALFORMED})
        self._tools[place] = OpenTool(self._out.calls, block.get("input"))
        made["function"]["arguments"] = ""
        return self._out.call(made)

    def _close(self, place: int) -> bytes:
        """Ends a block; a call whose arguments did not come in pieces has those that it began with, or none."""
        if self._cited:
            self._citations += cited_pages(self._cited, self._block_start, self._length)
            self._cited = []
        tool = self._tools.pop(place, None)
        if tool is None or tool.is_begun:
            return b""
        return self._out.arguments(tool, orjson.dumps(tool.given).decode() if tool.given else NO_ARGUMENTS)

    def _count(self, usage: Any) -> None:
        """Takes the counts of an event; they are of all so far, and the last ones hold."""
        if isinstance(usage, dict):
            self.reported = self.reported | {name: value for name, value in usage.items() if value is not None}

    def _finish(self) -> bytes:
        if not self._end.get("stop_reason"):
            return self._fail({"message": "the provider ended its answer without a reason", "code": _MALFORMED})
        self._is_over = True
        # What is still open is of a server that does not end its blocks.
        made = b"".join([self._close(place) for place in sorted({*self._tools, -1})])
        if self._citations:
            made += self._out.delta({"annotations": self._citations})
        if self._turn is not None and self._sent.memory is not None:
            self._turn.keep(self._sent.memory)
        has_calls = self._out.calls > 0
        finish = finish_of(self._end.get("stop_reason"), has_calls=has_calls)
        refusal = refusal_of(self._end) if finish == "content_filter" else None
        if refusal:
            made += self._out.delta({"refusal": refusal})
        made += self._out.choice({"index": 0, "delta": {}, **finish_fields(self._sent, finish, has_calls=has_calls)})
        return made + self._out.end(read_usage(self.reported))

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        return self._out.failure(error)


def _place(event: Json) -> int:
    place = event.get("index")
    return place if isinstance(place, int) else 0
