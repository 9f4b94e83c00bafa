"""A chat completion as a Messages request.

Order is kept: instructions are hoisted from the beginning only, because to move others changes what was said and what is
cached. All results of a turn are in one user message, before what the user says next: split ones teach the model not to
call in parallel (Zoo-Code-Org/Zoo-Code#1716).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.anthropic.out_request.options.options import ChatOptions
from gateway.dialects.anthropic.out_request.tools.blocks import (
    blocks_of,
    bound_marks,
    has_mark,
    is_blank,
    marked,
    most_marks,
    text_blocks,
)
from gateway.dialects.anthropic.out_thoughts.signed_turns import Recalled, with_marks
from gateway.dialects.anthropic.out_thoughts.thoughts import put_back, thought_blocks
from gateway.dialects.base.base import Json, ServerFacts, objects
from gateway.dialects.memory.remembered import id_of_call
from gateway.dialects.schema_tools.tools.tools import ToolResult, Turn, safe_id, turns

IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The ids of calls that the target takes; others are refused (400 `tool_use.id: String should match pattern`)."""
_MORE: Final = frozenset(
    (
        "tool_calls", "function_call", "reasoning_details", "thinking_blocks", "cache_control", "prompt_cache_breakpoint",
    )
)  # fmt: skip
_PLAIN: Final = 2
"""A message with role and content has so many fields."""
"""Fields of a message that make blocks of it, or go with one: without them a string stays one."""


def messages_body(body: Json, facts: ServerFacts, settled: ChatOptions) -> Json:
    """Returns the Messages request, which takes its `settled` options over.

    Raises InvalidRequest, naming the place, where it makes no sense.
    """
    for name in ("tools", "functions"):
        given = body.get(name)
        if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
            raise InvalidRequest(f"The field '{name}' must be a list of objects.", param=name)
    for tool in settled.fields.get("tools", ()):
        if not isinstance(tool["name"], str) or not tool["name"]:
            raise InvalidRequest("Each of the 'tools' needs a 'function' with a 'name'.", param="tools")
    said = _Conversation(facts, settled.recalled, keeps_thoughts=settled.keeps_thoughts)
    for turn in turns(body.get("messages")):
        said.take(turn)
    made = settled.fields
    system, messages = said.all()
    if settled.instruction is not None:
        system.append({"type": "text", "text": settled.instruction})
    if system:
        made["system"] = system
    made["messages"] = messages
    if said.has_marks or any("cache_control" in tool for tool in made.get("tools", ())):
        inner = [block for one in messages if isinstance(one["content"], list) for block in one["content"]]
        bound_marks([*made.get("tools", ()), *system, *_with_parts(inner)], most_marks(body))
    return made


def _with_parts(blocks: list[Json]) -> Iterator[Json]:
    """Yields blocks, each behind those that a tool's result has in it."""
    for block in blocks:
        if block["type"] == "tool_result" and isinstance(block.get("content"), list):
            yield from block["content"]
        yield block


class _Conversation:
    """Puts turns together to messages."""

    def __init__(self, facts: ServerFacts, recalled: Recalled, *, keeps_thoughts: bool) -> None:
        self._facts = facts
        self._recalled = recalled.contents
        self._keeps_thoughts = keeps_thoughts
        self._system: list[Json] = []
        self._made: list[Json] = []
        self._results: list[Json] | None = None
        """The content of the message with results, which what the user says next belongs to."""
        self.has_marks = False

    def all(self) -> tuple[list[Json], list[Json]]:
        """Returns the instructions and the messages, of which there has to be one."""
        if self._made or not self._system:
            return self._system, self._made
        return [], [{"role": "user", "content": self._system}]

    def take(self, turn: Turn) -> None:
        role, message, _, _, results = turn
        if role == "tool":
            self._results = [self._result(one) for one in results]
            self._made.append({"role": "user", "content": self._results})
            return
        content = message.get("content")
        is_plain = type(content) is str and (len(message) == _PLAIN or _MORE.isdisjoint(message))
        if is_plain and role != "system" and not message.get("refusal"):
            if not content or content.isspace():
                return
            if role == "user" and self._results is not None:
                self._results.append({"type": "text", "text": content})
            else:
                self._results = None
                self._made.append({"role": role, "content": content})
        elif role == "assistant":
            self._answer(turn)
        elif role == "user":
            self._say(self._blocks(turn))
        elif not self._made:
            self._system += self._blocks(turn, takes_media=False)
        elif self._facts.model.later_system:
            if blocks := self._blocks(turn, takes_media=False):
                self._append("system", blocks)
        elif blocks := self._blocks(turn, takes_media=False):
            told = "\n".join(block["text"] for block in blocks)
            self._say([{**blocks[-1], "text": f"<system>{told}</system>"}])

    def _say(self, blocks: list[Json]) -> None:
        """Appends what a user says; the results of tools stand before it, in one message."""
        if self._results is not None:
            self._results += blocks
        elif blocks:
            self._append("user", blocks)

    def _append(self, role: str, blocks: list[Json]) -> None:
        self._results = None
        self._made.append({"role": role, "content": blocks})

    def _blocks(self, turn: Turn, *, takes_media: bool = True) -> list[Json]:
        content = turn.message.get("content")
        blocks = blocks_of(content, turn.place) if takes_media else text_blocks(content, turn.place)
        self._mark(blocks, turn.message)
        return blocks

    def _mark(self, blocks: list[Json], message: Json) -> None:
        """Marks the last block as the message is, and takes note of marks on others."""
        if blocks and has_mark(message):
            marked(blocks[-1], message)
        self.has_marks = self.has_marks or any("cache_control" in block for block in blocks)

    def _answer(self, turn: Turn) -> None:
        message = turn.message
        content: Any = message.get("content")
        blocks = [] if content is None else text_blocks(content, turn.place)
        if refusal := message.get("refusal"):
            blocks += text_blocks(refusal, f"{turn.place}.refusal")
        for call in turn.calls:
            block = {
                "type": "tool_use",
                "id": safe_id(id_of_call(call.id), IDS),
                "name": call.name,
                "input": call.input,
            }
            blocks.append(block)
            if has_mark(call.given):
                self._mark([block], call.given)
        if type(content) is list or has_mark(message):
            self._mark(blocks, message)
        if self._keeps_thoughts:
            if (content := self._recalled.get(turn.number)) is not None:
                blocks = with_marks(content, blocks)
            elif thoughts := thought_blocks(message):
                put_back(blocks, thoughts)
        if blocks:
            self._append("assistant", blocks)

    def _result(self, result: ToolResult) -> Json:
        message = result.message
        block: Json = {"type": "tool_result", "tool_use_id": safe_id(id_of_call(result.id), IDS)}
        content: Any = message.get("content")
        if type(content) is str:
            if not is_blank(content):
                block["content"] = content
        elif content := blocks_of(content, result.place):
            block["content"] = content
            self._mark(content, {})
        if message.get("is_error") is True:
            block["is_error"] = True
        if has_mark(message):
            self._mark([block], message)
        return block
