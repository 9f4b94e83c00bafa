"""The frames of a streamed answer of Converse's as the stream of a chat completion.

    role delta* finish usage? [DONE] | ... error

Each piece is one line that ends with its choices, so that `transcript.is_plain_chat` need not parse it again. The end is
`metadata`, which has the counts and comes last; a stream that ends behind `messageStop` has ended, too, and any other was cut.
What is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from gateway.core.openai.sse.sse import json_object
from gateway.dialects.anthropic.out_thoughts.thoughts import FORMAT
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, object_of, text_of
from gateway.dialects.bedrock.answer import answer
from gateway.dialects.bedrock.answer.frames import Frame, FrameReader
from gateway.dialects.bedrock.request.options.signed_turns import OpenContent
from gateway.dialects.schema_tools.tools.tool_names import with_own_name
from gateway.dialects.sse.events import TOO_LONG, UNSAYABLE, chat_failure

_AFTER: Final = b'},"finish_reason":null}]}\n\n'
_MALFORMED: Final = TOO_LONG


class _OpenUse:
    """A call that is being told: its place among the calls, and whether anything of its arguments was."""

    __slots__ = ("index", "is_told")

    def __init__(self, index: int) -> None:
        self.index, self.is_told = index, False


class ConverseAsChat:
    """Reads the frames of an answer; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._tells_usage = bool(object_of(sent.asked.get("stream_options")).get("include_usage"))
        self._frames = FrameReader()
        self._head: Json | None = None
        self._before = b""
        """Of a piece, all that stands before its delta."""
        self._tools: dict[int, _OpenUse] = {}
        """The calls that are being told, by their places among the blocks; usually one."""
        self._calls = 0
        self._length = self._block_start = 0
        """Characters of text told, and those before the block that is open."""
        self._citations: list[Json] = []
        self._cited: list[Json] = []
        """Of the block that is open."""
        self._turn = OpenContent() if sent.memory is not None and "toolConfig" in sent.body else None
        """What is to be remembered, where there may be calls."""
        self._has_thought = False
        self._finish: str | None = None
        self._is_over = False

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
                made.append(self._fail(UNSAYABLE))
        if (fault := self._frames.fault) is not None and not self._is_over:
            made.append(self._fail({"message": f"the provider's stream cannot be read: {fault}", "code": _MALFORMED}))
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
        said = json_object(payload)
        if said is None:
            return self._fail({"message": "an event of the provider's is no JSON object", "code": _MALFORMED})
        place = said.get("contentBlockIndex")
        number = place if type(place) is int else 0
        if event == "contentBlockDelta":
            delta = said.get("delta")
            if type(delta) is not dict:
                return b""
            return self._grow(number, delta) if self._before else self._begin() + self._grow(number, delta)
        return self._take(event, number, said)

    def _take(self, event: str, number: int, said: Json) -> bytes:
        if event == "messageStart":
            return self._begin()
        if event == "contentBlockStart":
            return self._begin() + self._open(number, object_of(said.get("start")))
        if event == "contentBlockStop":
            return self._close(number)
        if event == "messageStop":
            try:
                self._finish = answer.finish_of(said.get("stopReason"), has_calls=self._calls > 0)
            except MalformedAnswer as error:
                return self._fail({"message": str(error), "code": _MALFORMED})
        if event == "metadata":
            return self._begin() + self._end(said)
        return b""

    def _begin(self) -> bytes:
        if self._head is not None:
            return b""
        self._head = answer.head(self._sent, "chat.completion.chunk")
        before = orjson.dumps({**self._head, "choices": []}).removesuffix(b"]}")
        self._before = b'data: %b{"index":0,"delta":{' % before
        return b'%b"role":"assistant","content":""%b' % (self._before, _AFTER)

    def _grow(self, place: int, delta: Json) -> bytes:
        """Tells more of a block."""
        text = delta.get("text")
        if type(text) is str:
            if not text:
                return b""
            self._length += len(text)
            if self._turn is not None:
                self._turn.say(place, text)
            return b'%b"content":%b%b' % (self._before, orjson.dumps(text), _AFTER)
        if type(inner := delta.get("toolUse")) is dict:
            tool, text = self._tools.get(place), inner.get("input")
            if self._turn is not None and type(text) is str:
                self._turn.argue(place, text)
            return self._argue(tool, text) if tool is not None and type(text) is str and text else b""
        if type(inner := delta.get("reasoningContent")) is dict:
            return self._think(place, inner)
        if type(inner := delta.get("citation")) is dict:  # where the block ends is known at its end
            self._cited.append(inner)
            if self._turn is not None:
                self._turn.other(place)
        return b""

    def _argue(self, tool: _OpenUse, text: str) -> bytes:
        tool.is_told = True
        form = b'%b"tool_calls":[{"index":%d,"function":{"arguments":%b}}]%b'
        return form % (self._before, tool.index, orjson.dumps(text), _AFTER)

    def _think(self, place: int, inner: Json) -> bytes:
        """Tells thoughts twice: in plain words, and as the pieces of what can go back once it is signed."""
        if "redactedContent" in inner:
            if self._turn is not None:
                self._turn.hide(place, inner["redactedContent"])
            return self._delta({"reasoning_details": [answer.encrypted(inner["redactedContent"], place)]})
        told, signature = text_of(inner.get("text")), text_of(inner.get("signature"))
        if not told and not signature:
            return b""
        if self._turn is not None:
            self._turn.think(place, told, signature)
        self._has_thought = True
        words = orjson.dumps(told)
        plain = b'"reasoning_content":%b,' % words if told else b""
        more = b',"signature":%b,"format":"%b"' % (orjson.dumps(signature), FORMAT.encode()) if signature else b""
        form = b'%b%b"reasoning_details":[{"type":"reasoning.text","index":%d,"text":%b%b}]%b'
        return form % (self._before, plain, place, words, more, _AFTER)

    def _open(self, place: int, start: Json) -> bytes:
        block = start.get("toolUse")
        if self._turn is not None and start:
            self._turn.call(place, block) if type(block) is dict else self._turn.other(place)
        if type(block) is not dict:
            return b""
        try:
            made = with_own_name(answer.tool_call(block, is_whole=False), self._sent.names)
        except MalformedAnswer as error:
            return self._fail({"message": str(error), "code": _MALFORMED})
        self._tools[place] = tool = _OpenUse(self._calls)
        self._calls += 1
        return self._delta({"tool_calls": [{"index": tool.index, **made}]})

    def _close(self, place: int) -> bytes:
        """Ends a block; a call of which no arguments were told has none."""
        if self._cited:
            found = (answer.cited_page(one, self._block_start, self._length) for one in self._cited)
            self._citations += [one for one in found if one is not None]
            self._cited = []
        self._block_start = self._length
        tool = self._tools.pop(place, None)
        return b"" if tool is None or tool.is_told else self._argue(tool, answer.NO_ARGUMENTS)

    def _end(self, said: Json) -> bytes:
        if self._finish is None:  # the model was not told to have stopped
            return self._fail({"message": "the provider ended its answer without a reason", "code": _MALFORMED})
        self._is_over = True
        made = b"".join(self._close(place) for place in [*self._tools, -1])  # of a server that does not end its blocks
        if self._turn is not None and self._sent.memory is not None:
            self._turn.keep(self._sent.memory)
        if self._citations:
            made += self._delta({"annotations": self._citations})
        if self._head is not None:
            self._head |= answer.tier_of(self._sent, said)
        made += self._chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": self._finish}]})
        usage = object_of(said.get("usage"))
        if self._tells_usage and usage:
            made += self._chunk({"choices": [], "usage": answer.usage_of_chat(usage)})
        return made + b"data: [DONE]\n\n"

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        return chat_failure(self._sent, error, has_begun=self._length > 0 or self._calls > 0 or self._has_thought)

    def _delta(self, delta: Json) -> bytes:
        return self._chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _chunk(self, fields: Json) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**(self._head or {}), **fields})


def error_of(headers: Mapping[str, str], payload: bytes) -> Json:
    """Returns the error that a frame tells: an exception of the service's, or one of the stream itself."""
    said = json_object(payload) or {}
    name = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    told = text_of(said.get("message")) or text_of(said.get("Message")) or headers.get(":error-message")
    message = told or "the provider reported an error"
    # A status of 200 has no such header, and tables of errors know the names as errors of their own have them.
    return {**said, "type": f"{name[:1].upper()}{name[1:]}", "message": message}
