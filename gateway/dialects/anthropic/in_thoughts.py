"""What a model thought, on its way through a client of Messages and back.

First the mark that stands where a signature would and the blocks that carry it; then requests without the thoughts that their
target does not understand.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.core.openai.sse import json_object
from gateway.core.types import Gap, How
from gateway.dialects.base import Json, object_of, objects, text_of
from gateway.dialects.issuers import NOT_ITS_OWN, read_exactly, written

MARK: Final = "gw1."
"""How a signature of ours begins; Anthropic's are Base64, which has no dot."""
CLAUDE_FORMAT: Final = "anthropic-claude-v1"
"""Marks what a model of Anthropic's thought, in the `reasoning_details` of a message."""
THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_WORDS: Final = ("text", "summary")
_BYTES: Final = b'"' + MARK.encode()
_FOREIGN_THOUGHT: Final = Gap("messages.thinking", How.DROPPED, NOT_ITS_OWN)


def marked(holds: Json | None = None) -> str:
    """Returns a mark, and in it what is to come back; what is nested too deeply to be written again is not.

    Clients of Messages repeat thinking blocks as they got them, with their signatures. Reasoning that nobody signed gets a
    mark of ours in the signature's place, because clients refuse an empty one; what another provider wants back with the
    conversation rides in the mark. A marked block is for its own target only: `without_marks` takes it out of what goes to
    Anthropic.
    """
    try:
        return MARK + (urlsafe_b64encode(orjson.dumps(holds)).decode() if holds else "")
    except orjson.JSONEncodeError:
        return MARK


def held_by(mark: str) -> Json | None:
    """Returns what a mark of ours holds, which may be nothing; None: it is none of ours."""
    if not mark.startswith(MARK):
        return None
    try:
        return json_object(urlsafe_b64decode(mark[len(MARK) :])) or {}
    except ValueError:
        return {}


def signature_of(block: Json) -> str:
    """Returns what proves whose a thinking block is; empty where nothing does."""
    return text_of(block.get("signature" if block.get("type") == "thinking" else "data"))


def words_of(detail: Json) -> str:
    """Returns what a detail of reasoning says in plain words."""
    return text_of(detail.get("text")) or text_of(detail.get("summary"))


def detail_of_block(block: Json, place: int) -> Json | None:
    """Returns a thinking block as a detail of reasoning; None: nobody signed it. `place`: its own among the blocks."""
    signature = signature_of(block)
    held = held_by(signature)
    if held is not None:
        words = {"summary" if held.get("type") == "reasoning.summary" else "text": text_of(block.get("thinking"))}
        kept = held if block["type"] == "redacted_thinking" else held | words
        return {**kept, "index": place} if "type" in held else None
    if not signature:
        return None
    if block["type"] == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": signature, "format": CLAUDE_FORMAT, "index": place}
    detail = {"type": "reasoning.text", "text": text_of(block.get("thinking")), "signature": signature}
    return {**detail, "format": CLAUDE_FORMAT, "index": place}


def signature_for(detail: Json) -> str:
    """Returns what a client is to keep of a detail: Anthropic's own signature, or a mark that holds another's; or nothing."""
    kind = "data" if detail.get("type") == "reasoning.encrypted" else "signature"
    proof = text_of(detail.get(kind))
    if not proof or text_of(detail.get("format")).startswith(CLAUDE_FORMAT):
        return proof
    return marked({name: value for name, value in detail.items() if name not in (*_WORDS, "index")})


def thinking_block(text: str, signature: str = "") -> Json:
    return {"type": "thinking", "thinking": text, "signature": signature or MARK}


def redacted_block(data: str) -> Json:
    return {"type": "redacted_thinking", "data": data}


def extra_block(call: str, extra: Json) -> Json:
    """Returns the block that keeps what a provider adds to a call, such as Gemini's signature of its thought."""
    return redacted_block(marked({"call": call, "extra_content": extra}))


def is_to_mark(request: Json) -> bool:
    """Returns whether a turn with calls but without a thought is to have a mark, which tells that it is foreign."""
    return object_of(request.get("thinking")).get("type") == "enabled"


# --- requests without the thoughts that their target does not understand ---


def without_marks(body: bytes) -> tuple[bytes, list[Gap]]:
    """Returns a request for Anthropic without the thinking blocks that only other providers understand, and what that loses.

    Costs one search where there are none, and then the very bytes come back; a turn that was nothing else goes, too.
    """
    if _BYTES not in body:
        return body, []
    made, lost = without_thoughts(body, _is_mark)
    return made, [gap for gap in lost if gap is not _FOREIGN_THOUGHT]


def without_thoughts(body: bytes, is_left: Callable[[str], bool]) -> tuple[bytes, list[Gap]]:
    """Returns a request of Messages without the thinking blocks with such signatures, and what that loses.

    The very bytes come back where there are none; a turn that was nothing else goes, too.
    """
    parsed = read_exactly(body)
    messages = None if parsed is None else parsed.get("messages")
    if parsed is None or not isinstance(messages, list):
        return body, []
    kept = [message for message in (_without(one, is_left) for one in messages) if message is not None]
    if len(kept) == len(messages) and all(one is other for one, other in zip(kept, messages, strict=True)):
        return body, []
    left = {**parsed, "messages": kept}
    lost = _without_thinking(left) if is_to_mark(left) and _lacks_thought(kept) else []
    return written(left, body), [*lost, _FOREIGN_THOUGHT]


def _lacks_thought(messages: list[Any]) -> bool:
    """Returns whether results of tools come last, and the turn that called them begins without a thought.

    Anthropic refuses that of models with a budget for thinking (BerriAI/litellm#15601).
    """
    has_results = False
    turn: list[Json] = []
    for message in reversed(messages):
        role, content = object_of(message).get("role"), objects(object_of(message).get("content"))
        if role == "user" and not turn:
            has_results = has_results or any(block.get("type") == "tool_result" for block in content)
        elif role == "assistant":
            turn = content or turn
        else:
            break
    return has_results and bool(turn) and turn[0].get("type") not in THOUGHTS


def _without_thinking(body: Json) -> list[Gap]:
    """Takes out of a request what has the model think, and what is to become of its thoughts."""
    del body["thinking"]
    managed = object_of(body.get("context_management"))
    if edits := objects(managed.get("edits")):
        left = [edit for edit in edits if not text_of(edit.get("type")).startswith("clear_thinking")]
        if len(left) < len(edits):
            body["context_management"] = {**managed, "edits": left}
    return [
        Gap("thinking", How.DROPPED, "the calls before the results are another provider's, and came without a thought")
    ]


def _without(message: Any, is_left: Callable[[str], bool]) -> Any:
    """Returns the message, itself where nothing of it is left out; None: nothing would be left."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    thoughts = [one for one in objects(content) if one.get("type") in THOUGHTS and is_left(signature_of(one))]
    if not thoughts:
        return message
    gone = set(map(id, thoughts))
    left = [block for block in content or () if id(block) not in gone]
    return {**message, "content": left} if left else None


def _is_mark(signature: str) -> bool:
    return signature.startswith(MARK)
