"""Translators to Claude: at clouds that put an envelope around Messages, and for callers of chat completions.

In this order: Messages at Bedrock and at Vertex AI, where nothing is converted and nothing is lost; counts of tokens there;
chat completions by Messages (`ChatOverMessages`), and at Vertex AI. Bedrock's InvokeModel and Vertex AI's rawPredict have
the model, and whether the answer is streamed, in the path, and the version in the body. Vertex streams events as Anthropic
does; Bedrock has each in a frame, as base64. Source: Anthropic's SDK, `lib/bedrock` and `lib/vertex`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import orjson

from gateway.core.openai.sse import error_json, json_object
from gateway.core.types import Gap, How
from gateway.dialects.anthropic import out_parts
from gateway.dialects.anthropic.in_request import demands_search, with_later_system
from gateway.dialects.anthropic.out_answer import MessagesAsChat, chat_of_message
from gateway.dialects.anthropic.out_parts import picture_url
from gateway.dialects.anthropic.out_request import ChatOptions, messages_body
from gateway.dialects.base import (
    ConvertedRequest,
    CountingTranslator,
    Json,
    Reader,
    ServerFacts,
    object_of,
    objects,
    once,
    text_of,
)
from gateway.dialects.bedrock.answer import Frame, FrameReader, error_of
from gateway.dialects.schema_tools.chat_parts import URLS
from gateway.dialects.schema_tools.tools import (
    CLAUDES,
    NO_SEARCH,
    gaps_of_names,
    is_search,
    search_in,
    with_allowed_names,
    with_own_names,
)
from gateway.dialects.shapes import message_error
from gateway.dialects.streams import TOO_LONG

# --- Messages at clouds ---


_BEDROCK: Final = "bedrock-2023-05-31"
_VERTEX: Final = "vertex-2023-10-16"
_STATE: Final = Gap("thread", How.REFUSED, "clouds keep no state of conversations")
"""What Anthropic alone has; on this refusal its SDKs send the conversation whole instead."""
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
                    source_type = object_of(one.get("source")).get("type") if one.get("type") == "image" else None
                    if source_type in ("url", "file"):
                        found.append(Gap(f"messages.image.{source_type}", How.REFUSED, ELSEWHERE))
    return once(found) if found else ()


def _turns(body: Json, facts: ServerFacts) -> tuple[Json, list[Gap]]:
    """Returns the messages as the model at a cloud takes them, if they are others, and what that loses."""
    if facts.model.later_system:
        return {}, []
    messages, lost = with_later_system(body.get("messages"), is_taken=False)
    return {"messages": messages} if lost else {}, lost


def _gaps_of_messages(body: Json, facts: ServerFacts) -> Sequence[Gap]:
    found, lost = gaps_of_clouds(body), _turns(body, facts)[1]
    return [*found, *lost] if lost else found


class MessagesAtBedrock:
    """Puts Messages into InvokeModel, and takes its answers out; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        found = _gaps_of_messages(body, facts)
        if search_in(body.get("tools")) is None:
            return found
        refused = [Gap("tool_choice", How.REFUSED, NO_SEARCH.why)] if demands_search(body) else []
        return once([*found, NO_SEARCH, *refused])

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = {name: value for name, value in body.items() if name not in ("model", "stream")} | _turns(body, facts)[0]
        if search_in(body.get("tools")) is not None:  # Bedrock has none
            made["tools"] = [tool for tool in objects(body["tools"]) if not is_search(tool)]
            if not made["tools"]:
                made = {name: value for name, value in made.items() if name not in ("tools", "tool_choice")}
        return ConvertedRequest({"anthropic_version": _BEDROCK, **made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return body

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _FramedMessages()


class MessagesAtVertex:
    """Puts Messages into rawPredict, whose answers and streams are Anthropic's own; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps_of_messages(body, facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = {name: value for name, value in body.items() if name != "model"} | _turns(body, facts)[0]
        return ConvertedRequest({"anthropic_version": _VERTEX, **made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return body

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _AsItIs()


class _AsItIs:
    """Implements `base.Reader` for a stream that is in the caller's language."""

    reported = None

    @property
    def is_over(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def close(self, *, is_clean: bool) -> bytes:
        return b""


class _FramedMessages:
    """Takes the events of a message out of Bedrock's frames; implements `base.Reader`."""

    reported = None

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
        parsed = None if found is not None else json_object(event)
        kind = found.group(1) if found is not None else text_of((parsed or {}).get("type")).encode()
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


# --- Counts of tokens at clouds, for callers of Messages ---


_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and InvokeModel's has to."""


class CountsAtBedrock(CountingTranslator):
    """Asks Bedrock's CountTokens; implements `base.Translator`.

    Bedrock counts what InvokeModel would be given, for models themselves and not for profiles of regions. Source: Bedrock's
    CountTokens.
    """

    count_field = "inputTokens"

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = MessagesAtBedrock().request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        counted = {"input": {"invokeModel": {"body": b64encode(orjson.dumps(made)).decode()}}}
        return ConvertedRequest(counted, body, new_id(), now)


class CountsAtVertex(CountingTranslator):
    """Asks Vertex AI's count of Claude's tokens; implements `base.Translator`.

    Vertex has one path for all models, and the model's name in the body. Source: Anthropic's SDK, `lib/vertex`.
    """

    count_field = "input_tokens"

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = MessagesAtVertex().request(body, facts, now, new_id).body
        return ConvertedRequest({**made, "model": body.get("model")}, body, new_id(), now)


# --- Chat completions by Messages ---


class ChatOverMessages:
    """Serves a caller of chat completions by Messages; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps(body, facts, ChatOptions(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        named, names = with_allowed_names(body, CLAUDES)
        settled = ChatOptions(named, facts)
        lost = _gaps(body, facts, settled)
        made = messages_body(named, facts, settled)
        return ConvertedRequest(made, body, new_id(), now, memory=facts.memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return with_own_names(chat_of_message(sent, body), sent.names)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return MessagesAsChat(sent)


def _gaps(body: Json, facts: ServerFacts, settled: ChatOptions) -> Sequence[Gap]:
    keeps, recalled = settled.keeps_thoughts, settled.recalled
    found = settled.gaps + out_parts.gaps_at_top(body) + gaps_of_names(body, CLAUDES)
    found += out_parts.gaps_of_recalled(recalled, keeps_thoughts=keeps)
    return once(found + out_parts.gaps_of_messages(body, facts, recalled.contents, keeps_thoughts=keeps))


# --- Chat completions by Claude at Vertex AI: Messages in the cloud's envelope ---


class ChatAtVertex(ChatOverMessages):
    """Serves a caller of chat completions by Claude at Vertex, whose answers and streams are Anthropic's own."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _with_pictures(body, super().gaps(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        sent = super().request(body, facts, now, new_id)
        made = MessagesAtVertex().request(sent.body, facts, now, new_id).body
        return replace(sent, body=made, gaps=_with_pictures(body, sent.gaps or ()))


def _with_pictures(body: Json, found: Sequence[Gap]) -> Sequence[Gap]:
    for message in objects(body.get("messages")):
        for part in objects(message.get("content")):
            if part.get("type") == "image_url" and (picture_url(part) or "").startswith(URLS):
                return once([*found, Gap("messages.image_url", How.REFUSED, ELSEWHERE)])
    return found
