"""What chat completions and Responses cannot say of each other, field by field, with the reason.

Source: OpenAI's API reference for both, and what others lost silently (BerriAI/litellm#18201, open-webui/open-webui#30085).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.base import (
    MOST_NAMED,
    OPENAIS_FIELDS,
    FieldGaps,
    Json,
    ModelFacts,
    ServerFacts,
    gaps_of_fields,
    object_of,
    objects,
    strings,
    text_of,
)
from gateway.dialects.issuers import NOT_ITS_OWN, carried_in
from gateway.dialects.openai.fields import RESPONSES
from gateway.dialects.schema_tools.chat_parts import outline
from gateway.dialects.schema_tools.tools import LESS_SEARCH, NO_SEARCH, is_search, is_search_alone, search_options

_STATE: Final = "the target keeps no state of conversations"
_HINT: Final = "the target has no such option"
_NOT_ITS_OWN: Final = "thoughts go back to the provider that signed them"

RESPONSES_ONLY: Final[FieldGaps] = {
    "access_programs": (How.DROPPED, _HINT, ([],)),
    "background": (How.REFUSED, "the target answers only while one waits", (False,)),
    "conversation": (How.REFUSED, _STATE, ()),
    "n": (How.REFUSED, "Responses give one answer", (1,)),
    "previous_response_id": (How.REFUSED, _STATE, ()),
    "prompt": (How.REFUSED, "prompts that are kept by the provider are its own", ()),
    "context_management": (How.DROPPED, _HINT, ([],)),
    "image": (How.DROPPED, _HINT, ()),
    "max_tool_calls": (How.DROPPED, "it bounds tools that run at the provider", ()),
    "truncation": (How.DROPPED, "the target does not shorten conversations", ("disabled",)),
}
"""Top-level fields of a Responses request: what becomes of each in a chat completion, and the values that mean nothing."""

CHAT_ONLY: Final[FieldGaps] = {
    "n": (How.REFUSED, "Responses give one answer", (1,)),
    "audio": (How.REFUSED, "Responses do not speak", ()),
    "modalities": (How.REFUSED, "Responses give text alone", (["text"],)),
    "web_search_options": (How.REFUSED, "Responses search by a tool of theirs", ()),
    "frequency_penalty": (How.DROPPED, _HINT, (0,)),
    "presence_penalty": (How.DROPPED, _HINT, (0,)),
    "logit_bias": (How.DROPPED, _HINT, ({},)),
    "prediction": (How.DROPPED, _HINT, ()),
    "seed": (How.DROPPED, _HINT, ()),
    "stop": (How.DROPPED, _HINT, ([],)),
    "store": (How.DROPPED, "no answer is kept", (False,)),
}
"""Top-level fields of a chat completion: what becomes of each in a Responses request."""
ADDED: Final[FieldGaps] = {
    **dict.fromkeys(OPENAIS_FIELDS - {"verbosity"}, (How.DROPPED, _HINT, ({}, "auto", "default"))),
    "top_k": (How.DROPPED, _HINT, ()),
}
"""Top-level fields of both that some servers with chat completions know, and others refuse."""
SHARED: Final = frozenset(
    ("model", "stream", "temperature", "top_p", "user", "parallel_tool_calls", "top_logprobs", *OPENAIS_FIELDS)
) - {"verbosity"}
"""Top-level fields of a chat completion that Responses have, too, under the same name."""
_SUPPORTED: Final = SHARED | frozenset(
    (
        "messages", "max_tokens", "max_completion_tokens", "response_format", "verbosity", "reasoning_effort", "tools",
        "tool_choice", "functions", "function_call", "logprobs", "stream_options",
    )
)  # fmt: skip
"""Top-level fields of a chat completion that are said in a Responses request, or whose gaps are found elsewhere."""

CACHE_OPTIONS: Final[Mapping[str, tuple[object, ...]]] = {"mode": ("implicit", "explicit"), "ttl": ("30m",)}
"""What chat completions can be told of the cache of prompts; Responses can be told more."""
RESPONSES_TIERS: Final = ("ultrafast",)
"""Tiers in which Responses are served, and chat completions are not."""
_TOOLS_OF_CHAT: Final = frozenset(("function", "custom"))
_ITEMS: Final = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
)
PASSED_OVER: Final[Mapping[str, str]] = {
    "compaction_trigger": "the target shortens no conversations",
    "tool_search_call": "all tools are there from the start",
    "tool_search_output": "all tools are there from the start",
    "web_search_call": "what a provider has searched for is of use to itself",
}
"""Items that a conversation goes on without, and why."""
OF_SEARCH: Final = frozenset(("allowed_domains", "user_location", "search_context_size", "external_web_access"))
"""The options of a search that OpenAI's Responses know."""
NAMED: Final = ("cache_control", "reasoning", "thinking", "top_k")
"""Top-level fields of a chat completion that are not OpenAI's, and have gaps of their own name."""
_INSTRUCTORS: Final = ("system", "developer")
_PARTS_OF_CHAT: Final = frozenset(("text", "refusal", "image_url", "file"))
TAKES_MARKS: Final = ("user", "system", "developer")
"""Roles whose parts stay parts in Responses."""
_FORMATS: Final = frozenset(("text", "json_object", "json_schema"))
_OF_REASONING: Final = frozenset(("context", "generate_summary", "mode", "summary"))
_OF_TOOLS: Final = ("allowed_callers", "async", "defer_loading", "output_schema")
REASONING_FORMAT: Final = "openai-responses-v1"
"""Marks what a model of OpenAI's thought, in the `reasoning_details` of a message."""
_OF_WORDS: Final = ("annotations", "logprobs")
_OF_ITEMS: Final = frozenset(("async", "caller", "namespace", "phase"))
_WORDS: Final = ("output_text", "input_text", "text")
TEXT_PARTS: Final = (*_WORDS, "refusal")
"""The parts of what a model has said before."""
_INCLUDED: Final = frozenset(("message.output_text.logprobs", "reasoning.encrypted_content"))


def gaps_at_top(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a Responses request's top-level fields."""
    found = gaps_of_fields(body, RESPONSES_ONLY)
    if facts.takes_details:  # what follows knows which others its target has
        return found
    found += [gap for gap in gaps_of_fields(body, ADDED) if gap.field not in facts.knows]
    supported = RESPONSES.fields.keys() | ADDED.keys() | facts.knows
    if any(value is not None and name not in supported for name, value in body.items()):
        found.append(Gap("other", How.DROPPED, _HINT))
    if object_of(body.get("text")).get("verbosity") not in (None, "medium") and "verbosity" not in facts.knows:
        found.append(Gap("text.verbosity", How.DROPPED, _HINT))
    return found


def gaps_of_chat_at_top(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a chat completion's top-level fields."""
    found = gaps_of_fields(body, CHAT_ONLY)
    for name, value in body.items():
        if value is not None and name not in _SUPPORTED and name not in CHAT_ONLY and name not in facts.knows:
            found.append(Gap(name if name in NAMED else "other", How.DROPPED, _HINT))
    return found


def gaps_of_tools(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a Responses request's tools and the choice of them."""
    found = []
    for tool in objects(body.get("tools")):
        kind = text_of(tool.get("type"))
        if is_search(tool):
            found += [] if facts.takes_details else [NO_SEARCH]
            continue
        if kind not in _TOOLS_OF_CHAT:
            found.append(Gap(f"tools.{kind}"[:MOST_NAMED], How.REFUSED, "the tool runs at a provider that has it"))
            continue
        if kind == "custom" and not facts.takes_custom_tools:
            found.append(Gap("tools.custom", How.APPROXIMATED, "it becomes a function with one text as input"))
        found += [Gap(f"tools.{name}", How.DROPPED, _HINT) for name in _OF_TOOLS if tool.get(name)]
    choice = object_of(body.get("tool_choice"))
    chosen = text_of(choice.get("type"))
    if is_search(choice) and facts.takes_details:  # what follows knows whether its target can be made to search
        return found
    if body.get("tool_choice") == "required" and not facts.takes_details and is_search_alone(body.get("tools")):
        found.append(Gap("tool_choice", How.REFUSED, NO_SEARCH.why))
    if chosen == "allowed_tools":
        found.append(Gap("tool_choice.allowed_tools", How.APPROXIMATED, "the other tools are left out of the request"))
    elif chosen and chosen not in _TOOLS_OF_CHAT:
        found.append(Gap(f"tool_choice.{chosen}"[:MOST_NAMED], How.REFUSED, "the tool runs at a provider that has it"))
    return found


def gaps_of_input(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a Responses request's items and their parts."""
    found = []
    has_begun = False  # something else than instructions stands before
    for item in objects(body.get("input")):
        is_instruction = item.get("role") in _INSTRUCTORS
        if is_instruction and has_begun and not facts.takes_developer:
            found.append(
                Gap("input.system", How.APPROXIMATED, "later instructions become a user's words, in their place")
            )
        has_begun = has_begun or not is_instruction
        kind = text_of(item.get("type") or ("item_reference" if is_reference(item) else "message"))
        if kind in PASSED_OVER:
            found.append(Gap(f"input.{kind}", How.DROPPED, PASSED_OVER[kind]))
            continue
        if kind not in _ITEMS:
            found.append(Gap(f"input.{kind}"[:MOST_NAMED], How.REFUSED, "chat completions have no such item"))
        elif kind == "reasoning":
            found += _gaps_of_reasoning(item, facts)
            continue
        if not _OF_ITEMS.isdisjoint(item):
            names = [name for name in sorted(_OF_ITEMS) if item.get(name)]
            found += [Gap(f"input.{name}", How.DROPPED, "chat completions say no such thing") for name in names]
        of_tool = kind.endswith("_output")
        content = item.get("output" if of_tool else "content")
        for part in objects(content) if type(content) is list else ():
            if len(part) != 2 or part.get("type") not in _WORDS:
                found += _gaps_of_part(part, facts, of_tool=of_tool)
                if (
                    item.get("role") == "assistant"
                    and (part_type := text_of(part.get("type", "text"))) not in TEXT_PARTS
                ):
                    name = f"input.{part_type}"[:MOST_NAMED]
                    found.append(Gap(name, How.REFUSED, "chat completions have no such part in what the model said"))
    return found


def is_reference(item: Json) -> bool:
    """Whether an item has nothing but the id of another one, which its provider keeps; its type need not be said."""
    return item.keys() <= {"type", "id"} and "id" in item


def _gaps_of_reasoning(item: Json, facts: ServerFacts) -> list[Gap]:
    carried = carried_in(text_of(item.get("encrypted_content")))
    if carried is not None:
        is_lost = bool(carried.details) and not facts.takes("reasoning_details")
        is_lost = is_lost or (bool(carried.extras) and not facts.takes("extra_content"))
        return [Gap("input.reasoning", How.DROPPED, NOT_ITS_OWN)] if is_lost else []
    if item.get("encrypted_content"):
        return [Gap("input.reasoning", How.DROPPED, "encrypted reasoning is of use to its own provider only")]
    if item.get("content") and not facts.takes_reasoning:
        return [Gap("input.reasoning", How.DROPPED, "the target takes no reasoning back")]
    has_summary = item.get("summary") and not item.get("content")
    return [Gap("input.reasoning", How.DROPPED, "a summary of reasoning cannot go back")] if has_summary else []


def _gaps_of_part(part: Json, facts: ServerFacts, *, of_tool: bool) -> list[Gap]:
    kind = text_of(part.get("type"))
    if kind in ("input_image", "input_file") and part.get("file_id"):
        return [Gap(f"input.{kind}.file_id", How.REFUSED, "files of a provider are unknown to others")]
    if kind == "input_file" and part.get("file_url"):
        return [Gap("input.input_file.file_url", How.REFUSED, "the target fetches no files, and the gateway does not")]
    found = []
    if of_tool and kind in ("input_image", "input_file") and not facts.takes_details:
        found.append(
            Gap("input.function_call_output", How.APPROXIMATED, "its pictures and files follow in a user message")
        )
    if kind == "input_file" and part.get("detail"):
        found.append(Gap("input.input_file.detail", How.DROPPED, _HINT))
    if part.get("prompt_cache_breakpoint") and not facts.takes_developer:
        found.append(Gap("input.prompt_cache_breakpoint", How.DROPPED, _HINT))
    if kind == "output_text":
        loss = "chat completions say no such thing of what was said"
        found += [Gap(f"input.{name}", How.DROPPED, loss) for name in _OF_WORDS if part.get(name)]
    return found


def gaps_of_options(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a Responses request's nested options."""
    found = []
    if set(strings(body.get("include"))) - _INCLUDED:
        found.append(Gap("include", How.DROPPED, "the target has nothing of what is to be included"))
    for name, value in object_of(body.get("reasoning")).items():
        if name != "effort" and value:  # what is dropped is a header and a label: its name is one of ours
            known = name if name in _OF_REASONING else "other"
            found.append(Gap(f"reasoning.{known}", How.DROPPED, "the target shows its reasoning, or does not"))
    if any(name not in CACHE_OPTIONS or value not in CACHE_OPTIONS[name] for name, value in _cache_options(body)):
        found.append(Gap("prompt_cache_options", How.DROPPED, "chat completions know less of them"))
    if body.get("service_tier") in RESPONSES_TIERS:
        found.append(Gap("service_tier", How.DROPPED, "chat completions are not served so"))
    answer = text_of(object_of(object_of(body.get("text")).get("format")).get("type") or "text")
    if answer not in _FORMATS:
        found.append(Gap(f"text.format.{answer}"[:MOST_NAMED], How.REFUSED, "chat completions have no such format"))
    if object_of(body.get("stream_options")).get("include_obfuscation") and not facts.takes_developer:
        found.append(Gap("stream_options.include_obfuscation", How.DROPPED, _HINT))
    return found


def _cache_options(body: Json) -> list[tuple[str, object]]:
    given = body.get("prompt_cache_options")
    return [(name, value) for name, value in given.items() if value is not None] if isinstance(given, dict) else []


def gaps_of_messages(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a chat completion's messages and tools."""
    found: list[Gap] = []
    looks = outline(body.get("messages"))
    for _, message in looks.notable:
        if message.get("audio"):
            found.append(Gap("messages.audio", How.REFUSED, "Responses do not hear what they said"))
        if message.get("name") and message.get("role") not in ("tool", "function"):
            found.append(Gap("messages.name", How.DROPPED, "Responses know no names of speakers"))
        parts = objects(message.get("content"))
        if message.get("refusal") or any(part.get("type") == "refusal" for part in parts):
            found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
        for kind in {text_of(part.get("type")) for part in parts} - _PARTS_OF_CHAT:
            found.append(Gap(f"messages.{kind}"[:MOST_NAMED], How.REFUSED, "Responses take no such part"))
        _add_gaps_of_marks(found, message, parts, facts)
        if message.get("role") == "assistant":
            _add_gap_of_thoughts(found, message)
            if any(call.get("extra_content") for call in objects(message.get("tool_calls"))):
                found.append(Gap("messages.tool_calls.extra_content", How.DROPPED, _NOT_ITS_OWN))
    for tool in objects(body.get("tools")):
        if is_search(tool):
            has_search = facts.takes_developer  # servers of other makers with Responses have none
            if not has_search:
                found.append(NO_SEARCH)
            elif search_options(tool).keys() - OF_SEARCH:
                found.append(LESS_SEARCH)
            continue
        if (kind := text_of(tool.get("type") or "function")) not in _TOOLS_OF_CHAT:
            found.append(Gap(f"tools.{kind}"[:MOST_NAMED], How.REFUSED, "chat completions have no such tool"))
        if tool.get("cache_control"):
            found.append(Gap("cache_control", How.DROPPED, _HINT))
    choice = body.get("tool_choice")
    demands_search = is_search(object_of(choice)) or (choice == "required" and is_search_alone(body.get("tools")))
    if demands_search and not facts.takes_developer:
        found.append(Gap("tool_choice", How.REFUSED, NO_SEARCH.why))
    return found


def _add_gap_of_thoughts(found: list[Gap], message: Json) -> None:
    """What a model of OpenAI's has encrypted goes back to it, with the words that are in it; nothing else does."""
    details = objects(message.get("reasoning_details"))
    if any(one.get("format") != REASONING_FORMAT for one in details) or message.get("thinking_blocks"):
        found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
    if not details and (message.get("reasoning_content") or message.get("reasoning")):
        found.append(Gap("messages.reasoning_content", How.DROPPED, "thoughts in words do not go back"))


def _add_gaps_of_marks(found: list[Gap], message: Json, parts: list[Json], facts: ServerFacts) -> None:
    """Marks for the cache of prompts stand at parts, which what the model said, and what tools answered, is not made of."""
    has_parts = message.get("role") in TAKES_MARKS
    for one in (message, *parts):
        is_lost = one is message or not has_parts
        if one.get("prompt_cache_breakpoint") and is_lost:
            found.append(Gap("messages.prompt_cache_breakpoint", How.DROPPED, "Responses take no mark there"))
        if one.get("cache_control") and (is_lost or not facts.model.cache_marks):
            found.append(Gap("cache_control", How.DROPPED, _HINT))
        elif one.get("cache_control"):
            found.append(Gap("cache_control", How.APPROXIMATED, "how long it lives is the target's to say"))


# --- What a model at OpenAI's languages takes of what callers of other languages want ---


EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts, the least first."""
SAMPLING: Final = ("temperature", "top_p")
NOT_SAMPLED: Final = "the model takes none"


def effort_for(effort: str | None, model: ModelFacts) -> str | None:
    """Returns the effort of a model's that is nearest to this one and no more, if there is one; None: none is sent.

    For callers of other languages: those of OpenAI's own know its models, and are not corrected.
    """
    if effort is None or effort in model.efforts or not model.efforts:
        return effort if effort in model.efforts else None
    most = EFFORTS.index(effort) if effort in EFFORTS else len(EFFORTS)
    less = [name for name in model.efforts if name in EFFORTS and EFFORTS.index(name) <= most]
    return less[-1] if less else model.efforts[0]


def how_fitted(wanted: str | None, model: ModelFacts) -> How | None:
    """Returns what becomes of an effort; None: it is said as it was asked, or needs no word."""
    effort = effort_for(wanted, model)
    if effort == wanted or (wanted == "none" and effort is None and model.thinking == "none"):
        return None
    return How.DROPPED if effort is None else How.APPROXIMATED


def is_sampled(effort: str | None, facts: ServerFacts) -> bool:
    """Returns whether a model that is told this effort takes `temperature` and `top_p`.

    OpenAI's models that can be told not to think draw as they are told only then.
    """
    may_think = facts.takes_developer and "none" in facts.model.efforts
    return facts.model.sampling and not (may_think and effort not in (None, "none"))


def fitted(chat: Json, facts: ServerFacts) -> tuple[Json, list[Gap]]:
    """Returns a chat completion as its model takes it, and what was lost; itself where nothing was.

    Raises nothing.
    """
    wanted = text_of(chat.get("reasoning_effort")) or None
    effort, lost = effort_for(wanted, facts.model), list[Gap]()
    made = chat
    if effort != wanted:
        made = {name: value for name, value in chat.items() if name != "reasoning_effort"}
        made |= {"reasoning_effort": effort} if effort is not None else {}
    if (how := how_fitted(wanted, facts.model)) is not None:
        lost.append(Gap("reasoning_effort", how, "the model has no such effort"))
    for name in ("max_completion_tokens", "max_tokens"):
        most, highest = chat.get(name), facts.model.max_output
        if type(most) is int and highest is not None and most > highest:
            made = {**made, name: highest}
            lost.append(Gap(name, How.APPROXIMATED, f"the model answers with {highest} at most"))
    if not is_sampled(effort, facts):
        unsaid = [name for name in SAMPLING if chat.get(name) is not None]
        made = {name: value for name, value in made.items() if name not in unsaid} if unsaid else made
        lost += [Gap(name, How.DROPPED, NOT_SAMPLED) for name in unsaid if is_not_default(chat[name])]
    return made, lost


def is_not_default(value: object) -> bool:
    """Returns whether a way to draw says anything: 1 is what holds without it."""
    return value != 1 or value is True
