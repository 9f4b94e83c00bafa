"""Tools and turns of a chat completion.

In this order: names of tools, the provider's own search, turns with calls and results in pairs, functions, ids and names
that two languages bound differently. All providers pair calls and results by place: the results follow their calls at once,
each call has one. Invariant: what cannot be paired is refused by its place and never repaired in silence
(openai/openai-agents-python#1797, RooCodeInc/Roo-Code#9700).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, cast

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit import mended_json
from gateway.core.types import Gap, How
from gateway.dialects.base import MOST_NAMED, Json, ServerFacts, object_of, objects, text_of

# --- Names of tools, of which each language allows others ---


_NAME_DIGEST_BYTES: Final = 6
_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]+")


class NameForm(NamedTuple):
    """Which names of tools a language allows."""

    allowed: re.Pattern[str]
    most: int
    """The characters of the longest."""

    def of(self, name: str) -> str:
        """Returns the name, if it is allowed; else one that is, with a hash of the first, always the same."""
        if self.allowed.fullmatch(name):
            return name
        plain = _ODD.sub("_", name)
        plain = plain if plain[:1].isalpha() else f"_{plain}"
        hashed = blake2b(name.encode(errors="surrogatepass"), digest_size=_NAME_DIGEST_BYTES).hexdigest()
        return f"{plain[: self.most - len(hashed) - 1]}_{hashed}"


OPENAIS: Final = NameForm(re.compile(r"[a-zA-Z0-9_-]{1,64}"), 64)
"""Source: OpenAI's reference, chat completions, `tools.function.name`."""
CONVERSES: Final = OPENAIS
"""Source: the service model of `bedrock-runtime`, ToolName."""
CLAUDES: Final = NameForm(re.compile(r"[a-zA-Z0-9_-]{1,128}"), 128)
"""Source: Anthropic's reference, Messages, `tools.name`."""
GEMINIS: Final = NameForm(re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"), 128)
"""Source: the Gemini API's reference, FunctionDeclaration."""
GAP: Final = Gap("tools.name", How.APPROXIMATED, "the target allows no such name: it has another one there")


def with_allowed_names(body: Json, form: NameForm) -> tuple[Json, Mapping[str, str]]:
    """Returns a chat completion whose tools have names of this form, and the names that were changed, by what they are now.

    A name that a target would refuse goes out by another one, and comes back. The other name is made from the first one
    alone, so that calls of former turns have it, too, and a provider's cache of prompts finds the same beginning again. The
    request itself comes back where there is nothing to change. What makes no sense in it stays as it is.
    """
    fullmatch = form.allowed.fullmatch
    changed = {name: form.of(name) for name in _names_in(body) if fullmatch(name) is None}
    if not changed:
        return body, {}
    made: Json = dict(body)
    for field in ("tools", "functions"):
        if isinstance(body.get(field), list):
            made[field] = [_renamed(one, changed) for one in body[field]]
    for field in ("tool_choice", "function_call"):
        if isinstance(choice := body.get(field), dict):
            made[field] = _renamed(choice, changed)
    allowed = object_of(object_of(body.get("tool_choice")).get("allowed_tools"))
    if isinstance(allowed.get("tools"), list):
        tools = [_renamed(one, changed) for one in allowed["tools"]]
        made["tool_choice"] = {**body["tool_choice"], "allowed_tools": {**allowed, "tools": tools}}
    if isinstance(body.get("messages"), list):
        made["messages"] = [_renamed_calls(one, changed) for one in body["messages"]]
    return made, {there: here for here, there in changed.items()}


def gaps_of_names(body: Json, form: NameForm) -> list[Gap]:
    fullmatch = form.allowed.fullmatch
    for tool in (*objects(body.get("tools")), *objects(body.get("functions"))):
        name = _name_of(tool)
        if name is not None and fullmatch(name) is None:
            return [GAP]
    return []


def with_own_names(answer: Json, names: Mapping[str, str]) -> Json:
    """Returns a whole chat completion whose calls have the caller's own `names` again."""
    if names:
        for choice in objects(answer.get("choices")):
            for call in objects(object_of(choice.get("message")).get("tool_calls")):
                with_own_name(call, names)
    return answer


def with_own_name(call: Json, names: Mapping[str, str]) -> Json:
    """Returns a call, or what begins one, under the caller's own name of its tool."""
    for kind in ("function", "custom"):
        if isinstance(named := call.get(kind), dict) and named.get("name") in names:
            named["name"] = names[named["name"]]
    return call


def _names_in(body: Json) -> dict[str, None]:
    """Returns the names of the tools that a request defines, or has called; not those that it only chooses from."""
    found: dict[str, None] = {}
    messages = body.get("messages")
    lists = [body.get("tools"), body.get("functions")]
    for message in messages if type(messages) is list else ():
        if type(message) is dict and "tool_calls" in message:
            lists.append(message["tool_calls"])
        elif type(message) is dict and "function_call" in message:
            lists.append([message])
    for several in lists:
        for one in several if type(several) is list else ():
            if type(one) is dict and (name := _name_of(one)) is not None:
                found[name] = None
    return found


def _name_of(tool: Json) -> str | None:
    """Returns the name of a tool, a choice or a call, in any of the forms that these have; None: it has none."""
    named = tool.get("function") or tool.get("custom") or tool.get("function_call")
    name = named.get("name") if type(named) is dict else tool.get("name")
    return name if type(name) is str and name else None


def _renamed(tool: Any, changed: Mapping[str, str]) -> Any:
    name = _name_of(tool) if isinstance(tool, dict) else None
    if name is None or name not in changed:
        return tool
    for kind in ("function", "custom"):
        if isinstance(named := tool.get(kind), dict):
            return {**tool, kind: {**named, "name": changed[name]}}
    return {**tool, "name": changed[name]}


def _renamed_calls(message: Any, changed: Mapping[str, str]) -> Any:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    made: Json = dict(message)
    if isinstance(message.get("tool_calls"), list):
        made["tool_calls"] = [_renamed(one, changed) for one in message["tool_calls"]]
    if isinstance(message.get("function_call"), dict):
        made["function_call"] = _renamed(message["function_call"], changed)
    return made


def is_call_forced(body: Json) -> bool:
    """Returns whether a chat completion demands a call of one of its functions, so that no form of its answer matters."""
    choice = body.get("tool_choice")
    if not any(tool.get("type", "function") == "function" for tool in objects(body.get("tools"))):
        return False
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return object_of(choice.get("allowed_tools")).get("mode") == "required"
    return choice == "required" or (isinstance(choice, dict) and choice.get("type", "function") == "function")


# --- The search of the web that a provider runs by itself ---


SEARCH: Final = "web_search"
"""Begins the types of the tool, in OpenAI's and Anthropic's language: `web_search_20250305`."""
ONLINE: Final = "external_web_access"
"""The option of whether a search fetches anything new, which it does by default."""
NO_SEARCH: Final = Gap("tools.web_search", How.DROPPED, "the target has no such search of its own")
LESS_SEARCH: Final = Gap("tools.web_search", How.APPROXIMATED, "the target's search has fewer options")


def is_search(tool: Json) -> bool:
    """Returns whether a tool, or the choice of one, is the provider's own search.

    Between two conversions a search is a tool as Responses have it. Who offers one does not demand it: where the target has
    none, the call goes without it. A choice that demands it is refused.
    """
    kind = tool.get("type")
    return type(kind) is str and kind.startswith(SEARCH)


def search_in(tools: object) -> Json | None:
    """Returns the search that is offered among tools; None: there is none."""
    return next((tool for tool in objects(tools) if is_search(tool)), None)


def is_search_alone(tools: object) -> bool:
    """Returns whether the tools are a search and nothing else, so that a choice that demands a tool demands it."""
    given = objects(tools)
    return bool(given) and all(map(is_search, given))


def searches_offline(search: Json) -> bool:
    """Returns whether nothing new may be fetched for a search, which other providers than OpenAI cannot be told."""
    return search.get(ONLINE) is False


def search_options(search: Json) -> Json:
    """Returns the options of a search that say something, those of domains (`filters`) among them."""
    given = {name: value for name, value in search.items() if name not in ("type", "filters")}
    return {name: value for name, value in (given | object_of(search.get("filters"))).items() if value}


# --- Turns, with calls and results in pairs ---


_ID_DIGEST_BYTES: Final = 12
_OF_OLD: Final = "call_of_message_"
"""Begins the id of a call in the old form, which has none: the number of its message makes it."""


class ToolCall(NamedTuple):
    """A call of a tool in a turn of the model."""

    id: str
    name: str
    input: Json
    given: Json
    """The call as the caller has it, for what a provider has added to it."""


class ToolResult(NamedTuple):
    """What a tool has answered."""

    id: str
    name: str
    """The name of the tool: some providers pair by it (braintrustdata/lingua#166)."""
    message: Json
    number: int
    """The number of its message."""

    @property
    def place(self) -> str:
        return f"messages[{self.number}]"


class Turn(NamedTuple):
    """One message, or a run of results."""

    role: str
    """`system`, `user`, `assistant` or `tool`; a developer is the system."""
    message: Json
    """Empty for a run of results."""
    number: int
    """The number of the message, or of the first one of the run."""
    calls: Sequence[ToolCall] = ()
    """The calls of an assistant; all of them are answered in the next turn."""
    results: Sequence[ToolResult] = ()
    """The results of tools, in their order."""

    @property
    def place(self) -> str:
        """How the caller finds the message."""
        return f"messages[{self.number}]"


_TURN: Final = cast("Callable[[tuple[Any, ...]], Turn]", partial(tuple.__new__, Turn))
_TOOL_CALL: Final = cast("Callable[[tuple[Any, ...]], ToolCall]", partial(tuple.__new__, ToolCall))
_TOOL_RESULT: Final = cast("Callable[[tuple[Any, ...]], ToolResult]", partial(tuple.__new__, ToolResult))
"""These make turns, calls and results in a third of the time: there are as many as messages."""


def turns(messages: Any) -> Iterator[Turn]:
    """Yields the turns of a conversation. Raises InvalidRequest, naming the message, where it makes no sense."""
    if not isinstance(messages, list):
        raise InvalidRequest("The field 'messages' must be a list.", param="messages")
    run: list[ToolResult] = []
    wanted: dict[str, str] = {}  # the names of the tools whose results have to come next, by the calls' ids
    calling = -1  # the last message with calls
    for number, message in enumerate(messages):
        if type(message) is not dict:
            place = f"messages[{number}]"
            raise InvalidRequest(f"'{place}' must be an object.", param=place)
        role = message.get("role")
        if role == "tool" or role == "function":
            old_id = f"{_OF_OLD}{calling}" if role == "function" and calling >= 0 else None
            id = message.get("tool_call_id") if role == "tool" else old_id
            run.append(_result(message, id, wanted, number))
            continue
        if wanted:
            _want_none(wanted, calling)
        if run:
            yield _TURN(("tool", {}, run[0].number, (), run))
            run = []
        if role == "user":
            yield _TURN((role, message, number, (), ()))
        elif role == "assistant":
            calls: Sequence[ToolCall] = ()
            if "tool_calls" in message or "function_call" in message:
                calls, calling = _calls(message, wanted, number), number
            yield _TURN((role, message, number, calls, ()))
        elif role == "system" or role == "developer":
            yield _TURN(("system", message, number, (), ()))
        else:
            problem = f"'messages[{number}].role' must be system, developer, user, assistant or tool."
            raise InvalidRequest(problem, param=f"messages[{number}].role")
    _want_none(wanted, calling)
    if run:
        yield _TURN(("tool", {}, run[0].number, (), run))


# --- Functions ---


FUNCTIONS_ALONE: Final = "the target has functions alone as tools"


def functions_in(body: Json, gaps: list[Gap]) -> list[Json]:
    """Returns the functions among the tools; others run at a provider that has them."""
    found = []
    for tool in objects(body.get("tools")):
        kind = text_of(tool.get("type", "function"))
        if kind == "function":
            found.append(tool)
        elif not is_search(tool):
            gaps.append(Gap(f"tools.{kind}"[:MOST_NAMED], How.REFUSED, FUNCTIONS_ALONE))
    return found + [{"type": "function", "function": one} for one in objects(body.get("functions"))]


def function_of(tool: Json) -> Json:
    return object_of(tool.get("function"))


def name_in(tool: Json) -> str | None:
    """Returns the name of a tool, or of a choice of one: some write it without the function around it."""
    name = function_of(tool).get("name", tool.get("name"))
    return name if isinstance(name, str) else None


def refuse_odd_tools(body: Json, names: list[Any]) -> None:
    """Raises InvalidRequest where the tools of a chat completion make no sense; `names` are those of its functions."""
    for field in ("tools", "functions"):
        given = body.get(field)
        if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
            raise InvalidRequest(f"The field '{field}' must be a list of objects.", param=field)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidRequest("Each of the 'tools' needs a 'function' with a 'name'.", param="tools")


def safe_id(id: str, allowed: re.Pattern[str]) -> str:
    """Returns a call's id, if the whole of it is `allowed`; else one that is, made from it and always the same.

    Ids come from any provider and go to any other: `functions.f:0`, or one of kilobytes.
    """
    if allowed.fullmatch(id):
        return id
    return f"call_{blake2b(id.encode(errors='surrogatepass'), digest_size=_ID_DIGEST_BYTES).hexdigest()}"


def _want_none(wanted: dict[str, str], calling: int) -> None:
    """Raises InvalidRequest where a call has no result."""
    for id in wanted:
        place = f"messages[{calling}]"
        raise InvalidRequest(f"No result of call '{id}' follows '{place}' before the next message.", param=place)


def _result(message: Json, id: Any, wanted: dict[str, str], number: int) -> ToolResult:
    name = wanted.pop(id, None) if type(id) is str else None
    if name is not None:
        return _TOOL_RESULT((id, name, message, number))
    place = f"messages[{number}]"
    problem = f"'{place}.tool_call_id' must name the call that this is the result of."
    if isinstance(id, str) and id:
        problem = (
            f"'{place}' is the result of call '{id}', which is not among the unanswered calls of the turn before it."
        )
    raise InvalidRequest(problem, param=f"{place}.tool_call_id")


def _calls(message: Json, wanted: dict[str, str], turn: int) -> list[ToolCall]:
    """Returns a turn's calls, and puts them to those that are `wanted`, of which there are none yet."""
    given = message.get("tool_calls")
    if given is not None and type(given) is not list:
        where = f"messages[{turn}].tool_calls"
        raise InvalidRequest(f"'{where}' must be a list of objects.", param=where)
    made = []
    if given:
        for number, call in enumerate(given):
            made.append(_call(call, turn, number))
    elif old := message.get("function_call"):
        made.append(_call({"id": f"{_OF_OLD}{turn}", "function": old}, turn, None))
    for call in made:
        wanted[call.id] = call.name
    if len(wanted) < len(made):
        where = f"messages[{turn}].tool_calls"
        raise InvalidRequest(f"'{where}' has two calls of one 'id'.", param=where)
    return made


def _call(call: Any, turn: int, number: int | None) -> ToolCall:
    """Returns one of a turn's calls; `number` is None for the old form."""
    function = call.get("function") if type(call) is dict else None
    if type(function) is dict:
        id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if type(id) is str and id and type(name) is str and name:
            given = _input(arguments)
            if type(given) is dict:
                return _TOOL_CALL((id, name, given, call))
            place = f"{_place_of_call(turn, number)}.function.arguments"
            raise InvalidRequest(f"'{place}' must be a JSON object.", param=place)
    place = _place_of_call(turn, number)
    raise InvalidRequest(f"'{place}' must be an object with an 'id' and a 'function' with a 'name'.", param=place)


def _place_of_call(turn: int, number: int | None) -> str:
    return f"messages[{turn}].{'function_call' if number is None else f'tool_calls[{number}]'}"


def _input(arguments: Any) -> Any:
    """Returns the arguments of a call, which have to be an object; none are an empty one."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return mended_json(arguments.encode(errors="replace")) if arguments.strip() else {}
    return {} if given is None else given  # models write `null` for a tool without parameters


# --- Ids and names that Messages and chat completions bound differently: there and back by computing anew ---


MOST_ID: Final = 40
"""The characters of a call's id that OpenAI takes."""
MOST_NAME: Final = 64
"""The characters of a function's name that OpenAI takes; Anthropic's tools may have twice as many."""
_HASHED: Final = 12
_WRAP: Final = "gw1-"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def shortened(text: str, most: int) -> str:
    """Returns the text, if it is short enough; else its beginning and a hash of the whole, always the same."""
    if len(text) <= most:
        return text
    hashed = blake2b(text.encode(errors="surrogatepass"), digest_size=_HASHED).hexdigest()
    return f"{text[: most - len(hashed) - 1]}_{hashed}"


def name_for(name: Any, facts: ServerFacts) -> str:
    """Returns a tool's name for the target; behind another conversion, that one bounds it."""
    return text_of(name) if facts.takes_details else shortened(text_of(name), MOST_NAME)


def names_back(request: Json) -> dict[str, str]:
    """Returns the caller's names of the tools that went out by a shorter one, by that."""
    names = [text_of(tool.get("name")) for tool in objects(request.get("tools"))]
    return {shortened(name, MOST_NAME): name for name in names if len(name) > MOST_NAME}


def id_for(id: str, facts: ServerFacts) -> str:
    """Returns the id of a call for the target: the target's own, where it was wrapped for the caller."""
    if id.startswith(_WRAP):
        try:
            id = urlsafe_b64decode(id[len(_WRAP) :] + "==").decode()
        except ValueError:  # not wrapped by us
            pass
        else:
            return id
    return id if facts.takes_details else shortened(id, MOST_ID)


def id_back(id: str) -> str:
    """Returns a call's id for the caller: Anthropic, whom it may ask next, knows letters, digits and two signs in ids only."""
    if _PLAIN.fullmatch(id) and not id.startswith(_WRAP):
        return id
    return _WRAP + urlsafe_b64encode(id.encode(errors="surrogatepass")).decode().rstrip("=")
