"""What an answer says, before any provider's form is put on it: a thought, a text, calls of tools.

It must not know a provider. Invariant: the blocks together hold no more tokens than the request allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.responses.writer import Draft, Writer, example_of

Ending = Literal["stop", "length", "tool_calls", "content_filter"]
_THOUGHT_TOKENS = 12


def is_mentioned(tool: str, text: str) -> bool:
    """Tells whether the text has the tool's name as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", text) is not None


@dataclass(frozen=True, slots=True)
class ToolWish:
    """The tools that may be called, by name with their schemas; `named` must be, `is_wanted`: one of them should be.

    A tool that the last message names is called in any case, and so are several of them, if `is_parallel`.
    """

    schemas: Mapping[str, object]
    named: str | None = None
    is_wanted: bool = False
    is_parallel: bool = True

    def calls(self, request: CheckedRequest, *, is_result: bool) -> list[str]:
        """Returns the names to call; with `is_result` the last message brings a tool's result, and asks for no more."""
        if self.named is not None:
            return [] if is_result else [self.named]
        mentioned = [name for name in self.schemas if is_mentioned(name, request.echo)]
        if not mentioned and self.is_wanted and not is_result:
            mentioned = list(self.schemas)[:1]
        return mentioned if self.is_parallel else mentioned[:1]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an answer in pieces of one token each; `name` is the tool's."""

    kind: Literal["thought", "text", "tool"]
    pieces: Sequence[str]
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Composed:
    """The blocks of an answer, in order, and why it ends."""

    blocks: tuple[Block, ...]
    ending: Ending

    @property
    def tokens(self) -> int:
        return sum(len(block.pieces) for block in self.blocks)

    @property
    def thought_tokens(self) -> int:
        return sum(len(block.pieces) for block in self.blocks if block.kind == "thought")


def compose(
    request: CheckedRequest,
    writer: Writer,
    *,
    tools: Mapping[str, object] | None = None,
    calls: Sequence[str] = (),
    is_thinking: bool = False,
    schema: Mapping[str, Any] | None = None,
    choice: int = 0,
) -> Composed:
    """Writes the blocks: a thought, then the calls, or else JSON that fits `schema`, or prose."""
    blocks: list[Block] = []
    left = request
    if is_thinking:
        thought = _within(["weighing", " the", " request:", *_words(request)][:_THOUGHT_TOKENS], request.max_tokens)
        blocks.append(Block("thought", thought))
        if request.max_tokens is not None:
            left = replace(request, max_tokens=request.max_tokens - len(thought))
    drafts = [(name, writer.call(left, name, (tools or {}).get(name))) for name in calls]
    if not drafts:
        drafts = [("", writer.json(left, example_of(schema)) if schema is not None else writer.prose(left, choice))]
    blocks += [Block("tool" if name else "text", draft.pieces, name) for name, draft in drafts if draft.pieces or name]
    return Composed(tuple(blocks), _ending(request, [draft for _, draft in drafts]))


def _ending(request: CheckedRequest, drafts: Sequence[Draft]) -> Ending:
    if request.is_filtered:
        return "content_filter"
    if any(draft.finish_reason == "length" for draft in drafts):
        return "length"
    return "tool_calls" if drafts[0].tool is not None else "stop"


def _words(request: CheckedRequest) -> list[str]:
    return [" " + word for word in request.echo[:120].split()]


def _within(pieces: list[str], cap: int | None) -> list[str]:
    return pieces if cap is None else pieces[:cap]
