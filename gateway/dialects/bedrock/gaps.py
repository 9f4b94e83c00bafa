"""What of a chat completion Converse cannot say, field by field, with the reason."""

from __future__ import annotations

from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.anthropic import out_thoughts
from gateway.dialects.anthropic.out_request.tools import has_mark, is_blank, mark_of, picture_url
from gateway.dialects.anthropic.out_thoughts import Recalled, thought_blocks
from gateway.dialects.base import FieldGaps, Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.bedrock.request.options import DOCUMENTS, MORE, OWN, document_name
from gateway.dialects.memory import gaps_of_foreign
from gateway.dialects.schema_tools.media import URLS, file_of
from gateway.dialects.schema_tools.outline import gaps_of_chat, outline

_HINT: Final = "the target has no such option"

CHAT_ONLY: Final[FieldGaps] = {
    **{name: row for name, row in out_thoughts.CHAT_ONLY.items() if name != "metadata"},
    "cache_control": (How.DROPPED, "marks for the cache stand at parts, messages and tools", ()),
    "safety_identifier": (How.DROPPED, _HINT, ()),
    "user": (How.DROPPED, _HINT, ()),
}
"""Top-level fields of a chat completion: what becomes of each in a Converse request, and the values that mean nothing."""

_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "thinking", "metadata", "service_tier", *OWN, MORE,
    )
)  # fmt: skip
"""Fields that are said in Converse, or whose gaps depend on more than themselves."""
_NOTHING: Final[frozenset[str]] = frozenset()
_TEXT: Final = frozenset(("text",))
_ALONE: Final = "the model takes results of tools without all of this beside them: a word of its own parts them"
_BEHIND: Final = "what cannot stand in a tool's result follows behind it"
_NOT_ITS_OWN: Final = "thoughts go back to the model's maker that signed them, and to no other"
_WORDLESS: Final = "documents are not taken without words: the name of one stands beside them"
_FETCHED: Final = "the target takes pictures and documents themselves, and fetches none"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own."""
    return gaps_of_chat(body, _SETTLED, CHAT_ONLY)


def gaps_of_messages(body: Json, facts: ServerFacts, recalled: Recalled, *, keeps_thoughts: bool) -> list[Gap]:
    """Returns the gaps among a chat completion's messages; of those `recalled` the thoughts are remembered."""
    is_claude = facts.model.own_fields == "anthropic"
    looks, keeps = outline(body.get("messages")), keeps_thoughts or not is_claude
    common = out_thoughts.gaps_of_messages(body, facts, recalled.contents, keeps_thoughts=keeps, looks=looks)
    found = [gap for gap in common if gap.field != "messages.file"]  # other documents are taken here
    if is_claude:
        found += out_thoughts.gaps_of_recalled(recalled, keeps_thoughts=keeps_thoughts)
    else:
        found += gaps_of_foreign(body.get("messages"), facts.memory)
    caches, beside, later = facts.model.caches, facts.model.beside_results, facts.model.later_system
    lost = "tools" not in caches and any(map(_is_marked, objects(body.get("tools"))))
    has_results, seen = False, 0
    for number, message in looks.notable if "text" in beside else _all(body.get("messages")):
        role, content, where = message.get("role"), message.get("content"), "messages"
        has_results = _has_results(body["messages"], seen, number, later=later, before=has_results)
        seen = number + 1
        if role == "system" or role == "developer":
            where = "system" if looks.begins_at is None or number < looks.begins_at else ""
        kinds = _kinds_of(content, found)
        if where not in caches and (
            _is_marked(message) or (type(content) is list and any(map(_is_marked, objects(content))))
        ):
            lost = True
        if role == "user" and "document" in kinds and "text" not in kinds:
            found.append(Gap("messages.file", How.APPROXIMATED, _WORDLESS))
        if role == "tool" or role == "function":
            has_results = True
            kinds = _read_result(kinds, facts, found)
        elif role == "assistant":
            has_results = False
            if not is_claude and thought_blocks(message):
                found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
        elif not where and later:
            has_results = False
        if has_results and not kinds.issubset(beside):
            found.append(Gap("messages.tool", How.APPROXIMATED if facts.approximates else How.REFUSED, _ALONE))
    if lost:
        found.append(Gap("cache_control", How.DROPPED, "the target keeps nothing there for the model"))
    return found


def _all(messages: Any) -> list[tuple[int, Json]]:
    """Returns all messages with their numbers, for a model that does not take words beside results."""
    given = messages if isinstance(messages, list) else []
    return [(number, one) for number, one in enumerate(given) if isinstance(one, dict)]


def _has_results(messages: list[Any], start: int, end: int, *, later: bool, before: bool) -> bool:
    """Returns whether the turn before message `end` has results of tools; `before`: the one before message `start` has."""
    for message in reversed(messages[start:end]):
        role = object_of(message).get("role")
        if role in ("tool", "function"):
            return True
        if role == "assistant" or (later and role in ("system", "developer")):
            return False
    return before


def _is_marked(given: Json) -> bool:
    return has_mark(given) and mark_of(given) is not None


def _read_result(kinds: frozenset[str], facts: ServerFacts, found: list[Gap]) -> frozenset[str]:
    """Looks at what a tool has answered. Returns what of it has to stand behind the results."""
    if kinds is _TEXT:
        return _NOTHING
    moved = kinds.difference(_TEXT, facts.model.in_results)
    if moved:
        found.append(Gap("messages.content", How.APPROXIMATED, _BEHIND))
    if not kinds - moved:
        found.append(Gap("messages.content", How.APPROXIMATED, "a result without words is told to be none"))
    return moved


def _kinds_of(content: Any, found: list[Gap]) -> frozenset[str]:
    """Looks at what a message says. Returns the kinds of blocks that become of it."""
    if type(content) is str:
        return _NOTHING if is_blank(content) else _TEXT
    kinds = set()
    for part in objects(content):
        kind = part.get("type")
        if kind == "image_url":
            kinds.add("image")
            if (picture_url(part) or "")[:5].lower() != "data:":
                found.append(Gap("messages.image_url", How.REFUSED, _FETCHED))
        elif kind == "file":
            kinds.add("document")
            _read_file(object_of(part.get("file")), found)
        elif kind in ("text", "refusal") and not is_blank(text_of(part.get(kind))):
            kinds.add("text")
    return frozenset(kinds)


def _read_file(file: Json, found: list[Gap]) -> None:
    data, name = file.get("file_data"), file.get("filename")
    if not isinstance(data, str):
        return  # what there is instead is told of among what Claude takes, or makes no sense
    if data.startswith(URLS):
        found.append(Gap("messages.file", How.REFUSED, _FETCHED))
        return
    media = file_of(data[: data.find(",") + 1] if data[:5].lower() == "data:" else "", name)
    if media.type not in DOCUMENTS:
        found.append(Gap("messages.file", How.REFUSED, f"the target takes {', '.join(DOCUMENTS.values())}"))
    if isinstance(name, str) and name and document_name(name) != name.rpartition(".")[0]:
        found.append(Gap("messages.file.filename", How.APPROXIMATED, "names of documents have few characters there"))
