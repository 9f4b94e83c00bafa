"""A chat completion as a Messages request: its options first, then the request around its turns.

What a model takes follows from its facts and from nothing else. Each option is settled once, with what is lost of it, so
that the request and the report of its gaps cannot differ. No option raises: a value without sense goes on, and is refused
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.anthropic.out_parts import (
    blocks_of,
    bound_marks,
    has_mark,
    is_filtered,
    marked,
    most_marks,
    text_blocks,
    tools_and_choice,
)
from gateway.dialects.anthropic.out_thoughts import (
    NOTHING,
    RememberedTurns,
    has_foreign,
    lacks_thoughts,
    put_back,
    recalled,
    thought_blocks,
    with_marks,
)
from gateway.dialects.base import Json, ModelFacts, ServerFacts, is_blank, object_of, objects, text_of
from gateway.dialects.memory import id_of_call
from gateway.dialects.schema_tools.chat_parts import EFFORTS, nearest_effort, without_blank_stops
from gateway.dialects.schema_tools.schema import requested_form
from gateway.dialects.schema_tools.tools import (
    ToolResult,
    Turn,
    is_call_forced,
    refuse_odd_tools,
    safe_id,
    shortened,
    turns,
)

# --- The options ---


UNKNOWN_OUTPUT: Final = 8192
"""The most tokens of an answer that are asked for where neither the caller nor the model's facts say it."""
BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""The tokens for thinking by effort, for models whose thinking is bounded by a number."""
_LEAST_TOP_P: Final = 0.95
"""A model that thinks takes no lower `top_p`."""
_MOST_USER: Final = 256
"""The characters of a `metadata.user_id` (Anthropic's reference, Messages)."""
_TIERS: Final = {"auto": "auto", "default": "standard_only"}


class ChatOptions:
    """All fields of a request but its messages, and what was lost in them."""

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self.fields: Json = {"model": body.get("model"), "max_tokens": _most_tokens(body, facts.model)}
        self.gaps: list[Gap] = []
        self.instruction: str | None = None
        """What has to stand at the end of the instructions."""
        self._body, self._facts, self._model = body, facts, facts.model
        self.recalled = recalled(body, facts)
        """What is remembered of turns that came back without their thoughts."""
        self._think()
        self._sample()
        self._form()
        thinks_by_budget = object_of(self.fields.get("thinking")).get("type") == "enabled"
        tools, gaps = tools_and_choice(body, facts, thinks_by_budget=thinks_by_budget)
        self.fields |= tools
        self.gaps += gaps
        self._address()

    @property
    def keeps_thoughts(self) -> bool:
        """Returns whether thoughts of former turns can go back: some models bind them to all that stood before them."""
        if not self._model.binds_thinking:
            return True
        if self.instruction is not None or is_filtered(self._body) or self.recalled.has_foreign:
            return False
        return not any(has_foreign(message) for message in objects(self._body.get("messages")))

    def _think(self) -> None:
        effort, model = self._body.get("reasoning_effort"), self._model
        own = self._body.get("thinking")
        if isinstance(own, dict) and own.get("type") == "enabled" and self._lacks_thoughts("thinking"):
            own = None
        if isinstance(own, dict):
            self.fields["thinking"] = own
            if own.get("type") == "disabled":
                self.recalled = NOTHING
            if effort is None:
                return
            if effort in model.efforts and own.get("type") != "disabled":
                self._effort(effort)
            else:
                self._lose("reasoning_effort", How.DROPPED, "the request says by itself how the model is to think")
        elif effort is None:
            return
        elif effort == "none":
            self._think_nothing()
        elif effort not in EFFORTS:
            self._lose("reasoning_effort", How.DROPPED, "there is no such effort")
        elif model.thinking == "none":
            self._lose("reasoning_effort", How.DROPPED, "the model does not think")
        elif model.thinking == "budget":
            self._think_by_budget(effort)
        else:
            self.fields["thinking"] = {"type": "adaptive"}
            if model.efforts:
                self._effort(nearest_effort(effort, model.efforts))
            if effort not in model.efforts:
                self._lose("reasoning_effort", How.APPROXIMATED, "the model has other efforts")

    def _think_nothing(self) -> None:
        if self._model.thinking == "none":
            return
        if self._model.thinking_off == "never":
            if self._model.efforts:
                self._effort(self._model.efforts[0])
            self._lose("reasoning_effort", How.APPROXIMATED, "the model always thinks: it thinks the least that it can")
            return
        self.fields["thinking"] = {"type": self._model.thinking_off}
        self.recalled = NOTHING if self._model.thinking_off == "disabled" else self.recalled
        if self._model.thinking_off != "disabled":
            self._lose("reasoning_effort", How.APPROXIMATED, "the model still thinks between calls of tools")

    def _lacks_thoughts(self, name: str) -> bool:
        """Returns whether the model cannot think by a budget now, as the field of this name asks it to."""
        found = lacks_thoughts(self._body.get("messages"), self.recalled.contents)
        if found:
            why = "the model does not go on thinking where its thoughts before the calls did not come back"
            self._lose(name, How.DROPPED, why)
        return found

    def _think_by_budget(self, effort: str) -> None:
        if self._lacks_thoughts("reasoning_effort"):
            return
        budget, most = BUDGETS[effort], self.fields["max_tokens"]
        if type(most) is int and most <= budget:
            raised = min(most + budget, self._model.max_output or most + budget)
            if raised <= budget:
                self._lose("reasoning_effort", How.DROPPED, "the model's answers are too short for so much thinking")
                return
            self.fields["max_tokens"] = raised
            if (name := _name_of_bound(self._body)) is not None:
                self._lose(name, How.APPROXIMATED, "there is room for the thinking besides")
        self.fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
        self._lose("reasoning_effort", How.APPROXIMATED, "it becomes a number of tokens for thinking")

    def _effort(self, effort: str) -> None:
        self.fields.setdefault("output_config", {})["effort"] = effort

    def _sample(self) -> None:
        temperature, top_p, top_k = (self._body.get(name) for name in ("temperature", "top_p", "top_k"))
        how = text_of(object_of(self.fields.get("thinking")).get("type"))
        thinks = how in ("enabled", "adaptive") or (self._model.thinks_unasked and how != "disabled")
        if temperature == 1 and not isinstance(temperature, bool):  # which is what holds without it
            temperature = None
        if top_p == 1 and not isinstance(top_p, bool):
            top_p = None
        why = "the model is not told how to sample" if not self._model.sampling else "not while the model thinks"
        if temperature is not None:
            if thinks or not self._model.sampling:
                self._lose("temperature", How.DROPPED, why)
            elif isinstance(temperature, int | float) and temperature > 1:
                self.fields["temperature"] = 1.0
                self._lose("temperature", How.APPROXIMATED, "the highest temperature is 1")
            else:
                self.fields["temperature"] = temperature
        if top_p is not None:
            is_kept = not thinks or (isinstance(top_p, int | float) and top_p >= _LEAST_TOP_P)
            if not self._model.sampling or not is_kept:
                self._lose("top_p", How.DROPPED, why)
            elif "temperature" in self.fields:
                self._lose("top_p", How.DROPPED, "the model takes one of temperature and top_p")
            else:
                self.fields["top_p"] = top_p
        if top_k is not None:
            if thinks or not self._model.sampling:
                self._lose("top_k", How.DROPPED, why)
            else:
                self.fields["top_k"] = top_k

    def _form(self) -> None:
        wanted, is_forced = self._body.get("response_format"), is_call_forced(self._body)
        form = requested_form(wanted, self._facts, has_description=False, is_call_forced=is_forced)
        self.instruction = form.instruction
        self.gaps += form.gaps
        if form.schema is not None:
            self.fields.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": form.schema}

    def _address(self) -> None:
        """Settles who calls, where the answer is to end, and how the call is served."""
        body = self._body
        stop = body.get("stop")
        if stop:
            given, kept = without_blank_stops(stop)
            if kept != given:
                self._lose("stop", How.DROPPED, "the target does not stop at white space")
            if kept:
                self.fields["stop_sequences"] = kept
        user, former = body.get("safety_identifier"), body.get("user")
        if user is not None and former is not None and user != former:
            self._lose("user", How.DROPPED, "the target is told one identifier")
        if (named := former if user is None else user) is not None:
            named = shortened(named, _MOST_USER) if isinstance(named, str) else named
            self.fields["metadata"] = {"user_id": named}
        if (tier := body.get("service_tier")) is not None:
            if (known := _TIERS.get(text_of(tier))) is not None:
                self.fields["service_tier"] = known
            else:
                self._lose("service_tier", How.DROPPED, "the target has no such tier")
        if isinstance(mark := body.get("cache_control"), dict):  # a mark for the whole request
            self.fields["cache_control"] = mark
        if body.get("stream"):
            self.fields["stream"] = True

    def _lose(self, name: str, how: How, why: str) -> None:
        self.gaps.append(Gap(name, how, why))


def _name_of_bound(body: Json) -> str | None:
    return next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)


def _most_tokens(body: Json, model: ModelFacts) -> Any:
    """Returns how long the answer may be, which Messages require: as long as the model can, if the caller sets no bound."""
    name = _name_of_bound(body)
    if name is None:
        return model.max_output or UNKNOWN_OUTPUT
    most = body[name]
    return min(most, model.max_output) if type(most) is int and model.max_output else most


# --- The request around them ---


IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The ids of calls that the target takes; others are refused (400 `tool_use.id: String should match pattern`)."""
_MORE: Final = frozenset(
    (
        "tool_calls", "function_call", "reasoning_details", "thinking_blocks", "cache_control", "prompt_cache_breakpoint",
    )
)  # fmt: skip
"""Fields of a message that make blocks of it, or go with one: without them a string stays one."""
_PLAIN: Final = 2
"""The fields of a message with role and content alone."""


def messages_body(body: Json, facts: ServerFacts, settled: ChatOptions) -> Json:
    """Returns the Messages request, which takes its `settled` options over.

    Raises InvalidRequest, naming the place, where it makes no sense.
    """
    refuse_odd_tools(body, [tool["name"] for tool in settled.fields.get("tools", ())])
    conversation = _Conversation(facts, settled.recalled, keeps_thoughts=settled.keeps_thoughts)
    for turn in turns(body.get("messages")):
        conversation.take(turn)
    made = settled.fields
    system, messages = conversation.all()
    if settled.instruction is not None:
        system.append({"type": "text", "text": settled.instruction})
    if system:
        made["system"] = system
    made["messages"] = messages
    if conversation.has_marks or any("cache_control" in tool for tool in made.get("tools", ())):
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
    """Puts turns together to messages.

    Order is kept: instructions are hoisted from the beginning only, because to move others changes what was said and what
    is cached. All results of a turn are in one user message, before what the user says next: split ones teach the model not
    to call in parallel (Zoo-Code-Org/Zoo-Code#1716).
    """

    def __init__(self, facts: ServerFacts, recalled: RememberedTurns, *, keeps_thoughts: bool) -> None:
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
            self._append_turn(self._blocks(turn))
        elif not self._made:
            self._system += self._blocks(turn, takes_media=False)
        elif self._facts.model.later_system:
            if blocks := self._blocks(turn, takes_media=False):
                self._append("system", blocks)
        elif blocks := self._blocks(turn, takes_media=False):
            instruction = "\n".join(block["text"] for block in blocks)
            self._append_turn([{**blocks[-1], "text": f"<system>{instruction}</system>"}])

    def _append_turn(self, blocks: list[Json]) -> None:
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
