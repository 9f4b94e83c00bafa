"""A Responses request as a chat completion.

In this order: its tools (`flattened`), and the request around them. A call's id is its `call_id`, never its `id`. Source:
OpenAI's API reference, `POST /v1/responses`, its tools of type `namespace` and `tool_search`, and its items of type
`additional_tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import json_object
from gateway.core.types import Gap, How
from gateway.dialects.base import Json, ServerFacts, is_no_argument, object_of, objects, strings, text_of
from gateway.dialects.issuers import carried_in
from gateway.dialects.openai.gaps import CACHE_OPTIONS, PASSED_OVER, RESPONSES_TIERS, TEXT_PARTS, is_reference
from gateway.dialects.schema_tools.tools import OPENAIS, SEARCH, is_search

# --- Tools, those in namespaces and those that come late, as one list ---


GAP: Final = Gap(
    "tools.namespace", How.APPROXIMATED, "its tools have its name before theirs, and their calls get it back"
)
_SEPARATOR: Final = "__"
_CALLS: Final = ("function_call", "custom_tool_call")
TOOL_SEARCH: Final = "tool_search"
"""The type of the tool that finds tools, and the name of the function that it becomes, which is in no namespace."""
_LOADING: Final = ("additional_tools", "tool_search_output")
"""Items that bring tools."""
_SEARCHING: Final = ("tool_search_call", "tool_search_output")
_OWN_KINDS: Final = frozenset(("namespace", TOOL_SEARCH))
_SEARCH_GAP: Final = Gap(
    "tools.tool_search", How.APPROXIMATED, "it becomes a function, and what it finds is told in words"
)
_NO_SEARCH_GAP: Final = Gap("tools.tool_search", How.DROPPED, "all tools are there from the start")
_LATE_GAP: Final = Gap("input.additional_tools", How.APPROXIMATED, "they are there from the start")
_RESULTS: Final = tuple(f"{kind}_output" for kind in _CALLS)
_Qualified = tuple[str, str]
"""A namespace's name, and the name of a tool in it."""


class FlatRequest(NamedTuple):
    """A Responses request with all of its tools in one list, and none of them in a namespace."""

    body: Json
    """The request itself where it is one already."""
    names: Mapping[str, _Qualified]
    """The namespace of a tool and its own name, by the name that it goes by."""
    gaps: Sequence[Gap]
    """The gaps of its tools on the way."""


def flattened(body: Json) -> FlatRequest:
    """Returns a Responses request whose tools are functions and the like in one list, with its calls and its choice of
    them.

    Tools that come with the input are there from the start; who searches its tools by itself has a function for that.
    Raises nothing: what makes no sense stays as it is.

    A tool's name in the list is made of its namespace's and its own, and is the same in each turn, so that calls of former
    turns have it, too; they come back as Responses have them.
    """
    tools, items = body.get("tools"), body.get("input")
    has_namespaces = any(one.get("namespace") for one in objects(items))
    loading = [one for one in objects(items) if one.get("type") in _LOADING]
    kinds = {text_of(one.get("type")) for one in objects(tools)}
    if not isinstance(tools, list | None) or not (has_namespaces or loading or not kinds.isdisjoint(_OWN_KINDS)):
        return FlatRequest(body, {}, ())
    given = [*(tools or ()), *(tool for item in loading for tool in objects(item.get("tools")))]
    grouped = [one for one in objects(given) if one.get("type") == "namespace"]
    plain = {text_of(one.get("name")) for one in objects(given) if one.get("type") != "namespace"}
    flat: dict[_Qualified, str] = {}
    taken = set(plain)
    for group in grouped:
        for tool in objects(group.get("tools")):
            _add((text_of(group.get("name")), text_of(tool.get("name"))), flat, taken)
    for item in objects(items):
        if item.get("type") in _CALLS:
            _add((text_of(item.get("namespace")), text_of(item.get("name"))), flat, taken)
    searches = [one for one in objects(given) if one.get("type") == TOOL_SEARCH]
    if any(map(_is_clients, [*searches, *(one for one in objects(items) if one.get("type") in _SEARCHING)])):
        flat["", TOOL_SEARCH] = TOOL_SEARCH if TOOL_SEARCH not in plain else OPENAIS.of(f":{TOOL_SEARCH}")
    made = dict(body)
    if listed := _without_repeats([one for tool in given for one in _ungrouped(tool, flat)], len(tools or ())):
        made["tools"] = listed
    elif tools:
        del made["tools"]
    if isinstance(items, list):
        made["input"] = [made_item for one in items for made_item in _flat_item(one, flat)]
    if isinstance(choice := body.get("tool_choice"), dict):
        made["tool_choice"] = _chosen(choice, flat, plain)
    lost = [GAP] if grouped else []
    lost += [_SEARCH_GAP if _is_clients(one) else _NO_SEARCH_GAP for one in searches]
    lost += [_LATE_GAP] if any(one["type"] == "additional_tools" for one in loading) else []
    return FlatRequest(made, {name: qualified for qualified, name in flat.items()}, lost)


def _is_clients(search: Json) -> bool:
    """Returns whether the caller searches its tools by itself; else OpenAI does, among those that it is to load late."""
    return search.get("execution") == "client" and (
        search["type"] == TOOL_SEARCH or isinstance(search.get("call_id"), str)
    )


def _without_repeats(tools: list[Any], own: int) -> list[Any]:
    """Returns tools, of which one that was loaded stands for an earlier one of its name; the first `own` were not loaded."""
    places: dict[tuple[str, str], int] = {}
    kept: list[Any] = []
    for number, tool in enumerate(tools):
        name = text_of(object_of(tool).get("type")), text_of(object_of(tool).get("name"))
        if number >= own and name[1] and name in places:
            kept[places[name]] = tool
        else:
            places[name] = len(kept)
            kept.append(tool)
    return kept


def _flat_item(item: Any, flat: Mapping[_Qualified, str]) -> list[Any]:
    """Returns the items that one becomes."""
    kind = object_of(item).get("type")
    if kind == "additional_tools":
        return []
    if kind not in _SEARCHING or not _is_clients(item):
        return [_renamed(item, flat)]
    made: Json = {"call_id": item["call_id"]}
    if kind == "tool_search_call":
        arguments = orjson.dumps(object_of(item.get("arguments")), option=orjson.OPT_NON_STR_KEYS).decode()
        return [{"type": "function_call", "name": flat["", TOOL_SEARCH], "arguments": arguments, **made}]
    found = [text_of(tool.get("name")) for group in objects(item.get("tools")) for tool in _ungrouped(group, flat)]
    text = "These tools can be called now: " + ", ".join(filter(None, found)) if found else "No tool was found."
    return [{"type": "function_call_output", "output": text, **made}]


def _add(qualified: _Qualified, flat: dict[_Qualified, str], taken: set[str]) -> None:
    """Puts the name for one tool in `flat`, and among those that are taken: no two tools have the same."""
    if not all(qualified) or qualified in flat:
        return
    namespace, name = qualified
    joined = OPENAIS.of(f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}")
    flat[qualified] = OPENAIS.of(f"{namespace}:{name}") if joined in taken else joined
    taken.add(flat[qualified])


def _ungrouped(tool: Any, flat: Mapping[_Qualified, str]) -> list[Any]:
    """Returns the tools of a namespace, the first of which says what the namespace is; another tool is itself."""
    if isinstance(tool, dict) and tool.get("type") == TOOL_SEARCH:
        if not _is_clients(tool):
            return []
        kept = {name: tool[name] for name in ("description", "parameters") if tool.get(name) is not None}
        return [{"type": "function", "name": flat["", TOOL_SEARCH], **kept, "strict": False}]
    if not isinstance(tool, dict) or tool.get("type") != "namespace":
        return [tool]
    namespace, about = text_of(tool.get("name")), text_of(tool.get("description"))
    made = [
        {**one, "name": flat.get((namespace, text_of(one.get("name"))), one.get("name"))}
        for one in objects(tool.get("tools"))
    ]
    if about and made:
        text = f"About the tools of {namespace}: {about}"
        made[0]["description"] = "\n\n".join(filter(None, (text_of(made[0].get("description")), text)))
    return made


def _renamed(item: Any, flat: Mapping[_Qualified, str]) -> Any:
    """Returns a call by its tool's name in the list, and its result, which repeats that name; another item is itself."""
    if not isinstance(item, dict) or not item.get("namespace") or item.get("type") not in (*_CALLS, *_RESULTS):
        return item
    name = flat.get((text_of(item.get("namespace")), text_of(item.get("name"))))
    if name is None and item["type"] in _CALLS:
        return item
    return {one: value for one, value in item.items() if one != "namespace"} | ({"name": name} if name else {})


def _chosen(choice: Json, flat: Mapping[_Qualified, str], plain: set[str]) -> Json:
    """Returns the choice of a tool, or of several, by their names in the list."""
    by_namespace: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for (space, own), joined in flat.items():
        by_namespace.setdefault(space, []).append(joined)
        by_name.setdefault(own, joined)

    def allowed(tool: Json) -> list[Json]:
        """Returns a tool, or all of the namespace that it is; a tool's own name may stand without its namespace."""
        name, namespace = text_of(tool.get("name")), text_of(tool.get("namespace"))
        if tool.get("type") == "namespace" and name in by_namespace:
            # Once: a body that repeats it could make more of itself than there is memory.
            joined_names, by_namespace[name] = by_namespace[name], []
            return [{"type": "function", "name": joined} for joined in joined_names]
        if tool.get("type") == "namespace" or (name in plain and not namespace):
            return [tool]
        found = flat.get((namespace, name)) if namespace else by_name.get(name)
        return [tool] if found is None else [{"type": tool.get("type"), "name": found}]

    if choice.get("type") == "allowed_tools":
        return {**choice, "tools": [one for tool in objects(choice.get("tools")) for one in allowed(tool)]}
    return allowed(choice)[0]


def qualified(item: Json, names: Mapping[str, _Qualified]) -> Json:
    """Returns a call's item under its tool's own name, in its namespace; a search of tools is an item of its own."""
    found = names.get(text_of(item.get("name")))
    if found is None:
        return item
    if found == ("", TOOL_SEARCH):
        given = item.get("arguments", item.get("input"))
        arguments = json_object(given.encode(errors="replace")) if isinstance(given, str) else None
        kept: Json = {name: item[name] for name in ("id", "status", "call_id") if name in item}
        return {**kept, "type": "tool_search_call", "execution": "client", "arguments": arguments or {}}
    return {**item, "namespace": found[0], "name": found[1]}


# --- The request around them ---


_SAME: Final = frozenset(("model", "stream", "temperature", "top_p", "user"))
"""Fields that all servers with chat completions know by the same name."""
_OWN: Final = frozenset(
    (
        "input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "include", "store",
        "stream_options", "background", "conversation", "previous_response_id", "prompt", "context_management",
        "max_tool_calls", "truncation", "image", "access_programs", "n", "messages", "parallel_tool_calls", "top_logprobs",
    )
)  # fmt: skip
"""Fields that chat completions know by another name, or not; all others go on to who converts them once more."""
INPUT_NAME: Final = "input"
"""The one parameter of a function that stands for a tool with free text."""
_FREE_TEXT: Final[Json] = {
    "type": "object",
    "properties": {INPUT_NAME: {"type": "string"}},
    "required": [INPUT_NAME],
    "additionalProperties": False,
}


def chat_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the chat completion. Raises InvalidRequest where the input makes no sense."""
    knows = _SAME | facts.knows
    made = {
        name: value
        for name, value in body.items()
        if value is not None and name not in _OWN and (name in knows or facts.takes_details)
    }
    made["messages"] = _Messages(body, facts).all()
    made |= _tools(body, facts)
    made |= _options(body, facts)
    if isinstance(options := made.get("prompt_cache_options"), dict):
        kept = {name: value for name, value in options.items() if value in CACHE_OPTIONS.get(name, ())}
        made |= {"prompt_cache_options": kept}
    if made.get("service_tier") in RESPONSES_TIERS:
        del made["service_tier"]
    if (most := body.get("max_output_tokens")) is not None:
        made[facts.bound_field] = most
    if body.get("stream"):
        made["stream_options"] = {"include_usage": True}
        obfuscation = object_of(body.get("stream_options")).get("include_obfuscation")
        if facts.takes_developer and obfuscation is not None:
            made["stream_options"]["include_obfuscation"] = obfuscation
    if facts.takes_developer and body.get("store") is False:
        made["store"] = False
    return made


def custom_tools(body: Json) -> frozenset[str]:
    """Returns the names of the tools whose input is free text."""
    return frozenset(text_of(tool.get("name")) for tool in objects(body.get("tools")) if tool.get("type") == "custom")


class _Messages:
    """Puts items together to messages.

    A run of items that one turn of the model has made (reasoning, message, calls) becomes one assistant message, because
    chat completions pair calls with their results by message (BerriAI/litellm#22578).
    """

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self._facts = facts
        self._system = system = "developer" if facts.takes_developer else "system"
        self._made: list[Json] = []
        self._turn: Json | None = None
        """The assistant message that is being put together."""
        self._extras: dict[str, Json] = {}
        """What a provider has said besides of calls of the turn, by their ids."""
        self._pictures: list[Json] = []
        """Pictures of tools' results, which chat completions take from users only."""
        self._unanswered: dict[str, str] = {}
        """The calls whose results have to come next: their ids, and where they stand."""
        if body.get("instructions"):
            self._made.append({"role": system, "content": _text_at(body["instructions"], "instructions")})
        given = body.get("input")
        if isinstance(given, str):
            self._made.append({"role": "user", "content": given})
        elif isinstance(given, list):
            for number, item in enumerate(given):
                self._take(item, f"input[{number}]")
        elif given is not None:
            raise InvalidRequest("The field 'input' must be a string or a list of items.", param="input")

    def all(self) -> list[Json]:
        self._end_turn()
        self._want_no_result()
        self._show_pictures()
        return self._made if self._facts.takes_developer else _with_one_instruction(self._made)

    def _take(self, item: Any, place: str) -> None:
        if not isinstance(item, dict):
            raise InvalidRequest(f"'{place}' must be an object.", param=place)
        kind = item.get("type") or ("item_reference" if is_reference(item) else "message")
        if kind in PASSED_OVER:
            return
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            self._reasoning(item)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, place, is_custom=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(item, place)
        else:
            raise InvalidRequest(
                f"'{place}' is of type '{kind}', which this model's provider does not take.", param=place
            )

    def _message(self, item: Json, place: str) -> None:
        role = item.get("role")
        if role == "assistant":
            written = _assistant_fields(item.get("content"), place)
            turn = self._open_turn()
            if "content" in turn and "tool_calls" not in turn:
                turn = self._open_turn(is_new=True)
            # Words behind calls are of the same message, for the results have to follow the calls.
            turn["content"] = "".join(filter(None, (turn.get("content"), written.pop("content")))) or None
            turn |= written
            return
        if role not in ("user", "system", "developer"):
            raise InvalidRequest(f"'{place}.role' must be user, assistant, system or developer.", param=f"{place}.role")
        self._end_turn()
        self._want_no_result()
        self._show_pictures()
        content = _content(item.get("content"), place, self._facts)
        if role == "user" or self._facts.takes_developer:
            self._made.append({"role": "user" if role == "user" else self._system, "content": content})
        else:
            self._instruct(content)

    def _instruct(self, content: Any) -> None:
        """Takes instructions for a server whose templates have them once, at the beginning; others are a user's words."""
        if not self._made or self._made[-1]["role"] == self._system:
            self._made.append({"role": self._system, "content": content})
        else:
            text = "".join(part["text"] for part in _as_parts(content) if part["type"] == "text")
            self._made.append({"role": "user", "content": f"<system>{text}</system>"})

    def _reasoning(self, item: Json) -> None:
        """Plain reasoning goes back to the servers that show it (DeepSeek, vLLM); what is encrypted is another's, or ours."""
        carried = carried_in(text_of(item.get("encrypted_content")))
        if carried is not None:
            turn = self._turn or self._open_turn()
            if carried.details and self._facts.takes("reasoning_details"):
                turn.setdefault("reasoning_details", []).extend(carried.details)
            if self._facts.takes("extra_content"):
                self._extras |= carried.extras
            if not item.get("content"):
                return
        text = "".join(text_of(part.get("text")) for part in objects(item.get("content")))
        turn = self._open_turn()
        if "content" in turn and "tool_calls" not in turn:
            turn = self._open_turn(is_new=True)
        if text and self._facts.takes_reasoning:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def _call(self, item: Json, place: str, *, is_custom: bool) -> None:
        name, id = item.get("name"), item.get("call_id")
        if not isinstance(name, str) or not isinstance(id, str):
            raise InvalidRequest(f"'{place}' needs a 'name' and a 'call_id'.", param=place)
        given = text_of(item.get("input" if is_custom else "arguments"))
        calls = self._open_turn().setdefault("tool_calls", [])
        self._unanswered[id] = place
        if is_custom and self._facts.takes_custom_tools:
            calls.append({"id": id, "type": "custom", "custom": {"name": name, "input": given}})
            return
        arguments = (
            orjson.dumps({INPUT_NAME: given}).decode() if is_custom else "{}" if is_no_argument(given) else given
        )
        calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def _result(self, item: Json, place: str) -> None:
        id = item.get("call_id")
        if not isinstance(id, str):
            raise InvalidRequest(
                f"'{place}.call_id' must name the call that this is the result of.", param=f"{place}.call_id"
            )
        self._end_turn()
        if self._unanswered.pop(id, None) is None:
            message = f"'{place}' is the result of call '{id}', which is not among the calls of the turn before it."
            raise InvalidRequest(message, param=f"{place}.call_id")
        output = item.get("output")
        if isinstance(output, list):
            parts = _content(output, f"{place}.output", self._facts)
            texts = [part for part in parts if part["type"] == "text"]
            shown = [part for part in parts if part["type"] != "text"]
            if shown and self._facts.takes_details:  # what follows knows whether its target has pictures there
                texts, shown = parts, []
            if shown:
                self._pictures += [{"type": "text", "text": f"Of the result of {id}:"}, *shown]
            is_marked = texts is parts or any("prompt_cache_breakpoint" in part for part in texts)
            output = texts if is_marked else "".join(part["text"] for part in texts)
        else:
            output = _text_at(output, f"{place}.output")
        self._made.append({"role": "tool", "tool_call_id": id, "content": output})

    def _open_turn(self, *, is_new: bool = False) -> Json:
        if is_new:
            self._end_turn()
        if self._turn is None:
            self._want_no_result()
            self._show_pictures()
            self._turn = {"role": "assistant"}
        return self._turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        for call in turn.get("tool_calls", ()) if turn is not None and self._extras else ():
            if (extra := self._extras.pop(call["id"], None)) is not None:
                call["extra_content"] = extra
        if turn is not None and len(turn) > 1:  # reasoning that cannot go back leaves nothing
            turn.setdefault("content", None if "tool_calls" in turn else "")
            self._made.append(turn)

    def _want_no_result(self) -> None:
        """Raises InvalidRequest where something else follows calls than their results: chat completions pair them by place."""
        for id, place in self._unanswered.items():
            raise InvalidRequest(f"No result of call '{id}' follows '{place}' before the next message.", param=place)

    def _show_pictures(self) -> None:
        shown, self._pictures = self._pictures, []
        if shown:
            self._made.append({"role": "user", "content": shown})


def _with_one_instruction(messages: list[Json]) -> list[Json]:
    """Returns messages with the instructions at their beginning put together; the list itself where there is one at most."""
    first = list(takewhile(lambda message: message["role"] == "system", messages))
    if len(first) < 2:
        return messages
    texts = [content for message in first if isinstance(content := message["content"], str)]
    # Texts are one text up to the first that has parts, from where on all are parts.
    begin = next((number for number, one in enumerate(first) if not isinstance(one["content"], str)), len(first))
    instruction: Any = "\n\n".join(texts[:begin])
    if begin < len(first):
        instruction = _as_parts(instruction) if begin else []
        for message in first[begin:]:
            instruction += _as_parts(message["content"])
    return [{"role": "system", "content": instruction}, *messages[len(first) :]]


def _as_parts(content: Any) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _assistant_fields(content: Any, place: str) -> Json:
    """Returns what an assistant said, as fields of its message."""
    if not isinstance(content, list):
        return {"content": _text_at(content, f"{place}.content")}
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type", "text") not in TEXT_PARTS:
            where = f"{place}.content[{number}]"
            raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
    text = "".join(text_of(part.get("text")) for part in objects(content))
    refusal = "".join(text_of(part.get("refusal")) for part in objects(content))
    return {"content": text if text or not refusal else None} | ({"refusal": refusal} if refusal else {})


def _content(content: Any, place: str, facts: ServerFacts) -> Any:
    """Returns a message's content: a string as it is, parts one by one."""
    if not isinstance(content, list):
        return _text_at(content, f"{place}.content")
    return [_marked(part, _part(part, f"{place}.content[{number}]"), facts) for number, part in enumerate(content)]


def _marked(part: Json, made: Json, facts: ServerFacts) -> Json:
    """Returns the part with the mark that its caller has set for the cache of prompts, which OpenAI's know in both."""
    mark = part.get("prompt_cache_breakpoint")
    return made | {"prompt_cache_breakpoint": mark} if mark and facts.takes_developer else made


def _part(part: Any, place: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": _text_at(part.get("text"), f"{place}.text")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        shown = {"url": part["image_url"]} | ({"detail": part["detail"]} if part.get("detail") else {})
        return {"type": "image_url", "image_url": shown}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        named = {"filename": part["filename"]} if part.get("filename") else {}
        return {"type": "file", "file": {"file_data": part["file_data"], **named}}
    if kind == "input_audio":
        sound = object_of(part.get("input_audio"))
        return {"type": "input_audio", "input_audio": {one: sound[one] for one in ("data", "format") if one in sound}}
    raise InvalidRequest(f"'{place}' is no part that this model's provider takes.", param=place)


def _text_at(value: Any, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{place}' must be a string.", param=place)
    return value


def _tools(body: Json, facts: ServerFacts) -> Json:
    given = body.get("tools")
    if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
        raise InvalidRequest("The field 'tools' must be a list of objects.", param="tools")
    tools = [_tool(tool, facts) for tool in objects(given) if facts.takes_details or not is_search(tool)]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = {SEARCH if is_search(tool) else text_of(tool.get("name")) for tool in objects(choice.get("tools"))}
        tools = [tool for tool in tools if object_of(tool.get(tool["type"])).get("name", tool["type"]) in allowed]
        choice = choice.get("mode", "auto")
    elif isinstance(choice, dict) and is_search(choice):
        choice = {"type": SEARCH}
    elif isinstance(choice, dict):
        kind = "custom" if choice.get("type") == "custom" and facts.takes_custom_tools else "function"
        choice = {"type": kind, kind: {"name": choice.get("name")}}
    made: Json = {"tools": tools} if tools else {}
    if tools and body.get("parallel_tool_calls") is not None:  # without tools, some refuse the word
        made["parallel_tool_calls"] = body["parallel_tool_calls"]
    return made | ({"tool_choice": choice} if choice is not None and tools else {})


def _tool(tool: Json, facts: ServerFacts) -> Json:
    if is_search(tool):
        return {**tool, "type": SEARCH}
    if tool.get("type") == "custom":
        named = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
        grammar = object_of(tool.get("format"))
        rules = {name: grammar.get(name) for name in ("syntax", "definition")}
        if facts.takes_custom_tools:
            shape: Json = (
                {"type": "grammar", "grammar": rules} if grammar.get("type") == "grammar" else {"type": "text"}
            )
            return {"type": "custom", "custom": named | ({"format": shape} if grammar else {})}
        if grammar.get("type") == "grammar":
            hint = f"The input follows this {rules['syntax']} grammar:\n{rules['definition']}"
            named["description"] = "\n\n".join(filter(None, (text_of(named.get("description")), hint)))
        return {"type": "function", "function": {**named, "parameters": _FREE_TEXT}}
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in kept if tool.get(name) is not None}}


def _options(body: Json, facts: ServerFacts) -> Json:
    """Returns the options that are nested in one of the two languages."""
    made: Json = {}
    text = object_of(body.get("text"))
    answer = object_of(text.get("format"))
    if answer.get("type") == "json_schema":
        kept = ("name", "schema", "strict", "description")
        named = {name: answer[name] for name in kept if answer.get(name) is not None}
        made["response_format"] = {"type": "json_schema", "json_schema": named}
    elif answer.get("type") == "json_object":
        made["response_format"] = {"type": "json_object"}
    if text.get("verbosity") is not None and "verbosity" in facts.knows:
        made["verbosity"] = text["verbosity"]
    if (effort := object_of(body.get("reasoning")).get("effort")) is not None:
        made["reasoning_effort"] = effort
    if body.get("top_logprobs") or "message.output_text.logprobs" in strings(body.get("include")):
        made["logprobs"] = True
        if body.get("top_logprobs") is not None:
            made["top_logprobs"] = body["top_logprobs"]
    return made
