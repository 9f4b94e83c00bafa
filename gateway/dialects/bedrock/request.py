"""Callers of chat completions at models of Bedrock's, by Converse: the request, and what of a call Converse cannot say.

Order is kept: instructions are hoisted from the beginning only. All results of a turn are in one user message, and messages of
one speaker that follow each other are one, as Bedrock makes them. What may not stand beside results is parted from them by a
turn of the model, which no other way does: a user's messages are put together again there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.openai.sse import json_object
from gateway.core.types import Gap, How
from gateway.dialects.anthropic import out_parts
from gateway.dialects.anthropic.out_parts import has_mark, mark_of, picture_url
from gateway.dialects.anthropic.out_thoughts import RememberedTurns, thought_blocks
from gateway.dialects.base import (
    ConvertedRequest,
    FieldGaps,
    Json,
    Reader,
    ServerFacts,
    is_blank,
    object_of,
    objects,
    once,
    text_of,
)
from gateway.dialects.bedrock.answer import ConverseAsChat, chat_of_converse, redacted_content
from gateway.dialects.bedrock.options import (
    DOCUMENTS,
    MORE,
    OWN,
    Blocks,
    ConverseOptions,
    bound_points,
    document_name,
    takes_thoughts_back,
    with_points,
    words_beside,
)
from gateway.dialects.memory import gaps_of_foreign, id_of_call
from gateway.dialects.schema_tools.chat_parts import NO_OPTION, URLS, file_of, gaps_of_chat, outline
from gateway.dialects.schema_tools.tools import (
    CONVERSES,
    ToolResult,
    Turn,
    gaps_of_names,
    refuse_odd_tools,
    safe_id,
    turns,
    with_allowed_names,
    with_own_names,
)

IDS: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
"""The ids of calls that the target takes."""
NO_OUTPUT: Final = "(no output)"
"""What a tool has answered that has answered nothing: a blank text is refused."""
_MORE: Final = frozenset(
    (
        "tool_calls", "function_call", "reasoning_details", "thinking_blocks", "refusal", "cache_control",
        "prompt_cache_breakpoint",
    )
)  # fmt: skip
"""Fields of a message that make blocks of it, or go with one."""
FILLER: Final = "Understood."
"""What the model is made to say between results and what may not stand beside them."""


def converse_body(body: Json, facts: ServerFacts, settled: ConverseOptions) -> Json:
    """Returns the Converse request, which takes its `settled` options over.

    Raises InvalidRequest, naming the place, where it makes no sense.
    """
    declared = settled.fields.get("toolConfig", {}).get("tools", ())
    refuse_odd_tools(body, [tool["toolSpec"]["name"] for tool in declared if "toolSpec" in tool])
    conversation = _ConverseTurns(facts, settled.recalled, keeps_thoughts=settled.keeps_thoughts)
    for turn in turns(body.get("messages")):
        conversation.take(turn)
    system, messages = conversation.all()
    if settled.instruction is not None:
        system.append({"text": settled.instruction})
    made = settled.fields
    if system:
        made["system"] = system
    made["messages"] = messages
    if conversation.has_points or "tools" in facts.model.caches:
        tools = made["toolConfig"]["tools"] if "toolConfig" in made else []
        bound_points([tools, system, *(message["content"] for message in messages)])
    return made


class _ConverseTurns:
    """Puts turns together to messages."""

    def __init__(self, facts: ServerFacts, recalled: RememberedTurns, *, keeps_thoughts: bool) -> None:
        self._model = facts.model
        self._recalled = recalled.contents
        self._keeps_thoughts = keeps_thoughts
        self._caches = "messages" in facts.model.caches
        self._blocks = Blocks()
        self._system: list[Json] = []
        self._made: list[Json] = []
        self._has_results = False
        """The last message has results of tools in it."""

    def all(self) -> tuple[list[Json], list[Json]]:
        """Returns the instructions and the messages, of which there has to be one."""
        if self._made or not self._system:
            return self._system, self._made
        return [], [{"role": "user", "content": self._system}]

    @property
    def has_points(self) -> bool:
        return self._blocks.has_points

    def take(self, turn: Turn) -> None:
        role, message = turn.role, turn.message
        if role == "tool":
            self._take_results(turn)
        elif role != "system" and type(content := message.get("content")) is str and _MORE.isdisjoint(message):
            if content and not content.isspace():
                if role == "user":
                    self._append_turn([{"text": content}])
                else:
                    self._append(role, [{"text": content}])
        elif role == "assistant":
            self._append("assistant", self._answer(turn))
        elif role == "user":
            self._append_turn(self._content(turn, takes_points=self._caches))
        elif not self._made:
            content = message.get("content")
            takes_points = "system" in self._model.caches
            blocks = self._blocks.of(content, turn.place, takes_media=False, takes_points=takes_points)
            self._system += self._marked(blocks, message, takes_points=takes_points)
        elif blocks := self._content(turn, takes_points=False):
            if self._model.later_system:
                self._append("system", blocks)
            else:
                instruction = "\n".join(block["text"] for block in blocks)
                self._append_turn([{"text": f"<system>{instruction}</system>"}])

    def _append_turn(self, blocks: list[Json]) -> None:
        """Appends what a user says: to the results of tools, or behind a word of the model's."""
        if (text := words_beside(blocks)) is not None:
            blocks = [*blocks, text]
        if self._has_results and not all(
            kind in self._model.beside_results or kind == "cachePoint" for block in blocks for kind in block
        ):
            self._append("assistant", [{"text": FILLER}])
        self._append("user", blocks)

    def _append(self, role: str, blocks: list[Json]) -> None:
        if not blocks:
            return
        if self._made and self._made[-1]["role"] == role:
            self._made[-1]["content"] += blocks
        else:
            self._has_results = False
            self._made.append({"role": role, "content": blocks})

    def _content(self, turn: Turn, *, takes_points: bool) -> list[Json]:
        message = turn.message
        takes_media = turn.role == "user"
        content = message.get("content")
        blocks = self._blocks.of(content, turn.place, takes_media=takes_media, takes_points=takes_points)
        return self._marked(blocks, message, takes_points=takes_points)

    def _answer(self, turn: Turn) -> list[Json]:
        message = turn.message
        blocks = self._blocks.of(message.get("content"), turn.place, takes_media=False, takes_points=self._caches)
        if refusal := message.get("refusal"):
            where = f"{turn.place}.refusal"
            blocks += self._blocks.of(refusal, where, takes_media=False, takes_points=False)
        for call in turn.calls:
            inner = {"toolUseId": safe_id(id_of_call(call.id), IDS), "name": call.name, "input": call.input}
            blocks.append({"toolUse": inner})
            if self._caches:
                blocks += self._blocks.point(call.given)
        blocks = self._marked(blocks, message, takes_points=self._caches)
        if self._keeps_thoughts:
            if (content := self._recalled.get(turn.number)) is not None:
                return with_points(content, blocks)
            _put_back(blocks, thought_blocks(message))
        return blocks

    def _marked(self, blocks: list[Json], message: Json, *, takes_points: bool) -> list[Json]:
        """Returns the blocks with a point behind them, if their message is marked."""
        if takes_points and blocks and "cachePoint" not in blocks[-1]:
            blocks += self._blocks.point(message)
        return blocks

    def _take_results(self, turn: Turn) -> None:
        made: list[Json] = []
        behind: list[Json] = []
        for result in turn.results:
            made.append({"toolResult": self._result(result, behind)})
            if self._caches:
                marked = (result.message, *objects(result.message.get("content")))
                made += [point for one in marked for point in self._blocks.point(one)][:1]
        self._append("user", made)
        self._has_results = True
        if behind:
            self._append_turn(behind)

    def _result(self, result: ToolResult, behind: list[Json]) -> Json:
        """Returns a result; what cannot stand in it comes `behind` all results."""
        content: Any = result.message.get("content")
        kept: list[Json] = []
        if type(content) is str:
            if not is_blank(content):
                kept.append({"text": content})
        else:
            for block in self._blocks.of(content, result.place, takes_media=True, takes_points=False):
                is_kept = "text" in block or any(kind in self._model.in_results for kind in block)
                (kept if is_kept else behind).append(block)
        kept = kept or [{"text": NO_OUTPUT}]
        if self._model.json_results:
            kept = [_as_json(block["text"]) if "text" in block else block for block in kept]
        made: Json = {"toolUseId": safe_id(id_of_call(result.id), IDS), "content": kept}
        return made | ({"status": "error"} if result.message.get("is_error") is True else {})


def _put_back(blocks: list[Json], thoughts: list[tuple[int | None, Json]]) -> None:
    """Puts thoughts to their places among a message's other blocks, as Messages want it; points for the cache are no blocks."""
    last = max(0, sum("cachePoint" not in block for block in blocks) - 1)
    for number, (place, thought) in enumerate(thoughts):
        wanted = number if place is None else max(0, min(place, last + number))
        places = [at for at, block in enumerate(blocks) if "cachePoint" not in block]
        blocks.insert(places[wanted] if wanted < len(places) else len(blocks), _reasoning(thought))


def _reasoning(thought: Json) -> Json:
    if "data" in thought:
        return {"reasoningContent": {"redactedContent": redacted_content(text_of(thought["data"]))}}
    reasoning = {"text": thought["thinking"], "signature": thought["signature"]}
    return {"reasoningContent": {"reasoningText": reasoning}}


def _as_json(text: str) -> Json:
    parsed = json_object(text.encode(errors="replace")) if text.lstrip().startswith("{") else None
    return {"json": {"output": text} if parsed is None else parsed}


# --- What of a chat completion Converse cannot say, field by field, with the reason ---


CHAT_ONLY: Final[FieldGaps] = {
    **{name: row for name, row in out_parts.CHAT_ONLY.items() if name != "metadata"},
    "cache_control": (How.DROPPED, "marks for the cache stand at parts, messages and tools", ()),
    "safety_identifier": (How.DROPPED, NO_OPTION, ()),
    "user": (How.DROPPED, NO_OPTION, ()),
}
"""Top-level fields of a chat completion: what becomes of each in a Converse request, and the values that mean nothing."""

_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "thinking", "metadata", "service_tier", *OWN, MORE,
    )
)  # fmt: skip
"""Fields that Converse has, too, or whose gaps depend on more than themselves."""
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


def gaps_of_messages(body: Json, facts: ServerFacts, recalled: RememberedTurns, *, keeps_thoughts: bool) -> list[Gap]:
    """Returns the gaps among a chat completion's messages; of those `recalled` the thoughts are remembered."""
    is_claude = facts.model.own_fields == "anthropic"
    looks, keeps = outline(body.get("messages")), keeps_thoughts or not is_claude
    common = out_parts.gaps_of_messages(body, facts, recalled.contents, keeps_thoughts=keeps, looks=looks)
    found = [gap for gap in common if gap.field != "messages.file"]  # other documents are taken here
    if is_claude:
        found += out_parts.gaps_of_recalled(recalled, keeps_thoughts=keeps_thoughts)
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
    """Looks at the parts of a message. Returns the kinds of blocks that become of it."""
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
        return  # what there is instead has a gap in `out_parts`, or makes no sense
    if data.startswith(URLS):
        found.append(Gap("messages.file", How.REFUSED, _FETCHED))
        return
    media = file_of(data[: data.find(",") + 1] if data[:5].lower() == "data:" else "", name)
    if media.type not in DOCUMENTS:
        found.append(Gap("messages.file", How.REFUSED, f"the target takes {', '.join(DOCUMENTS.values())}"))
    if isinstance(name, str) and name and document_name(name) != name.rpartition(".")[0]:
        found.append(Gap("messages.file.filename", How.APPROXIMATED, "names of documents have few characters there"))


class ChatOverConverse:
    """Serves a caller of chat completions by Converse; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps(body, facts, ConverseOptions(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        named, names = with_allowed_names(body, CONVERSES)
        settled = ConverseOptions(named, facts)
        lost = _gaps(body, facts, settled)
        memory = facts.memory if takes_thoughts_back(facts) else None
        made = converse_body(named, facts, settled)
        return ConvertedRequest(made, body, new_id(), now, memory=memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return with_own_names(chat_of_converse(sent, body), sent.names)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ConverseAsChat(sent)


def _gaps(body: Json, facts: ServerFacts, settled: ConverseOptions) -> Sequence[Gap]:
    found = settled.gaps + gaps_at_top(body) + gaps_of_names(body, CONVERSES)
    return once(found + gaps_of_messages(body, facts, settled.recalled, keeps_thoughts=settled.keeps_thoughts))
