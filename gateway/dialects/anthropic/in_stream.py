"""The stream of a chat completion as the stream of a message.

    message_start (block)* message_delta message_stop | ... error

Each event leaves in the chunk that it came in, but for what has to wait for a call to be whole (`in_answer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from gateway.core.openai.sse import DONE, event_data, first_error, is_silent, json_object
from gateway.core.openai.usage import INPUTS, filled
from gateway.core.types import Gap, Usage
from gateway.dialects.anthropic import in_answer, in_request
from gateway.dialects.anthropic.in_answer import (
    TEXT,
    THINKING,
    MessageBlocks,
    ToolUse,
    event,
    message_of_chat,
)
from gateway.dialects.anthropic.in_gaps import gaps_of
from gateway.dialects.anthropic.in_request import chat_body
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    Reader,
    ServerFacts,
    finish_in,
    object_of,
    objects,
    text_of,
)
from gateway.dialects.openai import responses_answer
from gateway.dialects.schema_tools.tools import names_back
from gateway.dialects.sse.events import ConvertingReader, data_of
from gateway.dialects.sse.shapes import message_error
from gateway.dialects.usage import message_usage, usage_of_answer

_QUICK: Final = {"content": TEXT, "reasoning_content": THINKING, "reasoning": THINKING}


class ChatAsMessages(ConvertingReader):
    """Reads pieces of a chat completion; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._has_begun = False
        self._blocks = MessageBlocks(is_to_mark=in_request.is_to_mark(sent.source))
        self._calls: list[ToolUse] = []
        self._ids: set[str] = set()
        """Those of the calls."""
        self._by_index: dict[int, ToolUse] = {}
        """The call that pieces with an index belong to."""
        self._names = names_back(sent.source)
        self._choice: Json = {}
        """The one with the finish reason."""
        self._finish: str | None = None
        self._is_refused = False
        self.reported: Usage | None = None

    def _at_end(self, *, is_clean: bool) -> bytes:
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return self._end() if is_clean else b""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None or "error" in parsed:
            return self._read_odd(event)
        choices = parsed.get("choices")
        if type(choices) is not list or not choices:
            return self._read_odd(event)
        choice = choices[0]
        if len(choices) == 1 and type(choice) is dict and not (choice.get("finish_reason") or parsed.get("usage")):
            made = self._more(choice)
            if made is not None:
                return made
        return (
            self._read_odd(event) if responses_answer.first_choice(parsed).get("finish_reason") else self._take(parsed)
        )

    def _more(self, choice: Json) -> bytes | None:
        """Reads a piece that only brings more of what has begun; None: it says something else, or other things, too."""
        delta, block = choice.get("delta"), self._blocks.open
        if type(delta) is not dict or choice.get("index") or block is None:
            return None
        found = delta if len(delta) == 1 else [name for name, value in delta.items() if value and name != "role"]
        if len(found) != 1:
            text = _thought_alone(delta) if len(found) == 2 and block.kind is THINKING and not block.is_signed else ""
            return block.more(text) if text else None
        (name,) = found
        value = delta[name]
        if type(value) is str:
            return block.more(value) if value and _QUICK.get(name) is block.kind and not block.is_signed else None
        return (
            self._more_of_call(value[0]) if name == "tool_calls" and type(value) is list and len(value) == 1 else None
        )

    def _more_of_call(self, piece: Any) -> bytes | None:
        if type(piece) is not dict or piece.get("id"):
            return None
        named, call = piece.get("function"), self._by_index.get(_number(piece.get("index")))
        text = named.get("arguments") if type(named) is dict else None
        if call is None or type(text) is not str or not text or piece.get("extra_content"):
            return None
        if call is self._blocks.open:
            return call.more(text)
        return self._telling(self._blocks.add_to_call, call, text) if call.name else None

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what may be no piece of an answer: an error, an end, a comment, nonsense."""
        if (error := first_error(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return self._end()
        parsed = json_object(data)
        if parsed is not None:
            return self._take(parsed)
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, chunk: Json) -> bytes:
        made: list[bytes] = []
        if not self._has_begun and ("choices" in chunk or "usage" in chunk):
            self._begin(made, chunk)
        self.reported = usage_of_answer(chunk) or self.reported
        choice = responses_answer.first_choice(chunk)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            made.append(self._telling(self._take_delta, delta))
        if isinstance(choice.get("finish_reason"), str):
            self._finish, self._choice = finish_in(choice), choice
        return b"".join(made)

    def _telling(self, tell: Callable[..., None], *of: Any) -> bytes:
        """Returns the events that this adds to a list; behind them an error, where the provider makes no sense."""
        made: list[bytes] = []
        try:
            tell(made, *of)
        except MalformedAnswer as error:
            made.append(self._fail({"message": str(error), "code": "malformed_response"}))
        return b"".join(made)

    def _begin(self, made: list[bytes], chunk: Json) -> None:
        """Begins the message; how much was read is known at its end only, and estimated here."""
        self._has_begun = True
        usage = in_answer.reported_usage(in_answer.used(self._sent, chunk, 0), chunk)
        mark = {name: usage.pop(name) for name in ("estimated",) if name in usage}  # clients keep what is in the usage
        made.append(event("message_start", message=in_answer.begun(self._sent, chunk) | {"usage": usage}, **mark))

    def _take_delta(self, made: list[bytes], delta: Json) -> None:
        thought, text = responses_answer.words_in(delta)
        details = objects(delta.get("reasoning_details"))
        if thought or details:
            self._blocks.think(made, thought, details)
        if text:
            self._blocks.add_text(made, text)
        if refusal := text_of(delta.get("refusal")):
            self._is_refused = True
            self._blocks.add_text(made, refusal)
        for piece in responses_answer.pieces_in(delta):
            self._piece(made, piece)

    def _piece(self, made: list[bytes], piece: Json) -> None:
        """Takes a piece of a call."""
        call = self._call_of(piece)
        named = responses_answer.named_in(piece)
        if not call.id and (id := text_of(piece.get("id"))) and id not in self._ids:
            call.id = id  # of calls of one id, only the first can be answered by it
            self._ids.add(id)
        call.extra = call.extra or object_of(piece.get("extra_content"))
        name, text = text_of(named.get("name")), responses_answer.argument_in(named)
        call.name = call.name or self._names.get(name, name)
        self._blocks.add_to_call(made, call, text)

    def _call_of(self, piece: Json) -> ToolUse:
        """Returns the call that a piece belongs to. Some servers number none, or all of several calls alike, but name each."""
        index, id = piece.get("index"), text_of(piece.get("id"))
        if not isinstance(index, int):
            index = len(self._calls) if id or not self._calls else self._calls[-1].index
        call = self._by_index.get(index)
        if call is not None and id and call.id not in ("", id) and responses_answer.named_in(piece).get("name"):
            call = None
        if call is None:
            call = self._by_index[index] = ToolUse(index, in_answer.call_id(self._sent, len(self._calls)))
            self._calls.append(call)
        return call

    def _end(self) -> bytes:
        """Tells the end, if the provider has told why: without a finish reason `[DONE]` ends a cut answer, too."""
        return b"" if self._is_over or self._finish is None else self._telling(self._tell_end)

    def _tell_end(self, made: list[bytes]) -> None:
        self._blocks.end(made, is_cut=self._finish in in_answer.CUT)
        self._is_over = True
        why = in_answer.ended(
            self._sent, self._choice, self._finish or "", has_calls=bool(self._calls), is_refused=self._is_refused
        )
        estimate = Usage(0, in_answer.tokens_in(self._blocks.characters), estimated=True)
        reported = self.reported
        unsaid = ("service_tier",) if reported is not None and reported.input else ("service_tier", *INPUTS)
        usage = message_usage(filled(reported, estimate))
        made.append(
            event("message_delta", delta=why, usage={name: usage[name] for name in usage if name not in unsaid})
        )
        made.append(event("message_stop"))

    def _fail(self, error: Json) -> bytes:
        """Tells what the provider has reported; nothing follows.

        Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        """
        self._is_over = True
        try:
            return event("error", error=message_error(error) if self._blocks.count else error)
        except orjson.JSONEncodeError:  # nested too deeply to be said again
            return event("error", error={"type": "api_error", "message": text_of(error.get("message"))})


def _thought_alone(delta: Json) -> str:
    """Returns the words of a piece that tells them twice, plainly and as a detail of reasoning that says no more."""
    text, details = delta.get("reasoning_content"), delta.get("reasoning_details")
    if type(text) is not str or type(details) is not list or len(details) != 1 or type(details[0]) is not dict:
        return ""
    return text if details[0].get("text") == text and not details[0].get("signature") else ""


def _number(index: Any) -> int:
    return index if type(index) is int else -1


# Callers of Anthropic's Messages at targets with chat completions.


class MessagesOverChat:
    """Serves a caller of Messages by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return gaps_of(body, facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost = gaps_of(body, facts)
        return ConvertedRequest(chat_body(body, facts), body, new_id(), now, gaps=lost)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return message_of_chat(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsMessages(sent)
