"""A chat completion as a message: what a model thought, said and called becomes blocks.

The id of the answer is made from `ConvertedRequest.id`, because ids are each provider's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from gateway.core.openai.json_edit.json_text import is_too_deep
from gateway.core.openai.sse.first_event import failed_finish_message, failed_reason
from gateway.core.openai.sse.sse import json_object
from gateway.core.openai.usage.usage import estimate_usage
from gateway.dialects.anthropic.in_answer import ids
from gateway.dialects.anthropic.in_request import thinking
from gateway.dialects.base.base import (
    BY_TTL,
    ConvertedRequest,
    Json,
    MalformedAnswer,
    count_in,
    object_of,
    objects,
    strings,
    text_of,
    written_by_ttl,
)
from gateway.dialects.openai.responses_answer.responses_answer import (
    argument_in,
    first_choice,
    named_in,
    pieces_in,
    words_in,
)

_STOPS: Final = {"length": "max_tokens", "content_filter": "refusal"}
"""Why an answer ended before its model had said all, by a chat completion's finish reason."""
CUT: Final = frozenset(_STOPS)
_TIERS: Final = {"default": "standard", "priority": "priority"}


def message_of_chat(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the message. Raises MalformedAnswer where there is none, or a call in it makes no sense."""
    choice = first_choice(body)
    said = choice.get("message")
    if not isinstance(said, dict):
        raise MalformedAnswer("the answer has no message")
    if (reason := failed_reason(body)) is not None:
        raise MalformedAnswer(failed_finish_message(reason))
    finish = text_of(choice.get("finish_reason"))
    refusal = text_of(said.get("refusal"))
    thought, text = words_in(said)
    said_all = text + refusal
    blocks: list[Json] = [{"type": "text", "text": said_all}] if said_all.strip() else []
    extras: dict[str, Json] = {}
    calls = _calls(sent, said, finish, extras)
    blocks += calls
    _put_in(blocks, thought, objects(said.get("reasoning_details")))
    if extras:
        blocks = [one for block in blocks for one in _with_extra(block, extras)]
    if calls and thinking.is_to_mark(sent.asked) and not any(block["type"] in thinking.THOUGHTS for block in blocks):
        blocks.insert(blocks.index(calls[0]), thinking.redacted_block(thinking.MARK))
    return begun(sent, body) | {
        "content": blocks,
        **ended(sent, choice, finish, has_calls=bool(calls), is_refused=bool(refusal)),
        "usage": usage_of(body) or estimated(sent, body, _told(blocks)),
    }


def begun(sent: ConvertedRequest, said: Json) -> Json:
    """Returns a message that has just begun; `said` is a chat completion or a piece of one."""
    return {
        "id": f"msg_{sent.id}",
        "type": "message",
        "role": "assistant",
        "model": text_of(said.get("model")) or text_of(sent.asked.get("model")),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def ended(sent: ConvertedRequest, choice: Json, finish: str, *, has_calls: bool, is_refused: bool) -> Json:
    """Returns why a message ended.

    Called tools make it one that waits for them, whatever they are called with (ENTERPILOT/GoModel#124), but not where it was
    cut (NousResearch/hermes-agent#43478). vLLM names the sequence that it stopped at.
    """
    reason = _STOPS.get(finish) or ("refusal" if is_refused else "tool_use" if has_calls else "end_turn")
    met = choice.get("stop_reason")
    if reason == "end_turn" and isinstance(met, str) and met in strings(sent.asked.get("stop_sequences")):
        return {"stop_reason": "stop_sequence", "stop_sequence": met}
    made: Json = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        made["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return made


def usage_of(said: Json) -> Json | None:
    """Returns a chat completion's usage in the words of Messages, whose input is without what a cache has done."""
    usage = said.get("usage")
    if not isinstance(usage, dict):
        return None
    came = object_of(usage.get("prompt_tokens_details"))
    read, written = count_in(came, "cached_tokens"), count_in(came, "cache_write_tokens")
    read = read or count_in(usage, "prompt_cache_hit_tokens")  # DeepSeek's name
    made: Json = {
        "input_tokens": max(0, count_in(usage, "prompt_tokens") - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": count_in(usage, "completion_tokens"),
    }
    if by_ttl := written_by_ttl(came.get(BY_TTL)):
        made["cache_creation"] = by_ttl
    if thought := count_in(object_of(usage.get("completion_tokens_details")), "reasoning_tokens"):
        made["output_tokens_details"] = {"thinking_tokens": thought}
    return made | tier_of(said)


def estimated(sent: ConvertedRequest, said: Json, told: int) -> Json:
    """Returns a usage where none is known: by the size of the request, without its pictures, and the characters `told`.

    It says so, that nobody takes it for the provider's word.
    """
    asked = {**sent.asked, "messages": [_without_media(one) for one in objects(sent.asked.get("messages"))]}
    usage = estimate_usage(orjson.dumps(asked, option=orjson.OPT_NON_STR_KEYS), tokens_in(told))
    return {"input_tokens": usage.input, "output_tokens": usage.output, "estimated": True} | tier_of(said)


def _without_media(message: Json) -> Json:
    """Returns a message, or the result of a tool, without its pictures and files: to write and search those takes long."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    made = []
    for block in content:
        source = block.get("source") if isinstance(block, dict) else None
        if isinstance(source, dict) and source.get("type") == "base64":
            block = {**block, "source": {**source, "data": ""}}
        elif isinstance(block, dict) and "content" in block:
            block = _without_media(block)
        made.append(block)
    return {**message, "content": made}


def tokens_in(told: int) -> int:
    """Returns about how many tokens so many characters are."""
    return -(-told // 4)


def tier_of(said: Json) -> Json:
    """Returns which tier has answered, if it is one of Anthropic's, too."""
    tier = _TIERS.get(text_of(said.get("service_tier")))
    return {"service_tier": tier} if tier else {}


def call_id(sent: ConvertedRequest, number: int) -> str:
    """Returns an id for a call that came without one, unlike those of other turns."""
    return f"toolu_{sent.id}{number:02d}"


def _with_extra(block: Json, extras: dict[str, Json]) -> Iterator[Json]:
    """Yields a block, and before it what its provider has said of a call besides."""
    id = block.get("id")
    if id in extras:
        yield thinking.extra_block(id, extras[id])
    yield block


def _calls(sent: ConvertedRequest, said: Json, finish: str, extras: dict[str, Json]) -> list[Json]:
    """Returns the calls as blocks; one goes where the answer was cut in the middle of it.

    `extras` gets what their provider has said of each besides.
    """
    found = pieces_in(said)
    names = ids.names_back(sent.asked) if found else {}
    blocks: list[Json] = []
    used: set[str] = set()
    for number, call in enumerate(found):
        named = named_in(call)
        name, told = text_of(named.get("name")), argument_in(named)
        if not name:
            raise MalformedAnswer("the answer calls a tool without a name")
        given = told.encode(errors="replace")
        arguments = json_object(given) if told.strip() else {}
        if arguments is None or is_too_deep(given):
            if finish in CUT:
                continue
            raise MalformedAnswer("the answer calls a tool with something else than a JSON object")
        given_id = text_of(call.get("id"))  # of calls of one id, only the first can be answered by it
        id = ids.id_back(given_id) if given_id and given_id not in used else call_id(sent, number)
        used.add(given_id)
        if extra := object_of(call.get("extra_content")):
            extras[id] = extra
        blocks.append({"type": "tool_use", "id": id, "name": names.get(name, name), "input": arguments})
    return blocks


def _told(blocks: list[Json]) -> int:
    """Returns how many characters the words and arguments of these blocks have."""
    words = (block.get("text") or block.get("thinking") or "" for block in blocks)
    inputs = (orjson.dumps(block["input"]) for block in blocks if "input" in block)
    return sum(map(len, words)) + sum(map(len, inputs))


def _put_in(blocks: list[Json], thought: str, details: list[Json]) -> None:
    """Puts what the model thought where it was: each block before what followed it, by its `index`."""
    made: list[tuple[int, Json]] = []
    words = next((detail for detail in details if thinking.words_of(detail)), None)
    if thought and words is None:
        made.append((0, thinking.thinking_block(thought)))
    for detail in details:
        place = detail.get("index")
        block = _block(detail)
        if block is not None:
            made.append((place if type(place) is int else 0, block))
    least = 0
    for place, block in sorted(made, key=_place):
        at = max(place, least)
        blocks.insert(at, block)
        least = min(at, len(blocks) - 1) + 1


def _place(one: tuple[int, Json]) -> int:
    return one[0]


def _block(detail: Json) -> Json | None:
    proof = thinking.signature_for(detail)
    if detail.get("type") == "reasoning.encrypted":
        return thinking.redacted_block(proof) if proof else None
    text = thinking.words_of(detail)
    return thinking.thinking_block(text, proof) if text or proof else None
