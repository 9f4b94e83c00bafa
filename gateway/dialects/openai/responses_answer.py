"""A chat completion as a response: what a model said, thought and called becomes items.

In this order: a whole response, items that grow, the stream (`ChatAsResponses`). The ids of the answer and of its items are
made from `ConvertedRequest.id`, because chat completions name neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.openai.sse import DONE, event_data, first_error, is_silent, json_object
from gateway.core.types import Usage
from gateway.dialects.base import (
    ENDED_WELL,
    ConvertedRequest,
    Json,
    MalformedAnswer,
    after_null,
    finish_in,
    is_no_argument,
    object_of,
    objects,
    response_usage,
    text_of,
    usage_of_answer,
)
from gateway.dialects.issuers import CarriedProofs
from gateway.dialects.openai.responses_request import INPUT_NAME, TOOL_SEARCH, qualified
from gateway.dialects.streams import ConvertingReader, data_of

ECHOED: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""The fields of a request that a response repeats, with the values of a request that says nothing."""

# --- A whole response ---


_UNSAID: Final[Json] = {"description": None, "parameters": None, "strict": None}
"""What a function's tool repeats where its request said nothing."""

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by a chat completion's finish reason."""


def response_of_chat(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the response. Raises MalformedAnswer where there is no message."""
    choice = first_choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedAnswer("the answer has no message")
    items: list[Json] = []
    thought, text = words_in(message)
    mark = _proofs_of(sent, message).as_mark() if sent.carries_proofs else ""
    if thought or mark:
        items.append(reasoning_item(sent, len(items), thought, mark))
    parts = _parts(message, text, choice)
    if parts:
        items.append(message_item(sent, len(items), parts))
    for number, call in enumerate(pieces_in(message)):
        items.append(_called(sent, call, number, len(items)))
    return ended(sent, response(sent, body), items, finish_in(choice), usage_of_answer(body))


def response(sent: ConvertedRequest, chunk: Json) -> Json:
    """Returns a response that has just begun; `chunk` is a chat completion or a piece of one."""
    created = chunk.get("created")
    made: Json = {
        "id": f"resp_{sent.id}",
        "object": "response",
        "created_at": created if isinstance(created, int) and created > 0 else int(sent.now),
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": chunk.get("model") or sent.source.get("model"),
        "output": [],
        "usage": None,
    }
    for name, usual in ECHOED.items():
        value = sent.source.get(name)
        made[name] = usual if value is None else value
    for name in ("reasoning", "text"):
        made[name] = {**ECHOED[name], **object_of(made[name])}
    made["tools"] = [_UNSAID | tool if tool.get("type") == "function" else tool for tool in objects(made["tools"])]
    made["store"] = False  # nobody keeps it
    made["service_tier"] = chunk.get("service_tier") or sent.source.get("service_tier") or "default"
    return made


def incomplete_reason(finish: str) -> str | None:
    """Returns why an answer is incomplete; None: it is whole. A reason that nobody knows is no good end, and stays as it is."""
    return INCOMPLETE.get(finish) or (None if finish in ENDED_WELL else finish)


def ended(sent: ConvertedRequest, begun: Json, items: list[Json], finish: str, usage: Usage | None) -> Json:
    """Returns the response at its end."""
    reason = incomplete_reason(finish)
    if reason and items:
        items[-1]["status"] = "incomplete"  # what came last was cut, a call's arguments, too
    status = "incomplete" if reason else "completed"
    return begun | {
        "status": status,
        "completed_at": None if reason else max(begun["created_at"], int(sent.wall() if sent.wall else sent.now)),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": None if usage is None else response_usage(usage),
    }


def first_choice(chunk: Json) -> Json:
    """Returns the first choice, which is all that a response has; empty where there is none."""
    return next((choice for choice in objects(chunk.get("choices")) if not choice.get("index")), {})


def words_in(message: Json) -> tuple[str, str]:
    """Returns what a message, or a piece of one, shows of the reasoning, and says; by the names that servers have for it.

    Mistral's reasoning models say both in parts.
    """
    thought, content = message.get("reasoning_content") or message.get("reasoning"), message.get("content")
    thought = thought if isinstance(thought, str) else ""
    if not isinstance(content, list):
        return thought, content if isinstance(content, str) else ""
    parts = objects(content)
    thoughts = [inner for part in parts if part.get("type") == "thinking" for inner in objects(part.get("thinking"))]
    texts = [text_of(part.get("text")) for part in parts if part.get("type") in ("text", "output_text")]
    return thought + "".join(text_of(one.get("text")) for one in thoughts), "".join(texts)


def pieces_in(message: Json) -> list[Json]:
    """Returns a message's calls, or the pieces of some; a call as it was before there were tools is the only one."""
    found = objects(message.get("tool_calls"))
    old = message.get("function_call")
    return [{"index": 0, "function": old}] if not found and isinstance(old, dict) else found


def named_in(call: Json) -> Json:
    """Returns what a call, or a piece of one, says of its tool."""
    return object_of(call.get("custom") or call.get("function"))


def argument_in(named: Json) -> str:
    """Returns what a tool is called with; some servers send the object instead of its text."""
    arguments = named.get("input") if "input" in named else named.get("arguments")
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else text_of(arguments)


def _called(sent: ConvertedRequest, call: Json, number: int, index: int) -> Json:
    """Returns a whole call as an item. Raises MalformedAnswer where it has no name."""
    named = named_in(call)
    name, arguments, is_custom = text_of(named.get("name")), argument_in(named), "custom" in call
    if not name:
        raise MalformedAnswer("the answer calls a tool without a name")
    if not is_custom and is_no_argument(arguments):
        arguments = ""
    if name in sent.custom_tools and not is_custom:
        is_custom, arguments = True, free_text(arguments)
    id = text_of(call.get("id")) or call_id(sent, number)
    return call_item(sent, index, id, name, arguments, is_custom=is_custom)


def call_id(sent: ConvertedRequest, number: int) -> str:
    """Returns an id for a call that came without one, unlike those of other turns."""
    return f"call_{sent.id}{number:02d}"


def reasoning_item(sent: ConvertedRequest, index: int, text: str, mark: str = "") -> Json:
    """Returns what the model thought; `mark` has what it was signed with."""
    made: Json = {"id": item_id(sent, "rs", index), "type": "reasoning", "summary": []}
    if text or not mark:
        made["content"] = [{"type": "reasoning_text", "text": text}]
    return made | ({"encrypted_content": mark} if mark else {}) | {"status": "completed"}


def _proofs_of(sent: ConvertedRequest, message: Json) -> CarriedProofs:
    """Returns what a whole message is signed with."""
    proofs = CarriedProofs([], {})
    proofs.add(objects(message.get("reasoning_details")))
    for number, call in enumerate(pieces_in(message)):
        if extra := object_of(call.get("extra_content")):
            proofs.extras[text_of(call.get("id")) or call_id(sent, number)] = extra
    return proofs


def message_item(sent: ConvertedRequest, index: int, parts: list[Json]) -> Json:
    made = {"id": item_id(sent, "msg", index), "type": "message", "status": "completed", "role": "assistant"}
    return made | {"content": parts}


def call_item(sent: ConvertedRequest, index: int, id: str, name: str, text: str, *, is_custom: bool) -> Json:
    """Returns a call; `text` is the free text or the arguments."""
    if is_custom:
        made = {"id": item_id(sent, "ctc", index), "type": "custom_tool_call", "status": "completed", "call_id": id}
        return qualified(made | {"name": name, "input": text}, sent.namespaces)
    made = {"id": item_id(sent, "fc", index), "type": "function_call", "status": "completed", "call_id": id}
    return qualified(made | {"name": name, "arguments": text or "{}"}, sent.namespaces)


def free_text(arguments: str) -> str:
    """Returns the text that a function's only argument stands for; a model that gave no JSON has given the text itself."""
    found = json_object(arguments.encode())
    text = None if found is None else found.get(INPUT_NAME)
    return text if isinstance(text, str) else arguments


def item_id(sent: ConvertedRequest, kind: str, index: int) -> str:
    return f"{kind}_{sent.id}{index:02d}"


def output_text(text: str, annotations: list[Json], logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": logprobs}


def annotations_in(message: Json) -> list[Json]:
    """Returns a message's citations, which Responses do not nest."""
    found = []
    for one in objects(message.get("annotations")):
        if isinstance(kind := one.get("type"), str):
            inner = one.get(kind)
            found.append({"type": kind, **inner} if isinstance(inner, dict) else one)
    return found


def logprobs_in(choice: Json) -> list[Json]:
    """Returns the log probabilities of a choice's text, in the form of Responses."""
    return [
        {
            "token": one.get("token", ""),
            "bytes": one.get("bytes") or [],
            "logprob": one.get("logprob", 0.0),
            "top_logprobs": [
                {"token": top.get("token", ""), "bytes": top.get("bytes") or [], "logprob": top.get("logprob", 0.0)}
                for top in objects(one.get("top_logprobs"))
            ],
        }
        for one in objects(object_of(choice.get("logprobs")).get("content"))
    ]


def _parts(message: Json, text: str, choice: Json) -> list[Json]:
    """Returns the parts of what the model said; none where it only called tools."""
    parts: list[Json] = []
    refusal, cited = message.get("refusal"), annotations_in(message)
    if text or cited:
        parts.append(output_text(text, cited, logprobs_in(choice)))
    if isinstance(refusal, str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


# --- Items that are open while a stream is put into a response ---


class Growing:
    """What pieces are added to: a text, or the arguments of a call. `where` is what its events say of its place.

    Most pieces of a stream only bring more of it, so the event that says so is put together of bytes.
    """

    def __init__(self) -> None:
        self.where: Json = {}
        self.pieces: list[str] = []
        self._before = self._behind = self._tail = b""

    def begin(self, kind: str, where: Json, **rest: object) -> None:
        """Sets the name of events with more of it, what they have of its place, and what stands behind the piece."""
        self.where = where
        self._before = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        self._behind = b',%b,"delta":' % orjson.dumps(where)[1:-1]
        self._tail = (b",%b" % orjson.dumps(rest)[1:] if rest else b"}") + b"\n\n"

    def event(self, number: int, piece: str) -> bytes:
        """Returns the event with this piece."""
        return b"%b%d%b%b%b" % (self._before, number, self._behind, orjson.dumps(piece), self._tail)


class OpenPart(Growing):
    """A part of an item: a text that grows."""

    def __init__(self, kind: str, where: Json) -> None:
        super().__init__()
        self.kind = kind
        self.logprobs: list[Json] = []
        self.annotations: list[Json] = []
        rest: Json = {"logprobs": []} if kind == "output_text" else {}
        self.begin(f"response.{kind}.delta", where, **rest)

    def as_json(self, text: str) -> Json:
        if self.kind == "output_text":
            return output_text(text, self.annotations, self.logprobs)
        return {"type": self.kind, "refusal" if self.kind == "refusal" else "text": text}


class OpenItem:
    """A message or a reasoning; its last part is the one that grows."""

    def __init__(self, sent: ConvertedRequest, item: str, place: int) -> None:
        self._sent, self.item, self.place = sent, item, place
        self._parts: list[OpenPart] = []

    @property
    def part(self) -> OpenPart | None:
        return self._parts[-1] if self._parts else None

    def begin_part(self, kind: str) -> OpenPart:
        id = item_id(self._sent, "msg" if self.item == "message" else "rs", self.place)
        where = {"item_id": id, "output_index": self.place, "content_index": len(self._parts)}
        self._parts.append(OpenPart(kind, where))
        return self._parts[-1]

    def begun(self) -> Json:
        return self._made([]) | {"status": "in_progress", "content": []}

    def done(self) -> Json:
        return self._made([part.as_json("".join(part.pieces)) for part in self._parts])

    def _made(self, parts: list[Json]) -> Json:
        if self.item == "message":
            return message_item(self._sent, self.place, parts)
        return reasoning_item(self._sent, self.place, parts[0]["text"] if parts else "")


class OpenCall(Growing):
    """A call. It begins when its name is known; until then it has no place."""

    def __init__(self, sent: ConvertedRequest, index: int) -> None:
        super().__init__()
        self._sent, self.index = sent, index
        self.id = self.name = ""
        self.is_custom = False
        self.is_wrapped = False
        """The call is of a tool that went out as a function, so its input is known at its end only."""
        self.is_search = False
        """The call searches tools; no events carry its input."""
        self.place = -1
        self.lead = ""
        """A beginning of its arguments that may still become `null`."""

    @property
    def telling(self) -> str:
        """The name of the events with its input."""
        return "custom_tool_call_input" if self.is_custom else "function_call_arguments"

    def open(self, name: str, place: int) -> Json:
        """Returns its item as it is at first."""
        self.name, self.place = name, place
        self.is_search = self._sent.namespaces.get(name) == ("", TOOL_SEARCH)
        self.is_wrapped = (name in self._sent.custom_tools and not self.is_custom) or self.is_search
        self.is_custom |= self.is_wrapped and not self.is_search
        self.id = self.id or call_id(self._sent, self.index)
        item = call_item(self._sent, place, self.id, name, "", is_custom=self.is_custom)
        self.begin(f"response.{self.telling}.delta", {"item_id": item["id"], "output_index": place})
        empty = {"input": ""} if self.is_custom else {"arguments": {} if self.is_search else ""}
        return item | {"status": "in_progress", **empty}

    def done(self) -> Json:
        arguments = "".join(self.pieces)
        text = free_text(arguments) if self.is_wrapped and not self.is_search else arguments
        return call_item(self._sent, self.place, self.id, self.name, text, is_custom=self.is_custom)


# --- The stream ---


_KINDS: Final = {"content": "output_text", "reasoning_content": "reasoning_text", "reasoning": "reasoning_text"}
"""The parts that grow by these fields of a piece."""


class ChatAsResponses(ConvertingReader):
    """Reads pieces of a chat completion; implements `base.Reader`.

        created in_progress (item)* (completed | incomplete) | ... error

    Reasoning, text and calls become items as they come: a text or a reasoning ends when something else begins, calls end
    with the answer, because several may come at once. Sequence numbers count up from 0; each item, part and text that is
    added is also done. Nothing is held back but what goes through a function to a tool with free text, which is known at
    its end only.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._number = self._events_sent = 0
        """The numbers of the next event, and of the first one that the provider's event became which is being read."""
        self._begun: Json | None = None
        self._items: list[Json | None] = []
        """The items by place; None while one is open."""
        self._open: OpenItem | None = None
        """The message or the reasoning that grows."""
        self._part: OpenPart | None = None
        """The part of the open item that grows."""
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        """The call that pieces with an index belong to."""
        self._finish: str | None = None
        self.reported: Usage | None = None
        self._proofs = CarriedProofs([], {})
        """The proofs that have not left yet."""

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
            grown, piece = self._more_of(choice)
            if grown is not None and piece:
                return self._more(grown, piece)
        return self._read_odd(event) if first_choice(parsed).get("finish_reason") else self._take(parsed)

    def _more_of(self, choice: Json) -> tuple[Growing | None, str]:
        """Returns what a piece only brings more of, and the piece; None: it says something else, or other things, too."""
        delta = choice.get("delta")
        if type(delta) is not dict or choice.get("logprobs") or choice.get("index"):
            return None, ""
        found = delta if len(delta) == 1 else [name for name, value in delta.items() if value and name != "role"]
        if len(found) != 1:
            return None, ""
        (name,) = found
        value, part = delta[name], self._part
        if type(value) is str:
            return (part, value) if part is not None and part.kind == _KINDS.get(name) else (None, "")
        piece = value[0] if name == "tool_calls" and type(value) is list and len(value) == 1 else None
        if type(piece) is not dict or piece.get("id") or piece.get("extra_content"):
            return None, ""
        call, named = self._by_index.get(_number(piece.get("index"))), piece.get("function")
        if call is None or not call.name or call.is_custom or not call.pieces or type(named) is not dict:
            return None, ""
        text = named.get("arguments")
        return (call, text) if type(text) is str else (None, "")

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
        self._events_sent = self._number
        made = [] if self._begun is not None else self._begin(chunk)
        self.reported = usage_of_answer(chunk) or self.reported
        choice = first_choice(chunk)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            thought, text = words_in(delta)
            logprobs = logprobs_in(choice)
            if thought:
                made.append(self._more(self._part_of(made, "reasoning", "reasoning_text"), thought))
            if text or (logprobs and self._part is not None and self._part.kind == "output_text"):
                part = self._part_of(made, "message", "output_text")
                part.logprobs += logprobs
                made.append(self._more(part, text) if not logprobs else self._more_with(part, text, logprobs))
            if self._sent.carries_proofs:
                self._proofs.add(objects(delta.get("reasoning_details")))
            if cited := annotations_in(delta):
                self._cite(made, cited)
            if isinstance(refusal := delta.get("refusal"), str) and refusal:
                made.append(self._more(self._part_of(made, "message", "refusal"), refusal))
            for piece in pieces_in(delta):
                self._piece_of_call(made, piece)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = finish_in(choice)
        return b"".join(made)

    def _begin(self, chunk: Json) -> list[bytes]:
        self._begun = response(self._sent, chunk)
        return [self._event(f"response.{kind}", response=self._begun) for kind in ("created", "in_progress")]

    def _part_of(self, made: list[bytes], item: str, kind: str) -> OpenPart:
        """Returns the open part of this kind; begins it, and ends what is open, if that is another."""
        if self._open is None or self._open.item != item:
            self._close_open(made)
            self._open = OpenItem(self._sent, item, len(self._items))
            self._items.append(None)
            begun = self._open.begun()
            made.append(self._event("response.output_item.added", output_index=self._open.place, item=begun))
        if self._part is None or self._part.kind != kind:
            self._close_part(made)
            part = self._part = self._open.begin_part(kind)
            made.append(self._event("response.content_part.added", **part.where, part=part.as_json("")))
        return self._part

    def _more(self, grown: Growing, piece: str) -> bytes:
        grown.pieces.append(piece)
        number, self._number = self._number, self._number + 1
        return grown.event(number, piece)

    def _more_with(self, part: OpenPart, text: str, logprobs: list[Json]) -> bytes:
        part.pieces.append(text)
        return self._event("response.output_text.delta", **part.where, delta=text, logprobs=logprobs)

    def _cite(self, made: list[bytes], cited: list[Json]) -> None:
        part = self._part_of(made, "message", "output_text")
        for one in cited:
            where = part.where | {"annotation_index": len(part.annotations)}
            part.annotations.append(one)
            made.append(self._event("response.output_text.annotation.added", **where, annotation=one))

    def _close_part(self, made: list[bytes]) -> None:
        part, self._part = self._part, None
        if part is not None:
            whole = part.as_json("".join(part.pieces))
            fields = {name: whole[name] for name in ("text", "refusal", "logprobs") if name in whole}
            made.append(self._event(f"response.{part.kind}.done", **part.where, **fields))
            made.append(self._event("response.content_part.done", **part.where, part=whole))

    def _close_open(self, made: list[bytes]) -> None:
        self._close_part(made)
        if self._open is not None:
            place, done = self._open.place, self._ended(self._open.done(), self._open.place)
            self._items[place], self._open = done, None
            made.append(self._event("response.output_item.done", output_index=place, item=done))

    def _piece_of_call(self, made: list[bytes], piece: Json) -> None:
        call = self._call_of(piece)
        named = named_in(piece)
        call.is_custom |= "custom" in piece
        call.id = call.id or text_of(piece.get("id"))
        text = argument_in(named)
        if self._sent.carries_proofs and (extra := object_of(piece.get("extra_content"))):
            call.id = call.id or call_id(self._sent, call.index)
            self._proofs.extras[call.id] = extra
        if not call.name and (name := text_of(named.get("name"))):
            self._close_open(made)
            self._tell_proofs(made)
            item = call.open(name, len(self._items))
            self._items.append(None)
            made.append(self._event("response.output_item.added", output_index=call.place, item=item))
            text, call.pieces = "".join((*call.pieces, text)), []
        if not call.pieces and not call.is_custom:
            call.lead, text = after_null(call.lead, text)
        if text and call.name and not call.is_wrapped:
            made.append(self._more(call, text))
        elif text:
            call.pieces.append(text)

    def _tell_proofs(self, made: list[bytes]) -> None:
        """Adds the events of what was signed, before what it belongs to; behind all of it what has come late."""
        mark = self._proofs.as_mark()
        self._proofs = CarriedProofs([], {})
        if mark:
            place = len(self._items)
            item = reasoning_item(self._sent, place, "", mark)
            self._items.append(item)
            begun = item | {"status": "in_progress"}
            made.append(self._event("response.output_item.added", output_index=place, item=begun))
            made.append(self._event("response.output_item.done", output_index=place, item=item))

    def _call_of(self, piece: Json) -> OpenCall:
        """Returns the call that a piece belongs to. Some servers number none, or all of several calls alike, but name each."""
        index, id = piece.get("index"), text_of(piece.get("id"))
        if not isinstance(index, int):
            index = len(self._calls) if id or not self._calls else self._calls[-1].index
        call = self._by_index.get(index)
        if call is not None and id and call.id not in ("", id) and named_in(piece).get("name"):
            call = None
        if call is None:
            call = self._by_index[index] = OpenCall(self._sent, index)
            self._calls.append(call)
        return call

    def _close_call(self, made: list[bytes], call: OpenCall) -> None:
        done = self._items[call.place] = self._ended(call.done(), call.place)
        if call.is_search:
            made.append(self._event("response.output_item.done", output_index=call.place, item=done))
            return
        text = done["input" if call.is_custom else "arguments"]
        if call.is_wrapped or not call.pieces:  # nothing was told yet: deltas and whole are equal
            made.append(self._event(f"response.{call.telling}.delta", **call.where, delta=text))
        fields = {"input": text} if call.is_custom else {"name": done["name"], "arguments": text}
        made.append(self._event(f"response.{call.telling}.done", **call.where, **fields))
        made.append(self._event("response.output_item.done", output_index=call.place, item=done))

    def _ended(self, item: Json, place: int) -> Json:
        """Returns the item; the last one is incomplete where the answer is. That one is open until the end."""
        is_cut = self._finish is not None and incomplete_reason(self._finish) and place == len(self._items) - 1
        return item | {"status": "incomplete"} if is_cut else item

    def _end(self) -> bytes:
        """Returns the events of the end, if it has a reason: without a finish reason `[DONE]` ends a cut answer, too."""
        if self._is_over or self._begun is None or self._finish is None:
            return b""
        if not all(call.name for call in self._calls):
            return self._fail({"message": "the provider called a tool without a name", "code": "malformed_response"})
        made: list[bytes] = []
        self._events_sent = self._number
        self._close_open(made)
        for call in self._calls:
            self._close_call(made, call)
        self._tell_proofs(made)
        items = [item for item in self._items if item is not None]
        whole = ended(self._sent, self._begun, items, self._finish, self.reported)
        self._is_over = True
        made.append(self._event(f"response.{whole['status']}", response=whole))
        return b"".join(made)

    def _fail(self, error: Json) -> bytes:
        """Returns the event of what the provider has reported; nothing follows."""
        self._is_over = True
        code = error.get("code") or error.get("type")
        failure = {
            "code": str(code) if code else None,
            "message": str(error.get("message") or "the provider reported an error"),
        }
        # Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        raw = {} if self._items or self._calls else {"error": error}
        try:
            return self._event("error", **failure, param=error.get("param"), **raw)
        except orjson.JSONEncodeError:  # nested too deeply to be said again
            return self._event("error", **failure, param=None)

    def _fail_unconvertible(self) -> bytes:
        self._number = self._events_sent
        return super()._fail_unconvertible()

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _number(index: Any) -> int:
    return index if type(index) is int else -1
