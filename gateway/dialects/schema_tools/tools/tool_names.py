"""Names of tools, of which each language allows others: one that a target would refuse goes out by another one, and comes back.

The other name is made from the first one alone, so that calls of former turns have it, too, and a provider's cache of prompts
finds the same beginning again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import Json, object_of, objects

_HASHED_BYTES: Final = 6
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
        hashed = blake2b(name.encode(errors="surrogatepass"), digest_size=_HASHED_BYTES).hexdigest()
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

    The request itself comes back where there is nothing to change. What makes no sense in it stays as it is.
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
    """Returns what is lost of the names of a chat completion's tools."""
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
        if isinstance(said := call.get(kind), dict) and said.get("name") in names:
            said["name"] = names[said["name"]]
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
    said = tool.get("function") or tool.get("custom") or tool.get("function_call")
    name = said.get("name") if type(said) is dict else tool.get("name")
    return name if type(name) is str and name else None


def _renamed(tool: Any, changed: Mapping[str, str]) -> Any:
    name = _name_of(tool) if isinstance(tool, dict) else None
    if name is None or name not in changed:
        return tool
    for kind in ("function", "custom"):
        if isinstance(said := tool.get(kind), dict):
            return {**tool, kind: {**said, "name": changed[name]}}
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
