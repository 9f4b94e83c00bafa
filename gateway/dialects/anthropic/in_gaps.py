"""What chat completions cannot say of a request of Messages, field by field, with the reason.

In this order: the gaps (`gaps_of`), the fields that nobody else judges (`MESSAGES`), the translator (`MessagesOverChat`).
Behind another conversion (`ServerFacts.takes_details`) what that one can say is kept, and it names its own gaps. Source:
Anthropic's API reference, OpenAI's, and what others lost silently (BerriAI/litellm#6953, vercel/ai#18982).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.anthropic import in_request
from gateway.dialects.anthropic.in_answer import ChatAsMessages, message_of_chat
from gateway.dialects.anthropic.in_parts import is_passed_over
from gateway.dialects.anthropic.in_thoughts import THOUGHTS, held_by, signature_of
from gateway.dialects.base import (
    MOST_NAMED,
    MOST_STOPS,
    ConvertedRequest,
    Form,
    Json,
    Reader,
    ServerFacts,
    form,
    gaps_of_fields,
    object_of,
    objects,
    once,
    stops_for,
    strings,
    text_of,
)
from gateway.dialects.openai.gaps import NOT_SAMPLED, is_not_default
from gateway.dialects.schema_tools.tools import LESS_SEARCH, MOST_NAME, NO_SEARCH, is_search

# --- The gaps ---


_HINT: Final = "the target has no such option"
_AWAY: Final = "the tool runs at a provider that has it"
_FILES: Final = "files of a provider are unknown to others"
_FETCH: Final = "the target fetches no files, and the gateway does not"

MESSAGES_ONLY: Final[Mapping[str, tuple[How, str, tuple[object, ...]]]] = {
    "container": (How.REFUSED, "what runs code is the provider's own", ()),
    "mcp_servers": (How.REFUSED, "the target asks no servers of tools", ([],)),
    "thread": (How.REFUSED, "the target keeps no state of conversations", ()),
    "billing_policy": (How.DROPPED, _HINT, ()),
    "cache_control": (How.DROPPED, _HINT, ()),
    "compaction": (How.DROPPED, "the target does not shorten conversations", ()),
    "context_management": (How.DROPPED, "the target does not shorten conversations", ()),
    "diagnostics": (How.DROPPED, _HINT, ()),
    "fallback_credit_token": (How.DROPPED, _HINT, ()),
    "fallbacks": (How.DROPPED, "the plan of the gateway has its own", ([],)),
    "inference_geo": (How.DROPPED, _HINT, ()),
    "speed": (How.DROPPED, _HINT, ("standard",)),
    "user_profile_id": (How.DROPPED, _HINT, ()),
    "workspace_id": (How.DROPPED, _HINT, ()),
}
"""Top-level fields of a request: what becomes of each in a chat completion, and the values that mean nothing."""
_SUPPORTED: Final = frozenset(
    (
        "model", "messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream",
        "thinking", "output_config", "output_format", "tools", "tool_choice", "metadata", "service_tier",
    )
)  # fmt: skip
_OF_TOOLS: Final = frozenset(("defer_loading", "eager_input_streaming", "input_examples"))
_SUPPORTED_OF_TOOLS: Final = frozenset(
    ("type", "name", "description", "input_schema", "strict", "cache_control", "allowed_callers")
)
_SUPPORTED_OF_SEARCH: Final = frozenset(("type", "name", "allowed_domains", "blocked_domains", *in_request.OF_SEARCH))
_OF_BLOCKS: Final = frozenset(("caller", "toolset_name", "transformations"))
_SUPPORTED_OF_BLOCKS: Final = {
    "text": frozenset(("text", "citations")),
    "image": frozenset(("source",)),
    "document": frozenset(("source", "title", "context", "citations")),
    "search_result": frozenset(("source", "title", "content", "citations")),
    "tool_use": frozenset(("id", "name", "input")),
    "tool_result": frozenset(("tool_use_id", "content", "is_error")),
    "tool_reference": frozenset(("tool_name",)),
    "thinking": frozenset(("thinking", "signature")),
    "redacted_thinking": frozenset(("data",)),
}
_SUPPORTED_OF_ALL: Final = frozenset(("type", "cache_control"))
_SUPPORTED_OF_THINKING: Final = frozenset(("type", "budget_tokens", "display"))
_USUAL: Final[tuple[object, ...]] = (None, {}, "", {"type": "direct"})
"""What these say where it means nothing: a model has called a tool by itself."""
_SOURCES: Final = {
    "image": frozenset(("base64", "url")),
    "document": frozenset(("base64", "text", "content")),
}
_SEARCHED: Final = ("server_tool_use", "web_search_tool_result")
_NEVER_BY: Final = {
    "assistant": frozenset(("image", "document", "search_result", "tool_result")),
    "user": frozenset(("thinking", "redacted_thinking", "tool_use", *_SEARCHED)),
    "system": frozenset(
        ("image", "document", "search_result", "tool_result", "thinking", "redacted_thinking", "tool_use", *_SEARCHED)
    ),
}
"""Blocks that Anthropic's types allow in anybody's turn, and chat completions only in others'."""
_MARKABLE: Final = frozenset(("text", "image", "document", "search_result", "tool_result"))


def gaps_of(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps of a request, each field once."""
    found = gaps_of_fields(body, MESSAGES_ONLY)
    if any(name not in _SUPPORTED and name not in MESSAGES_ONLY and value is not None for name, value in body.items()):
        found.append(Gap("other", How.DROPPED, "the target has no such fields"))
    found += _gaps_of_options(body, facts) + _gaps_of_thinking(body, facts) + _gaps_of_tools(body, facts)
    found += _gaps_of_system(body.get("system"), facts)
    _add_gaps_of_messages(found, objects(body.get("messages")), facts)
    return once(found)


def _add_gaps_of_messages(found: list[Gap], messages: list[Json], facts: ServerFacts) -> None:
    found += in_request.with_later_system(messages, is_taken=facts.takes_developer)[1]
    for message in messages:
        if len(message) > 2:
            found.append(Gap("messages.other", How.DROPPED, _HINT))
        content, role = message.get("content"), message.get("role")
        for block in content if type(content) is list else ():
            if type(block) is not dict:
                continue
            # Most blocks are usual ones, with their own fields and no others.
            kind, count = block.get("type"), len(block)
            if kind == "text":
                is_usual = count == 2
            elif kind == "tool_use":
                is_usual = count == 4 and "input" in block and role == "assistant"
            else:
                is_usual = kind == "tool_result" and count == 3 and type(block.get("content")) is str and role == "user"
            if not is_usual:
                _add_gaps_of_block(found, block, facts)
                if text_of(kind) in _NEVER_BY.get(text_of(role), ()):
                    found.append(
                        Gap(f"messages.{kind}", How.REFUSED, "chat completions have no such block in that turn")
                    )
    if messages and messages[-1].get("role") == "assistant":
        found.append(Gap("messages", How.APPROXIMATED, "the target does not go on with a turn of the model's own"))


def _gaps_of_options(body: Json, facts: ServerFacts) -> list[Gap]:
    found = []
    most, model = body.get("max_tokens"), facts.model
    if type(most) is int and most == 0:
        found.append(Gap("max_tokens", How.REFUSED, "the target does not fill its cache without an answer"))
    elif type(most) is int and most > 0 and in_request.bound(body, facts) < most:
        found.append(Gap("max_tokens", How.APPROXIMATED, f"the model answers with {model.max_output} at most"))
    for name in in_request.unsampled(body, facts):
        if (value := body.get(name)) is not None and is_not_default(value):
            found.append(Gap(name, How.DROPPED, NOT_SAMPLED))
    if body.get("top_k") is not None and not facts.takes_details:
        found.append(Gap("top_k", How.DROPPED, _HINT))
    stops = strings(body.get("stop_sequences"))
    if len(kept := stops_for(stops, facts)) < len(stops):
        why = f"the target stops at {MOST_STOPS} at most" if kept else "the model is told nothing to stop at"
        found.append(Gap("stop_sequences", How.APPROXIMATED if kept else How.DROPPED, why))
    if object_of(body.get("metadata")).keys() - {"user_id"}:
        found.append(Gap("metadata.other", How.DROPPED, _HINT))
    tier = body.get("service_tier")
    if tier is not None and (tier != "auto" and not (facts.takes_developer or facts.takes_details)):
        found.append(Gap("service_tier", How.DROPPED, _HINT))
    elif tier is not None and tier not in ("auto", "standard_only"):
        found.append(Gap("service_tier", How.DROPPED, "no such tier is known"))
    schema = in_request.requested_schema(body)
    if schema is not None and not in_request.is_strict(schema, facts):
        found.append(Gap("output_config.format", How.APPROXIMATED, "the target holds to no optional properties"))
    if schema is None and (body.get("output_format") or object_of(body.get("output_config")).get("format")):
        found.append(Gap("output_config.format", How.REFUSED, "it is no JSON Schema"))
    if object_of(body.get("output_config")).keys() - {"effort", "format"}:
        found.append(Gap("output_config.other", How.DROPPED, _HINT))
    return found


def _gaps_of_thinking(body: Json, facts: ServerFacts) -> list[Gap]:
    found = []
    given = object_of(body.get("thinking"))
    kind, effort = text_of(given.get("type")), object_of(body.get("output_config")).get("effort")
    closest = in_request.effort_for(body, facts)
    if kind == "disabled":
        if closest != "none" and facts.model.thinking != "none":
            found.append(Gap("thinking", How.APPROXIMATED, "the model thinks as little as it can"))
        if effort is not None:
            found.append(Gap("output_config.effort", How.DROPPED, "the target has one word for both"))
    elif kind == "between_tools":
        found.append(Gap("thinking", How.APPROXIMATED, "the model thinks as little as it can"))
    elif kind == "enabled" and closest is None:
        found.append(Gap("thinking", How.DROPPED, "the model is not told how much to think"))
    elif kind == "enabled":
        found.append(Gap("thinking.budget_tokens", How.APPROXIMATED, "the target takes an effort and no number"))
    elif kind and effort is None:
        found.append(Gap("thinking", How.APPROXIMATED, "the target thinks as much as it does unasked"))
    if effort is not None and kind not in ("disabled", "between_tools") and closest != effort:
        how = How.DROPPED if closest is None else How.APPROXIMATED
        found.append(Gap("output_config.effort", how, "the model has no such effort"))
    if given.keys() - _SUPPORTED_OF_THINKING:
        found.append(Gap("thinking.other", How.DROPPED, _HINT))
    if given.get("display") is not None:
        found.append(Gap("thinking.display", How.DROPPED, "the target shows its reasoning, or does not"))
    return found


def _gaps_of_tools(body: Json, facts: ServerFacts) -> list[Gap]:
    found = []
    for tool in objects(body.get("tools")):
        kind = tool.get("type")
        if is_search(tool):
            if not facts.takes_details:
                found.append(NO_SEARCH)
            elif any(tool[name] for name in tool.keys() - _SUPPORTED_OF_SEARCH):
                found.append(LESS_SEARCH)
            continue
        if kind not in (None, "custom"):
            found.append(Gap(f"tools.{text_of(kind)}"[:MOST_NAMED], How.REFUSED, _AWAY))
            continue
        for name in tool.keys() - _SUPPORTED_OF_TOOLS:
            if tool[name]:
                found.append(Gap(f"tools.{name if name in _OF_TOOLS else 'other'}", How.DROPPED, _HINT))
        if tool.get("allowed_callers") not in (None, ["direct"]):
            found.append(Gap("tools.allowed_callers", How.DROPPED, "only the model calls tools there"))
        if not in_request.holds_arguments(tool, facts):
            found.append(Gap("tools.strict", How.DROPPED, "the target holds to no optional properties"))
        if len(text_of(tool.get("name"))) > MOST_NAME and not facts.takes_details:
            found.append(Gap("tools.name", How.APPROXIMATED, "it is shortened for the target, and whole in its answer"))
        if tool.get("cache_control") and not facts.takes_details:
            found.append(Gap("cache_control", How.DROPPED, _HINT))
    if not facts.takes_details and in_request.demands_search(body):
        found.append(Gap("tool_choice", How.REFUSED, NO_SEARCH.why))
    is_forced = text_of(object_of(body.get("tool_choice")).get("type")) in ("any", "tool")
    if is_forced and not (facts.takes_details or facts.model.forced_tools):
        how = How.APPROXIMATED if facts.approximates else How.REFUSED
        found.append(Gap("tool_choice", how, "the model cannot be made to call a tool"))
    return found


def _gaps_of_system(given: Any, facts: ServerFacts) -> list[Gap]:
    found: list[Gap] = []
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else objects(given)
    for block in blocks:
        text = text_of(block.get("text"))
        if "x-anthropic" in text.lower() and in_request.BILLING.search(text):
            found.append(
                Gap("system", How.APPROXIMATED, "the line by which a client is billed at Anthropic is left out")
            )
        _add_gaps_of_block(found, block, facts)
    return found


def _add_gaps_of_block(found: list[Gap], block: Json, facts: ServerFacts) -> None:
    kind = text_of(block.get("type"))
    if block.get("cache_control"):
        _add_gap_of_mark(found, kind, facts)
    if kind == "text":
        if block.get("citations"):
            found.append(Gap("messages.citations", How.DROPPED, "chat completions say no such thing"))
    elif kind == "tool_result":
        _add_gaps_of_result(found, block, facts)
    elif kind in THOUGHTS:
        _add_gap_of_thought(found, block, facts)
    elif kind in _SOURCES:
        _add_gaps_of_file(found, kind, block, facts)
    elif kind == "tool_reference":
        found.append(
            Gap("messages.tool_reference", How.APPROXIMATED, "tools that are loaded late are there from the start")
        )
    elif kind == "search_result":
        found.append(Gap("messages.search_result", How.APPROXIMATED, "it becomes text"))
        _add_gap_of_citing(found, block, facts)
        _add_gaps_within(found, block.get("content"), facts)
    elif is_passed_over(block):
        found.append(Gap(f"messages.{kind}", How.DROPPED, "what a provider has searched for is of use to itself"))
    elif kind != "tool_use":
        found.append(Gap(f"messages.{kind}"[:MOST_NAMED], How.REFUSED, "chat completions have no such block"))
    known = _SUPPORTED_OF_BLOCKS.get(kind)
    for name in block.keys() - _SUPPORTED_OF_ALL - known if known is not None else ():
        if block[name] not in _USUAL:  # what is dropped is a header and a label: its name is one of ours
            found.append(Gap(f"messages.{name if name in _OF_BLOCKS else 'other'}", How.DROPPED, _HINT))


def _add_gap_of_mark(found: list[Gap], kind: str, facts: ServerFacts) -> None:
    if facts.takes_details:
        return
    is_kept = facts.model.cache_marks and kind in _MARKABLE
    why = "how long it lives is the target's to say" if is_kept else _HINT
    found.append(Gap("cache_control", How.APPROXIMATED if is_kept else How.DROPPED, why))


def _add_gaps_of_result(found: list[Gap], block: Json, facts: ServerFacts) -> None:
    if block.get("is_error"):
        found.append(Gap("messages.tool_result.is_error", How.APPROXIMATED, "it is told in the text"))
    for part in objects(block.get("content")):
        _add_gaps_of_block(found, part, facts)
        if (
            text_of(part.get("type")) in _SOURCES
            and object_of(part.get("source")).get("type") != "text"
            and not facts.takes_details
        ):
            why = "its pictures and files follow in a user message"
            found.append(Gap("messages.tool_result.content", How.APPROXIMATED, why))


def _add_gap_of_thought(found: list[Gap], block: Json, facts: ServerFacts) -> None:
    held = held_by(signature_of(block))
    has_words = bool(block.get("thinking"))
    if (facts.takes_details and (held != {} or facts.takes_reasoning)) or (held == {} and not has_words):
        return  # the latter is a mark of ours that holds nothing
    if (
        facts.signed_in
        and held != {}
        and facts.takes("extra_content" if held and "call" in held else "reasoning_details")
    ):
        return
    if not facts.takes_reasoning or not has_words:
        found.append(Gap(f"messages.{block['type']}", How.DROPPED, "the target takes no reasoning back"))
    elif held != {}:
        found.append(Gap("messages.thinking", How.APPROXIMATED, "a signature is of use to its own provider only"))


def _add_gaps_of_file(found: list[Gap], kind: str, block: Json, facts: ServerFacts) -> None:
    source = object_of(block.get("source"))
    source_type = text_of(source.get("type"))
    if source_type not in _SOURCES[kind]:
        why = _FILES if source_type == "file" else _FETCH if source_type == "url" else "no such source is known"
        found.append(Gap(f"messages.{kind}.{source_type}"[:MOST_NAMED], How.REFUSED, why))
    if kind != "document":
        return
    _add_gap_of_citing(found, block, facts)
    if source_type == "content":
        _add_gaps_within(found, source.get("content"), facts)
    if source_type == "content" or block.get("context") or (block.get("title") and source_type == "text"):
        found.append(Gap("messages.document", How.APPROXIMATED, "it becomes text"))


def _add_gaps_within(found: list[Gap], content: Any, facts: ServerFacts) -> None:
    """Looks at the blocks of a block whose words go out as one text."""
    for block in objects(content):
        _add_gaps_of_block(found, block, facts)
        if block.get("cache_control"):
            found.append(Gap("cache_control", How.DROPPED, "the text that it becomes a part of has no marks within"))


def _add_gap_of_citing(found: list[Gap], block: Json, facts: ServerFacts) -> None:
    """Citations that are asked for are output: without them the answer is another one."""
    if object_of(block.get("citations")).get("enabled"):
        how = How.APPROXIMATED if facts.approximates else How.REFUSED
        found.append(Gap(f"messages.{block['type']}.citations", how, "the target does not cite"))


# --- The fields of what stands within a request and is judged by nobody else ---


_MOST_DEPTH: Final = 3
"""How deep blocks stand in blocks: in results of tools, and in documents in these."""


def _mark(gap: str) -> Form:
    return form(gap, "type ttl")


def _blocks(depth: int) -> Form:
    """Returns the form of a content's blocks, whose own fields are judged where they are converted."""
    inner = {"content": _blocks(depth - 1)} if depth else {}
    source = form("messages.other", "type media_type data url file_id", **inner)
    usual = form(
        "",
        "",
        source=source,
        cache_control=_mark("messages.other"),
        citations=form("messages.other", "enabled"),
        **inner,
    )
    text = form("", "", cache_control=_mark("messages.other"))
    return form(
        "",
        "",
        {
            "text": text,
            **dict.fromkeys(("image", "document", "search_result", "tool_reference", "tool_use", "tool_result"), usual),
        },
    )


_BLOCKS: Final = _blocks(_MOST_DEPTH)
_FORMAT: Final = form("output_config.other", "type schema")
MESSAGES: Final = form(
    "",
    "",
    system=_BLOCKS,
    messages=form("", "", content=_BLOCKS),
    tools=form(
        "",
        "",
        cache_control=_mark("tools.other"),
        user_location=form("tools.other", "type city country region timezone"),
    ),
    tool_choice=form("tool_choice.other", "type name disable_parallel_tool_use"),
    cache_control=_mark("other"),
    output_config=form("", "", format=_FORMAT),
    output_format=_FORMAT,
)
"""A request of Messages, without the fields that `gaps_of` looks at. Source: Anthropic's API reference, Messages."""


# --- The translator ---


class MessagesOverChat:
    """Serves a caller of Messages by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return gaps_of(body, facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost = gaps_of(body, facts)
        return ConvertedRequest(in_request.chat_body(body, facts), body, new_id(), now, gaps=lost)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return message_of_chat(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsMessages(sent)
