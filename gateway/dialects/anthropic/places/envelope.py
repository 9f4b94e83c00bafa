"""Claude's own Messages at clouds that put an envelope around them: nothing is converted, and nothing is lost.

Bedrock's InvokeModel and Vertex AI's rawPredict have the model, and whether the answer is streamed, in the path, and the
version in the body. Vertex streams events as Anthropic does; Bedrock has each in a frame, as base64. Source: Anthropic's SDK,
`lib/bedrock` and `lib/vertex`.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.openai.sse.sse import error_json, json_object
from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, object_of, objects, once, text_of
from gateway.dialects.bedrock.answer.frames import Frame, FrameReader
from gateway.dialects.bedrock.answer.stream import error_of
from gateway.dialects.sse.events import TOO_LONG
from gateway.dialects.sse.shapes import message_error

_BEDROCK: Final = "bedrock-2023-05-31"
_VERTEX: Final = "vertex-2023-10-16"
_STATE: Final = Gap("thread", How.REFUSED, "clouds keep no state of conversations")
"""What Anthropic alone has; its SDKs send a conversation whole instead, once they are told."""
ELSEWHERE: Final = "clouds take pictures that are in the request alone"
"""Source: Anthropic's documentation of vision, on which platforms."""
_KIND: Final = re.compile(rb'\{"type":"([a-z_]{1,64})"')
"""How Anthropic's events begin, so that most need not be parsed."""


def gaps_of_clouds(body: Json) -> Sequence[Gap]:
    """Returns what of a request of Messages is Anthropic's own, and at no cloud."""
    found = [_STATE] if body.get("thread") else []
    for message in objects(body.get("messages")):
        content = message.get("content")
        for block in content if type(content) is list else ():
            if type(block) is dict and (kind := block.get("type")) in ("image", "tool_result"):
                for one in (block,) if kind == "image" else objects(block.get("content")):
                    told = object_of(one.get("source")).get("type") if one.get("type") == "image" else None
                    if told in ("url", "file"):
                        found.append(Gap(f"messages.image.{told}", How.REFUSED, ELSEWHERE))
    return once(found) if found else ()


class MessagesAtBedrock:
    """Puts Messages into InvokeModel, and takes its answers out; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return gaps_of_clouds(body)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = {name: value for name, value in body.items() if name not in ("model", "stream")}
        return ConvertedRequest({"anthropic_version": _BEDROCK, **made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return body

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _FramedMessages()


class MessagesAtVertex:
    """Puts Messages into rawPredict, whose answers and streams are Anthropic's own; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return gaps_of_clouds(body)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = {name: value for name, value in body.items() if name != "model"}
        return ConvertedRequest({"anthropic_version": _VERTEX, **made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return body

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _AsItIs()


class _AsItIs:
    """Implements `base.Reader` for a stream that is in the caller's language."""

    @property
    def is_over(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def close(self, *, is_clean: bool) -> bytes:
        return b""


class _FramedMessages:
    """Takes the events of a message out of Bedrock's frames; implements `base.Reader`."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._has_begun = self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    def feed(self, chunk: bytes) -> bytes:
        if self._is_over:
            return b""
        made = b"".join(map(self._read, self._frames.feed(chunk)))
        if (fault := self._frames.fault) is not None and not self._is_over:
            made += self._fail(
                {"type": "api_error", "message": f"the provider's stream cannot be read: {fault}", "code": TOO_LONG}
            )
        return made

    def close(self, *, is_clean: bool) -> bytes:
        """Messages end with an event of their own: there is nothing to add."""
        return b""

    def _read(self, frame: Frame) -> bytes:
        if self._is_over:
            return b""
        if frame.event is None:
            return self._fail(error_of(frame.headers, frame.payload))
        if frame.event != "chunk":
            return b""
        try:
            event = b64decode(text_of((json_object(frame.payload) or {}).get("bytes")))
        except ValueError:
            event = b""
        found = _KIND.match(event)
        said = None if found is not None else json_object(event)
        kind = found.group(1) if found is not None else text_of((said or {}).get("type")).encode()
        if not kind or b"\n" in event or b"\n" in kind:
            return self._fail(
                {"type": "api_error", "message": "an event of the provider's cannot be read", "code": TOO_LONG}
            )
        self._has_begun = self._has_begun or kind == b"content_block_delta"
        return b"event: %b\ndata: %b\n\n" % (kind, event)

    def _fail(self, error: Json) -> bytes:
        """Ends the stream with the target's error: before any output as it is, which the tables of errors read."""
        self._is_over = True
        error = message_error(error) if self._has_begun else error
        return b'event: error\ndata: {"type":"error",%b\n\n' % error_json(error)[1:]
