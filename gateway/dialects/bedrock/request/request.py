"""A chat completion as a Converse request.

Order is kept: instructions are hoisted from the beginning only. All results of a turn are in one user message, and messages of
one speaker that follow each other are one, as Bedrock makes them. What may not stand beside results is parted from them by a
turn of the model, which no other way does: a user's messages are put together again there.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import json_object
from gateway.dialects.anthropic.out_request.tools import is_blank
from gateway.dialects.anthropic.out_thoughts import Recalled, thought_blocks
from gateway.dialects.base import Json, ServerFacts, objects, text_of
from gateway.dialects.bedrock.answer import redacted_content
from gateway.dialects.bedrock.request.options import Blocks, ConverseOptions, bound_points, with_points, words_beside
from gateway.dialects.memory import id_of_call
from gateway.dialects.schema_tools.tools import ToolResult, Turn, safe_id, turns

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
    for name in ("tools", "functions"):
        given = body.get(name)
        if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
            raise InvalidRequest(f"The field '{name}' must be a list of objects.", param=name)
    for tool in settled.fields.get("toolConfig", {}).get("tools", ()):
        if "toolSpec" in tool and not (isinstance(tool["toolSpec"]["name"], str) and tool["toolSpec"]["name"]):
            raise InvalidRequest("Each of the 'tools' needs a 'function' with a 'name'.", param="tools")
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

    def __init__(self, facts: ServerFacts, recalled: Recalled, *, keeps_thoughts: bool) -> None:
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
        """Returns whether anything is marked for the cache."""
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
