"""Serves callers of chat completions by Responses, for models that answer nothing else.

In this order: a whole response, whose items become one message; the request, in which order and roles are kept; the stream
(`ResponsesAsChat`). The provider is asked to store nothing, so what a model thought comes encrypted and goes back with the
conversation. A tool's result is a string, never a list (BerriAI/litellm#18201), and a function without `strict` is not
strict, which is the other way round in Responses.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import DONE, error_in, event_data, is_silent, json_object
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    ServerFacts,
    chat_usage,
    object_of,
    objects,
    text_of,
    usage_of_answer,
)
from gateway.dialects.openai.gaps import OF_SEARCH, REASONING_FORMAT, SHARED
from gateway.dialects.schema_tools.tools import SEARCH, is_search, search_options, shortened, with_own_name
from gateway.dialects.streams import ConvertingReader, chat_failure, data_of

# --- A whole response ---


FINISH: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""The finish reason of a chat completion, by why a response is incomplete."""
BETWEEN_THOUGHTS: Final = "\n\n"
"""Parts of reasoning, of which Responses have several, are paragraphs of the one text that chat completions have."""

_PLACES: Final = ("start_index", "end_index")
"""Where in its part's text a citation is of."""


def chat_of_response(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion, or an object with the error of a response that failed. Raises MalformedAnswer."""
    output = body.get("output")
    if body.get("error") or body.get("status") not in (None, "completed", "incomplete"):
        return {"error": error_of(body)}
    if not isinstance(output, list):
        raise MalformedAnswer("the answer has no output")
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    logprobs: list[Json] = []
    thoughts: list[str] = []
    for place, item in enumerate(output):
        if isinstance(item, dict):
            _take(message, logprobs, thoughts, item, place)
    if thoughts:
        message["reasoning_content"] = BETWEEN_THOUGHTS.join(thoughts)
    choice = {"index": 0, "message": message, "logprobs": {"content": logprobs, "refusal": None} if logprobs else None}
    choice["finish_reason"] = finish_of(body, has_calls="tool_calls" in message)
    made = {**head(sent, body), "object": "chat.completion", "choices": [choice]}
    usage = usage_of_answer(body)
    return made | ({"usage": chat_usage(usage)} if usage else {})


def head(sent: ConvertedRequest, body: Json) -> Json:
    """Returns what every piece of a chat completion repeats."""
    created = body.get("created_at")
    tier = body.get("service_tier")
    return {
        "id": f"chatcmpl-{sent.id}",
        "created": int(created) if isinstance(created, int | float) else int(sent.now),
        "model": body.get("model") or sent.source.get("model"),
        **({"service_tier": tier} if tier else {}),
    }


def error_of(body: Json) -> Json:
    """Returns the error of a response that failed, or was given up, as chat completions have them."""
    error = object_of(body.get("error"))
    message = error.get("message") or f"the response is {body.get('status') or 'failed'}"
    return {"message": message, "type": "server_error", "param": None, "code": error.get("code") or "server_error"}


def finish_of(body: Json, *, has_calls: bool, is_incomplete: bool = False) -> str:
    if is_incomplete or body.get("status") == "incomplete":
        return FINISH.get(text_of(object_of(body.get("incomplete_details")).get("reason")), "length")
    return "tool_calls" if has_calls else "stop"


def tool_call(item: Json) -> Json:
    """Returns an item that calls a tool as a message has it."""
    id, name = item.get("call_id"), item.get("name")
    if item.get("type") == "custom_tool_call":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": item.get("input") or ""}}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": item.get("arguments") or ""}}


def reasoning_detail(item: Json, index: int) -> Json | None:
    """Returns what goes back to the provider with the conversation; None: the item has nothing encrypted.

    `index` is the item's place in the answer, for it has to go back before the same call or message as it came.
    """
    data = item.get("encrypted_content")
    if not data:
        return None
    named = {"type": "reasoning.encrypted", "id": item.get("id"), "data": data, "format": REASONING_FORMAT}
    return named | {"index": index}


def annotation(one: Json, start: int) -> Json:
    """Returns a citation as a message has it, nested under its type; `start` is where its part begins in the message's text."""
    kind = str(one.get("type"))
    fields = {name: value for name, value in one.items() if name != "type"}
    fields |= {name: fields[name] + start for name in _PLACES if type(fields.get(name)) is int}
    return {"type": kind, kind: fields}


def thoughts_in(item: Json) -> list[str]:
    """Returns the parts of an item's reasoning."""
    parts = [*objects(item.get("content")), *objects(item.get("summary"))]
    return [text for part in parts if (text := text_of(part.get("text")))]


def logprobs_of(given: Any) -> list[Json]:
    """Returns log probabilities as chat completions have them; streams of Responses leave the bytes out."""
    return [
        {"bytes": None, **one, "top_logprobs": [{"bytes": None, **top} for top in objects(one.get("top_logprobs"))]}
        for one in objects(given)
    ]


def _take(message: Json, logprobs: list[Json], thoughts: list[str], item: Json, place: int) -> None:
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        message.setdefault("tool_calls", []).append(tool_call(item))
    elif kind == "reasoning":
        thoughts += thoughts_in(item)
        if (detail := reasoning_detail(item, place)) is not None:
            message.setdefault("reasoning_details", []).append(detail)
    elif kind == "message":
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                message["refusal"] = (message["refusal"] or "") + text_of(part.get("refusal"))
            elif isinstance(part.get("text"), str):
                start = len(message["content"] or "")
                message["content"] = (message["content"] or "") + part["text"]
                logprobs += logprobs_of(part.get("logprobs"))
                if cited := objects(part.get("annotations")):
                    message.setdefault("annotations", []).extend(annotation(one, start) for one in cited)


# --- The request ---


_UNSHARED: Final = frozenset(("verbosity",))
_OF_SCHEMAS: Final = ("name", "description", "schema", "strict")
LEAST_TOKENS: Final = 16
"""Responses refuse a lower bound on the output (400 `integer_below_min_value`)."""
ENCRYPTED: Final = "reasoning.encrypted_content"
_WORDS: Final = ("text", "refusal")


def responses_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the Responses request. Raises InvalidRequest where the messages make no sense."""
    made = {
        name: value
        for name, value in body.items()
        if value is not None and (name in SHARED or (name in facts.knows and name not in _UNSHARED))
    }
    made["input"] = _items(body.get("messages"), is_marked=facts.model.cache_marks)
    for name in ("user", "safety_identifier"):
        if isinstance(user := made.get(name), str):
            made[name] = shortened(user, facts.most_user_characters)
    made["store"] = False
    made["include"] = [ENCRYPTED]
    most = body.get("max_completion_tokens")
    most = body.get("max_tokens") if most is None else most
    if most is not None:
        made["max_output_tokens"] = max(LEAST_TOKENS, most) if isinstance(most, int) else most
    if body.get("logprobs"):
        made["include"].append("message.output_text.logprobs")
    if (obfuscation := object_of(body.get("stream_options")).get("include_obfuscation")) is not None:
        made["stream_options"] = {"include_obfuscation": obfuscation}
    if body.get("reasoning_effort") is not None:
        made["reasoning"] = {"effort": body["reasoning_effort"]}
    return made | _text(body) | _tools(body, has_search=facts.takes_developer)


def _text(body: Json) -> Json:
    made: Json = {}
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and isinstance(form.get("json_schema"), dict):
        named = form["json_schema"]
        made["format"] = {"type": "json_schema"} | {name: named[name] for name in _OF_SCHEMAS if name in named}
    elif isinstance(form, dict):
        made["format"] = {"type": form.get("type", "text")}
    if body.get("verbosity") is not None:
        made["verbosity"] = body["verbosity"]
    return {"text": made} if made else {}


def _tools(body: Json, *, has_search: bool) -> Json:
    given = _all_objects(body.get("tools"), "tools")
    given += [{"type": "function", "function": one} for one in objects(body.get("functions"))]
    if not has_search:
        given = [tool for tool in given if not is_search(tool)]
    made: Json = {"tools": [_tool(tool) for tool in given]} if given else {}
    choice = body.get("tool_choice", body.get("function_call"))
    if isinstance(choice, dict):
        choice = _choice(choice)
    return made | ({"tool_choice": choice} if choice is not None and given else {})


def _tool(tool: Json) -> Json:
    if is_search(tool):
        options = {name: value for name, value in search_options(tool).items() if name in OF_SEARCH}
        allowed = options.pop("allowed_domains", None)
        return {"type": SEARCH, **options} | ({"filters": {"allowed_domains": allowed}} if allowed else {})
    kind = text_of(tool.get("type", "function"))
    named = object_of(tool.get(kind))
    kept: Json = {name: named[name] for name in ("name", "description", "parameters") if name in named}
    if kind == "function":
        return {"type": kind, "parameters": None, **kept, "strict": bool(named.get("strict"))}
    answer = object_of(named.get("format"))
    if answer.get("type") == "grammar":
        rules = object_of(answer.get("grammar"))
        answer = {"type": "grammar", **{name: rules[name] for name in ("syntax", "definition") if name in rules}}
    elif answer:
        answer = {"type": "text"}
    return {"type": kind, **kept} | ({"format": answer} if answer else {})


def _choice(choice: Json) -> Json:
    if is_search(choice):
        return {"type": "allowed_tools", "mode": "required", "tools": [{"type": SEARCH}]}
    kind = choice.get("type", "function")
    named = choice.get(kind)
    if kind == "allowed_tools" and isinstance(named, dict):
        tools = [
            {"type": tool.get("type"), **_named(tool)} for tool in named.get("tools") or () if isinstance(tool, dict)
        ]
        return {"type": kind, "mode": named.get("mode", "auto"), "tools": tools}
    return {"type": kind, **_named(choice)}


def _named(tool: Json) -> Json:
    named = tool.get(text_of(tool.get("type", "function")))
    return {"name": (named if isinstance(named, dict) else tool).get("name")}


def _items(messages: Any, *, is_marked: bool) -> list[Json]:
    """Returns the items; `is_marked`: other languages' marks for the cache become OpenAI's."""
    if not isinstance(messages, list):
        raise InvalidRequest("The field 'messages' must be a list.", param="messages")
    items: list[Json] = []
    calls = 0
    custom: set[str] = set()  # the ids of the calls whose input is free text
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("user", "system", "developer"):
            items.append({"role": role, "content": _content(message.get("content"), place, is_marked=is_marked)})
        elif role == "assistant":
            items += _assistant_items(message, place, custom)
            if isinstance(message.get("function_call"), dict):
                calls += 1
                items.append(
                    {"type": "function_call", "call_id": f"call_{calls}", **_function(message["function_call"])}
                )
        elif role == "tool":
            items.append(_result(message.get("tool_call_id"), message.get("content"), place, custom))
        elif role == "function":
            items.append(_result(f"call_{calls}", message.get("content"), place, custom))
        else:
            raise InvalidRequest(
                f"'{place}.role' must be one of system, developer, user, assistant, tool.", param=f"{place}.role"
            )
    return items


def _assistant_items(message: Json, place: str, custom: set[str]) -> list[Json]:
    """Returns the items of one turn of the model: what it thought, said and called. Adds to the ids of `custom` calls."""
    items: list[Json] = []
    text = "".join((_text_at(message.get("content"), place), _text_at(message.get("refusal"), place)))
    if text:
        items.append({"role": "assistant", "content": text})
    for call in _all_objects(message.get("tool_calls"), f"{place}.tool_calls"):
        if not isinstance(call.get("id"), str):
            raise InvalidRequest(f"'{place}.tool_calls' needs an 'id' for each call.", param=f"{place}.tool_calls")
        if call.get("type") == "custom":
            named = object_of(call.get("custom"))
            made = {"type": "custom_tool_call", "name": named.get("name"), "input": named.get("input") or ""}
            items.append(made | {"call_id": call["id"]})
            custom.add(call["id"])
        else:
            items.append({"type": "function_call", "call_id": call["id"], **_function(object_of(call.get("function")))})
    _put_back(items, objects(message.get("reasoning_details")))
    return items


def _put_back(items: list[Json], details: list[Json]) -> None:
    """Puts what the model thought where it was: each before what followed it, by its `index`, its place in the answer."""
    for number, detail in enumerate(details):
        if detail.get("format") == REASONING_FORMAT and detail.get("data"):
            item = {"type": "reasoning", "summary": [], "encrypted_content": detail["data"]}
            place = detail.get("index")
            items.insert(
                place if type(place) is int else number, item | ({"id": detail["id"]} if detail.get("id") else {})
            )


def _function(named: Json) -> Json:
    return {"name": named.get("name"), "arguments": named.get("arguments") or "{}"}


def _result(id: Any, content: Any, place: str, custom: Container[str]) -> Json:
    if not isinstance(id, str):
        raise InvalidRequest(
            f"'{place}.tool_call_id' must name the call that this is the result of.", param=f"{place}.tool_call_id"
        )
    kind = "custom_tool_call_output" if id in custom else "function_call_output"
    # Pictures and files are what a string cannot say.
    has_more = any(part.get("type") != "text" for part in objects(content))
    return {"type": kind, "call_id": id, "output": _content(content, place) if has_more else _text_at(content, place)}


def _text_at(content: Any, place: str) -> str:
    """Returns a content's text; the parts of one are put together."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
    parts = _all_objects(content, f"{place}.content")
    if any(text_of(part.get("type", "text")) not in _WORDS for part in parts):
        raise InvalidRequest(f"'{place}.content' takes text only.", param=f"{place}.content")
    return "".join(text_of(part.get("text", part.get("refusal"))) for part in parts)


def _all_objects(value: Any, place: str) -> list[Json]:
    """Returns the objects of a list; none where there is no list. Raises InvalidRequest where something else is in it."""
    found = objects(value)
    if value is not None and (not isinstance(value, list) or len(found) < len(value)):
        raise InvalidRequest(f"'{place}' must be a list of objects.", param=place)
    return found


def _content(content: Any, place: str, *, is_marked: bool = False) -> Any:
    if not isinstance(content, list):
        return _text_at(content, place)
    return [_part(part, f"{place}.content[{number}]", is_marked=is_marked) for number, part in enumerate(content)]


def _part(part: Any, place: str, *, is_marked: bool) -> Json:
    mark = part.get("prompt_cache_breakpoint") if isinstance(part, dict) else None
    if is_marked and not mark and isinstance(part, dict) and part.get("cache_control"):
        mark = {"mode": "explicit"}
    return _unmarked(part, place) | ({"prompt_cache_breakpoint": mark} if mark else {})


def _unmarked(part: Any, place: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    inner = part.get(kind) if isinstance(kind, str) else None
    if kind == "text":
        return {"type": "input_text", "text": part.get("text")}
    if kind == "image_url" and isinstance(inner, dict):
        return {"type": "input_image", "image_url": inner.get("url"), "detail": inner.get("detail") or "auto"}
    if kind == "file" and isinstance(inner, dict):
        return {
            "type": "input_file",
            **{name: inner[name] for name in ("file_data", "file_id", "filename") if name in inner},
        }
    raise InvalidRequest(f"'{place}' is no part that this model's provider takes.", param=place)


# --- The stream ---


_BEGINS = frozenset(("response.created", "response.in_progress", "response.queued"))
_ENDS = frozenset(("response.completed", "response.incomplete"))
_THOUGHTS = {
    "response.reasoning_text.delta": "content_index",
    "response.reasoning_summary_text.delta": "summary_index",
}
_ARGUMENTS = frozenset(("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"))
_CALLS = frozenset(("function_call", "custom_tool_call"))


class _OpenCall:
    """A call: its place in the message, and whether its arguments have begun."""

    def __init__(self, index: int, *, is_custom: bool) -> None:
        self.index, self.is_custom, self.is_begun = index, is_custom, False


class ResponsesAsChat(ConvertingReader):
    """Reads the events of a response; implements `base.Reader`.

        role delta* finish usage? [DONE] | ... error

    Each piece is one line that ends with its choices, so that `sse.is_plain_chat` need not parse it again. No word is held
    back; citations are, because chat completions have them at once. What a server says only of an item as a whole, or of
    the whole answer, is passed on then, so that the same comes out as from an answer that was not streamed.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._includes_usage = bool(object_of(sent.source.get("stream_options")).get("include_usage"))
        self._head: Json | None = None
        self._before_text = b""
        """All that stands before the words in a piece with words; empty until the stream has begun."""
        self._calls: dict[int, _OpenCall] = {}
        """The open calls, by their places among the response's items."""
        self._sent_places: set[int] = set()
        """The places of the items whose words have left."""
        self._thought: tuple[int, str, int] | None = None
        """The part whose reasoning has left last."""
        self._citations: list[Json] = []
        self._cited = 0
        """The characters of the parts whose citations are known."""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None:
            return self._read_odd(event)
        kind = parsed.get("type")
        if kind == "response.output_text.delta" and self._before_text and type(parsed.get("delta")) is str:
            self._sent_places.add(_number(parsed.get("output_index")))
            if not parsed.get("logprobs"):
                return b'%b%b},"finish_reason":null}]}\n\n' % (self._before_text, orjson.dumps(parsed["delta"]))
            return self._delta({"content": parsed["delta"]}, logprobs_of(parsed["logprobs"]))
        if (response := parsed.get("response")) is not None:
            self.reported = usage_of_answer(object_of(response)) or self.reported
        if (
            type(kind) is not str
            or not kind.startswith("response.")
            or kind == "response.failed"
            or parsed.get("error")
        ):
            return self._read_odd(event)
        return self._take(kind, parsed)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what is no event of the usual form: an error, a comment, an end, nonsense."""
        if (error := error_in(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return b""
        parsed = json_object(data)
        if parsed is not None:
            return self._take(str(parsed.get("type")), parsed)
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, kind: str, event: Json) -> bytes:
        if kind in _BEGINS:
            return self._begin(event.get("response"))
        if kind in _ENDS:
            return self._end(kind, object_of(event.get("response")))
        begun = self._begin(None)
        delta, place = event.get("delta"), _number(event.get("output_index"))
        if kind in _ARGUMENTS:
            return begun + self._piece(self._calls.get(place), delta)
        if kind in _THOUGHTS:
            return begun + self._think((place, kind, _number(event.get(_THOUGHTS[kind]))), delta)
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return begun + self._text_delta(
                place, "content" if kind == "response.output_text.delta" else "refusal", delta
            )
        item = event.get("item")
        if kind == "response.output_item.added" and isinstance(item, dict):
            return begun + self._open(place, item)
        if kind == "response.output_item.done" and isinstance(item, dict):
            return begun + self._close(place, item)
        return begun

    def _begin(self, body: Any) -> bytes:
        if self._head is not None:
            return b""
        self._head = {**head(self._sent, object_of(body)), "object": "chat.completion.chunk"}
        if self._head.get("service_tier") == "auto":
            del self._head["service_tier"]  # which one it was is known at the end
        before = orjson.dumps({**self._head, "choices": []}).removesuffix(b"]}")
        self._before_text = b'data: %b{"index":0,"delta":{"content":' % before
        return self._delta({"role": "assistant", "content": ""})

    def _text_delta(self, place: int, field: str, text: Any) -> bytes:
        if not isinstance(text, str) or not text:
            return b""
        self._sent_places.add(place)
        return self._delta({field: text})

    def _think(self, part: tuple[int, str, int], text: Any) -> bytes:
        """Returns the pieces of reasoning; its parts are paragraphs."""
        if not isinstance(text, str) or not text:
            return b""
        self._sent_places.add(part[0])
        is_next, self._thought = self._thought is not None and self._thought != part, part
        return self._delta({"reasoning_content": BETWEEN_THOUGHTS + text if is_next else text})

    def _open(self, place: int, item: Json) -> bytes:
        if text_of(item.get("type")) not in _CALLS or place in self._calls:
            return b""
        is_custom = item["type"] == "custom_tool_call"
        call = self._calls[place] = _OpenCall(len(self._calls), is_custom=is_custom)
        made = with_own_name(tool_call(item), self._sent.names)
        call.is_begun = bool(made["custom"]["input"] if is_custom else made["function"]["arguments"])
        return self._delta({"tool_calls": [{"index": call.index, **made}]})

    def _piece(self, call: _OpenCall | None, text: Any) -> bytes:
        if call is None or not isinstance(text, str) or not text:
            return b""
        call.is_begun = True
        named = {"custom": {"input": text}} if call.is_custom else {"function": {"arguments": text}}
        return self._delta({"tool_calls": [{"index": call.index, **named}]})

    def _close(self, place: int, item: Json) -> bytes:
        """Returns the pieces that are known at an item's end only: what goes back encrypted, and what came in no pieces."""
        kind = text_of(item.get("type"))
        if kind in _CALLS:
            opened = self._open(place, item)
            call = self._calls[place]
            return (
                opened
                if call.is_begun
                else opened + self._piece(call, item.get("input" if call.is_custom else "arguments"))
            )
        made = bytearray()
        if kind == "reasoning":
            if place not in self._sent_places:
                for number, text in enumerate(thoughts_in(item)):
                    made += self._think((place, "", number), text)
            detail = reasoning_detail(item, place)
            made += b"" if detail is None else self._delta({"reasoning_details": [detail]})
        if kind == "message":
            is_sent = place in self._sent_places
            for part in objects(item.get("content")):
                self._citations += [annotation(one, self._cited) for one in objects(part.get("annotations"))]
                self._cited += len(text_of(part.get("text")))
                if not is_sent:
                    made += self._text_delta(place, "content", part.get("text")) + self._text_delta(
                        place, "refusal", part.get("refusal")
                    )
        return bytes(made)

    def _end(self, kind: str, body: Json) -> bytes:
        if body.get("error") or body.get("status") not in (None, "completed", "incomplete"):
            return self._fail(error_of(body))
        made = bytearray(self._begin(body))
        if not self._sent_places and not self._calls:
            for place, item in enumerate(objects(body.get("output"))):  # a server that has told nothing but the whole
                made += self._close(place, item)
        if self._citations:
            made += self._delta({"annotations": self._citations})
        self._is_over = True
        if body.get("service_tier"):
            self._head = {**(self._head or {}), "service_tier": body["service_tier"]}
        finish = finish_of(body, is_incomplete=kind == "response.incomplete", has_calls=bool(self._calls))
        made += self._chunk([{"index": 0, "delta": {}, "finish_reason": finish}])
        if self._includes_usage and self.reported is not None:
            chunk = {**(self._head or {}), "choices": [], "usage": chat_usage(self.reported)}
            made += b"data: %b\n\n" % orjson.dumps(chunk)
        made += b"data: [DONE]\n\n"
        return bytes(made)

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        kind = error.get("type") if error.get("type") not in ("error", None) else "server_error"
        rest = {name: value for name, value in error.items() if name not in ("sequence_number", "event_id")}
        failure = {"param": None, "code": None, **rest, "type": kind}
        return chat_failure(self._sent, failure, has_begun=bool(self._sent_places or self._calls))

    def _delta(self, delta: Json, logprobs: list[Json] | None = None) -> bytes:
        extra = {"logprobs": {"content": logprobs, "refusal": None}} if logprobs else {}
        return self._chunk([{"index": 0, "delta": delta, **extra, "finish_reason": None}])

    def _chunk(self, choices: list[Json]) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**(self._head or {}), "choices": choices})


def _number(place: Any) -> int:
    return place if isinstance(place, int) else 0
