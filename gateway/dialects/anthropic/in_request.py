"""A request of Messages as a chat completion.

In this order: instructions between the messages, turns (`Turns`), and the request around them. Turns of one role that follow
each other are one, as Anthropic has it. Invariant: calls and results are paired; what cannot be is refused by its place and
never repaired in silence.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.anthropic.in_parts import Parts, is_passed_over, is_plain_text, text_at, texts_of
from gateway.dialects.anthropic.in_thoughts import THOUGHTS, detail_of_block, held_by, signature_of
from gateway.dialects.base import Json, ServerFacts, object_of, objects, stops_for, text_of
from gateway.dialects.issuers import read_exactly, written
from gateway.dialects.openai import gaps as openai_gaps
from gateway.dialects.openai.gaps import SAMPLING, is_sampled
from gateway.dialects.schema_tools.schema import size_of
from gateway.dialects.schema_tools.tools import (
    SEARCH,
    id_for,
    is_search,
    is_search_alone,
    name_for,
    search_in,
    shortened,
)

# --- Instructions between the messages, which some of Anthropic's models take, and other servers refuse ---


SYSTEM_GAP: Final = Gap(
    "messages.system", How.APPROXIMATED, "instructions between the messages become a user's words, in their place"
)
MOVED_GAP: Final = Gap("messages.system", How.APPROXIMATED, "instructions before a tool's result stand behind it")


def with_later_system(messages: Any, *, is_taken: bool) -> tuple[Any, list[Gap]]:
    """Returns the messages as a target takes them, and what that loses; the same ones where no turn is the system's.

    Coding agents put instructions behind the user's turn: a file that has changed, a tool that has come. They stay in their
    place, for their meaning depends on it, as words of the user; what stands between a call and its result follows the
    result. `is_taken`: the target takes instructions between the messages.
    """
    if type(messages) is not list or not any(type(one) is dict and one.get("role") == "system" for one in messages):
        return messages, []
    own: set[int] = set()
    add = list.append if is_taken else partial(_add_as_users, own=own)
    made: list[Any] = []
    waiting: list[Json] = []
    is_moved = is_calling = False
    for message in messages:
        role = object_of(message).get("role")
        if role == "system" and is_calling:
            waiting.append(message)
            continue
        is_calling = _calls(message)
        if role == "system":
            add(made, message)
        elif not is_taken and role == "user" and _ends_with_instructions(made):
            _append_to_last(made, _blocks_of(message), own)
        else:
            made.append(message)
            if waiting and role != "assistant":
                is_moved = True
                for one in waiting:
                    add(made, one)
                waiting = []
    for one in waiting:
        add(made, one)
    return made, [MOVED_GAP] if is_taken and is_moved else [] if is_taken else [SYSTEM_GAP]


def _calls(message: Any) -> bool:
    turn = object_of(message)
    blocks = objects(turn.get("content")) if turn.get("role") == "assistant" else ()
    return any(one.get("type") == "tool_use" for one in blocks)


def _ends_with_instructions(made: list[Any]) -> bool:
    """Returns whether the last turn is the user's and ends with instructions, so that what the user says next belongs to it."""
    content = object_of(made[-1]).get("content") if made else None
    last = content[-1] if isinstance(content, list) and content else None
    return type(last) is dict and text_of(last.get("text")).startswith(_INSTRUCTIONS)


def _append_to_last(made: list[Any], blocks: list[Any], own: set[int]) -> None:
    """Puts blocks behind those of the last turn; `own` are the turns that are copies, by identity: one is copied once."""
    if id(made[-1]) not in own:
        made[-1] = {**made[-1], "content": [*_blocks_of(made[-1])]}
        own.add(id(made[-1]))
    made[-1]["content"] += blocks


def _add_as_users(made: list[Any], message: Json, own: set[int]) -> None:
    """Puts instructions behind the user's words, or into a turn of the user's; what is no text stays as it is."""
    given = _blocks_of(message)
    texts = [block for block in given if type(block) is dict and type(block.get("text")) is str]
    blocks = [{**block, "text": f"{_INSTRUCTIONS}{block['text']}</system>"} for block in texts if block["text"]]
    if len(texts) < len(given):
        made.append(message)
    elif made and object_of(made[-1]).get("role") == "user":
        _append_to_last(made, blocks, own)
    elif blocks:
        made.append({"role": "user", "content": blocks})


def _blocks_of(message: Json) -> list[Any]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def without_system_turns(body: bytes) -> tuple[bytes, list[Gap]]:
    """Returns a request for a server that takes no instructions between the messages, and what that loses.

    Where there are none, the very bytes come back.
    """
    if (parsed := read_exactly(body)) is None:
        return body, []
    made, lost = with_later_system(parsed.get("messages"), is_taken=False)
    return (written({**parsed, "messages": made}, body), lost) if lost else (body, [])


# --- Turns ---


_INSTRUCTIONS: Final = "<system>"
_ERROR: Final = "Error: "
_BETWEEN_THOUGHTS: Final = "\n\n"


class Turns:
    """Puts the messages of one request together.

    Each result of a tool becomes a message of its own, in order and before the rest of its turn
    (braintrustdata/lingua#166); pictures in one follow in the user's message, because chat completions take them from users
    only (BerriAI/litellm#6953).
    """

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts
        self._parts = Parts(facts)
        self._made: list[Json] = []
        self._turn: _Turn | None = None
        """The model's turn that is being put together."""
        self._unanswered: dict[str, str] = {}
        """The calls whose results have to come next: their ids, and where they stand."""
        self._pictures: list[Json] = []
        """Pictures of tools' results, for which the target has no place there."""
        self._later: list[Json] = []
        """What the user says besides, which follows the results."""

    def take(self, message: Any, number: int) -> None:
        """Takes the next message. Raises InvalidRequest, naming the place, where it makes no sense."""
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            self._end_user()
            self._add_assistant_turn(message.get("content"), number)
        elif role == "user":
            self._end_turn()
            self._add_user_turn(message.get("content"), number)
        elif role == "system":
            place = f"messages[{number}]"
            self._end_turn()
            self._end_user()
            content = self._parts.content(message.get("content"), f"{place}.content")
            self._made.append({"role": "developer" if self._facts.takes_developer else "system", "content": content})
        else:
            place = f"messages[{number}].role"
            raise InvalidRequest(f"'{place}' must be user, assistant or system.", param=place)

    def all(self) -> list[Json]:
        """Returns the messages. Raises InvalidRequest where a call has no result."""
        self._end_turn()
        self._end_user()
        return self._made

    def _add_assistant_turn(self, content: Any, of_message: int) -> None:
        turn = self._turn = self._turn or _Turn()
        if not isinstance(content, list):
            turn.texts.append({"type": "text", "text": text_at(content, f"messages[{of_message}].content")})
            return
        for number, block in enumerate(content):
            if is_plain_text(block):
                turn.texts.append(block)
                continue
            where = f"messages[{of_message}].content[{number}]"
            kind = text_of(block.get("type")) if isinstance(block, dict) else ""
            if kind == "text":
                part = {"type": "text", "text": text_at(block.get("text"), f"{where}.text")}
                turn.texts.append(self._parts.marked(block, part))
            elif is_passed_over(block):
                continue
            elif kind in THOUGHTS:
                turn.think(block)
            elif kind == "tool_use":
                self._called(turn, block, where)
            else:
                raise InvalidRequest(f"'{where}' is no block that this model's provider takes.", param=where)

    def _called(self, turn: _Turn, block: Json, place: str) -> None:
        id, name = block.get("id"), block.get("name")
        if not isinstance(id, str) or not id or not isinstance(name, str) or not name:
            raise InvalidRequest(f"'{place}' needs an 'id' and a 'name'.", param=place)
        if not isinstance(block.get("input", {}), dict):
            raise InvalidRequest(f"'{place}.input' must be an object.", param=f"{place}.input")
        if id in self._unanswered:
            raise InvalidRequest(f"'{place}.id' is that of another call of the same turn.", param=f"{place}.id")
        self._unanswered[id] = place
        function = {
            "name": name_for(name, self._facts),
            "arguments": orjson.dumps(block.get("input") or {}, option=orjson.OPT_NON_STR_KEYS).decode(),
        }
        made: Json = {"id": id_for(id, self._facts), "type": "function", "function": function}
        if self._facts.takes("extra_content") and (extra := turn.extras.get(id)):
            made["extra_content"] = extra
        turn.calls.append(made)
        if self._facts.takes_details and block.get("cache_control"):
            turn.mark = block["cache_control"]

    def _add_user_turn(self, content: Any, of_message: int) -> None:
        rest: list[Any] = []
        if not isinstance(content, list):
            text = content if type(content) is str else text_at(content, f"messages[{of_message}].content")
            self._later.append({"role": "user", "content": text})
            return
        for number, block in enumerate(content):
            if is_plain_text(block):
                rest.append(block)
                continue
            where = f"messages[{of_message}].content[{number}]"
            if isinstance(block, dict) and block.get("type") == "tool_result":
                self._answered(block, where)
            else:
                rest += self._parts.of_block(block, where)
        if rest:
            is_text = len(rest) == 1 and is_plain_text(rest[0])
            self._later.append({"role": "user", "content": rest[0]["text"] if is_text else rest})

    def _answered(self, block: Json, place: str) -> None:
        id = block.get("tool_use_id")
        if not isinstance(id, str):
            where = f"{place}.tool_use_id"
            raise InvalidRequest(f"'{where}' must name the call that this is the result of.", param=where)
        if self._unanswered.pop(id, None) is None:
            message = f"'{place}' is the result of call '{id}', which is not among the unanswered calls of the turn before it."
            raise InvalidRequest(message, param=f"{place}.tool_use_id")
        sent = id_for(id, self._facts)
        content = block.get("content")
        if not isinstance(content, str) or "cache_control" in block:
            content = self._parts.of_result(block, f"{place}.content")
        if not isinstance(content, str) and not self._facts.takes_details:
            texts, shown = texts_of(content)
            content = self._parts.as_text(texts)
            if shown:
                self._pictures += [{"type": "text", "text": f"Of the result of {sent}:"}, *shown]
        made: Json = {"role": "tool", "tool_call_id": sent, "content": content}
        if self._facts.takes_details and block.get("cache_control"):
            made["cache_control"] = block["cache_control"]
        if block.get("is_error"):
            made = _failed(made) | ({"is_error": True} if self._facts.takes_details else {})
        self._made.append(made)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        made = None if turn is None else turn.made(self._facts)
        if made is not None:
            self._made.append(made)

    def _end_user(self) -> None:
        """Ends the user's turn. Raises InvalidRequest where a call has no result, for they are paired by place."""
        if self._turn is not None or not (self._later or self._unanswered or self._pictures):
            return
        for id, place in self._unanswered.items():
            raise InvalidRequest(f"No result of call '{id}' follows '{place}' before the next message.", param=place)
        pictures, self._pictures = self._pictures, []
        later, self._later = self._later, []
        if pictures and later:  # one message, for some models want their users and assistants to take turns
            content = later[0]["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            later[0] = {"role": "user", "content": [*pictures, *parts]}
        elif pictures:
            later = [{"role": "user", "content": pictures}]
        self._made += later


class _Turn:
    """A turn of the model's: thoughts, words and calls, which are one message."""

    def __init__(self) -> None:
        self.texts: list[Json] = []
        self.calls: list[Json] = []
        self.details: list[Json] = []
        self.thoughts: list[tuple[str, bool]] = []
        """The words of thoughts, and whether a provider vouches for them."""
        self.extras: dict[str, Json] = {}
        """What a provider adds to a call, by the call's id."""
        self.mark: Any = None

    def think(self, block: Json) -> None:
        held = held_by(signature_of(block))
        if held is not None and isinstance(held.get("call"), str):
            self.extras[held["call"]] = object_of(held.get("extra_content"))
            return
        place = len(self.details) + bool(self.texts) + len(self.calls)
        detail = detail_of_block(block, place)
        if detail is not None:
            self.details.append(detail)
        if text := text_of(block.get("thinking")):
            self.thoughts.append((text, detail is not None))

    def made(self, facts: ServerFacts) -> Json | None:
        """Returns the message; None: what it was cannot go back."""
        made: Json = {"role": "assistant", "content": self._content()}
        if self.calls:
            made["tool_calls"] = self.calls
        takes_details = facts.takes("reasoning_details")
        if takes_details and self.details:
            made["reasoning_details"] = self.details
        thoughts = [text for text, is_signed in self.thoughts if not (takes_details and is_signed)]
        if thoughts and facts.takes_reasoning:
            made["reasoning_content"] = _BETWEEN_THOUGHTS.join(thoughts)
        if self.mark:
            made["cache_control"] = self.mark
        if made["content"] is None and len(made) == 2:
            return None
        return made | {"content": ""} if made["content"] is None and not self.calls else made

    def _content(self) -> Any:
        if len(self.texts) == 1 and len(self.texts[0]) == 2:
            return self.texts[0]["text"] or (None if self.calls else "")
        if any(len(part) > 2 for part in self.texts):
            return self.texts
        return "".join(part["text"] for part in self.texts) or ("" if self.texts and not self.calls else None)


def _failed(made: Json) -> Json:
    """Returns a tool's result that says that the tool has failed; chat completions have no other way to say so."""
    content = made["content"]
    first = content[0].get("text") if isinstance(content, list) and content else content
    if isinstance(first, str) and first.lstrip().lower().startswith("error"):
        return made
    note = {"type": "text", "text": _ERROR}
    return made | {"content": [note, *content] if isinstance(content, list) else _ERROR + content}


# --- The request around them ---


BILLING: Final = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE | re.IGNORECASE)
"""The line by which Claude Code is billed; it is left out, because it changes with each request and would defeat every cache of
prefixes (1rgs/claude-code-proxy#99)."""
_BY_BUDGET: Final = ((2048, "low"), (10_000, "medium"), (16_384, "high"))
_TIERS: Final = {"auto": "auto", "standard_only": "default"}
_CHOICES: Final = {"any": "required", "auto": "auto", "none": "none"}
_SAME: Final = ("model", *SAMPLING)
_DOMAINS: Final = ("allowed_domains", "blocked_domains")
OF_SEARCH: Final = ("user_location", "max_uses")


def chat_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the chat completion. Raises InvalidRequest where the messages make no sense."""
    unsaid = unsampled(body, facts)
    made = {name: body[name] for name in _SAME if body.get(name) is not None and name not in unsaid}
    made["messages"] = _system(body.get("system"), facts) + _turns(body, facts)
    made |= _tools(body, facts)
    made[facts.bound_field] = bound(body, facts)
    if stops := stops_for(body.get("stop_sequences"), facts):
        made["stop"] = stops
    if (effort := effort_for(body, facts)) is not None:
        made["reasoning_effort"] = effort
    if (schema := requested_schema(body)) is not None:
        strict = is_strict(schema, facts)
        made["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": strict},
        }
    if user := text_of(object_of(body.get("metadata")).get("user_id")):
        if not facts.takes_details:  # behind another conversion, that one knows how long it may be
            user = shortened(user, facts.most_user_characters)
        made["safety_identifier" if facts.takes_developer and not facts.takes_details else "user"] = user
    tier = _TIERS.get(text_of(body.get("service_tier")))
    if tier and (facts.takes_developer or facts.takes_details):
        made["service_tier"] = tier
    if facts.takes_details and body.get("top_k") is not None:
        made["top_k"] = body["top_k"]
    if body.get("stream"):
        made |= {"stream": True, "stream_options": {"include_usage": True}}
    return made


def unsampled(body: Json, facts: ServerFacts) -> tuple[str, ...]:
    """Returns the options of sampling that the model does not take; behind another conversion, that one decides."""
    return () if facts.takes_details or is_sampled(effort_for(body, facts), facts) else SAMPLING


def bound(body: Json, facts: ServerFacts) -> int:
    """Returns the most tokens of the answer. Raises InvalidRequest where it is no number."""
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        raise InvalidRequest("The field 'max_tokens' must be a whole number of at least 1.", param="max_tokens")
    if facts.takes_details or facts.model.max_output is None:
        return most
    return min(most, facts.model.max_output)


def requested_effort(body: Json) -> str | None:
    """Returns how much the model is to think, in the words of chat completions; None: the request does not say."""
    thinking = object_of(body.get("thinking"))
    kind, effort = thinking.get("type"), object_of(body.get("output_config")).get("effort")
    if kind in ("disabled", "between_tools"):
        return "none"
    if isinstance(effort, str) and effort:
        return effort
    budget = thinking.get("budget_tokens")
    if kind != "enabled" or type(budget) is not int:
        return None
    return next((name for most, name in _BY_BUDGET if budget <= most), "xhigh")


def effort_for(body: Json, facts: ServerFacts) -> str | None:
    """Returns the effort for the target: the requested one, or the nearest that is no more."""
    effort = requested_effort(body)
    return effort if facts.takes_details else openai_gaps.effort_for(effort, facts.model)


def requested_schema(body: Json) -> Json | None:
    """Returns the JSON Schema of the answer; a beta had it at the top."""
    form = object_of(body.get("output_config")).get("format") or body.get("output_format")
    schema = object_of(form).get("schema")
    return schema if isinstance(schema, dict) else None


def is_strict(schema: Json, facts: ServerFacts) -> bool:
    """Returns whether the answer can be held to the schema: OpenAI takes no optional property then, others do."""
    return not facts.requires_all or not size_of(schema).optional


def holds_arguments(tool: Json, facts: ServerFacts) -> bool:
    """Returns whether the arguments of a tool that asks for it can be held to its schema."""
    return not tool.get("strict") or is_strict(object_of(tool.get("input_schema")), facts)


def _system(given: Any, facts: ServerFacts) -> list[Json]:
    """Returns the message with the instructions, without the line by which a client is billed; none where there are none.

    Raises InvalidRequest where they are no text.
    """
    if isinstance(given, str):
        given = [{"type": "text", "text": given}]
    if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
        raise InvalidRequest("The field 'system' must be a string or a list of text blocks.", param="system")
    parts, marked = [], Parts(facts).marked
    for number, block in enumerate(given or ()):
        text = text_at(block.get("text"), f"system[{number}].text")
        if "x-anthropic" in text.lower():
            text = BILLING.sub("", text)
        if text:
            parts.append(marked(block, {"type": "text", "text": text}))
    if not parts:
        return []
    content = parts[0]["text"] if len(parts) == 1 and len(parts[0]) == 2 else parts
    return [{"role": "developer" if facts.takes_developer else "system", "content": content}]


def _turns(body: Json, facts: ServerFacts) -> list[Json]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("The field 'messages' must be a list with at least one message.", param="messages")
    turns = Turns(facts)
    for number, message in enumerate(with_later_system(messages, is_taken=facts.takes_developer)[0]):
        turns.take(message, number)
    return turns.all()


def _tools(body: Json, facts: ServerFacts) -> Json:
    given = body.get("tools")
    if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
        raise InvalidRequest("The field 'tools' must be a list of objects.", param="tools")
    kept = [(number, tool) for number, tool in enumerate(given or ()) if facts.takes_details or not is_search(tool)]
    made: Json = {"tools": [_tool(tool, f"tools[{number}]", facts) for number, tool in kept]}
    if not made["tools"]:
        return {}
    choice = object_of(body.get("tool_choice"))
    kind = text_of(choice.get("type"))
    is_forced = kind in ("any", "tool") and (facts.takes_details or facts.model.forced_tools)
    if kind == "tool" and is_forced and demands_search(body):
        made["tool_choice"] = {"type": SEARCH}
    elif kind == "tool" and is_forced:
        made["tool_choice"] = {"type": "function", "function": {"name": name_for(choice.get("name"), facts)}}
    elif kind in _CHOICES or kind == "tool":
        made["tool_choice"] = _CHOICES[kind] if is_forced or kind in ("auto", "none") else "auto"
    if choice.get("disable_parallel_tool_use"):
        made["parallel_tool_calls"] = False
    return made


def demands_search(body: Json) -> bool:
    """Returns whether the model has to call Anthropic's own search."""
    choice, search = object_of(body.get("tool_choice")), search_in(body.get("tools"))
    if search is None or choice.get("type") not in ("any", "tool"):
        return False
    return is_search_alone(body.get("tools")) if choice["type"] == "any" else choice.get("name") == search.get("name")


def _search(tool: Json) -> Json:
    """Returns Anthropic's own search as Responses have it, with the options besides that these do not know."""
    filters = {name: tool[name] for name in _DOMAINS if tool.get(name)}
    return (
        {"type": SEARCH}
        | {name: tool[name] for name in OF_SEARCH if tool.get(name)}
        | ({"filters": filters} if filters else {})
    )


def _tool(tool: Json, place: str, facts: ServerFacts) -> Json:
    """Returns a tool of the caller's. Raises InvalidRequest where it is none of those."""
    kind = tool.get("type")
    if is_search(tool):
        return _search(tool)
    if kind not in (None, "custom"):
        raise InvalidRequest(f"'{place}' is of type '{kind}', which runs at Anthropic only.", param=place)
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{place}.name' must be a string.", param=f"{place}.name")
    named = {"name": name_for(name, facts)}
    kept = {"description": "description", "input_schema": "parameters", "strict": "strict"}
    named |= {other: tool[field] for field, other in kept.items() if tool.get(field) is not None}
    if not holds_arguments(tool, facts):
        named.pop("strict", None)
    made: Json = {"type": "function", "function": named}
    if facts.takes_details and tool.get("cache_control"):
        made["cache_control"] = tool["cache_control"]
    return made
