"""What of a chat completion Messages cannot say, field by field, with the reason.

Source: Anthropic's API reference, and what others lost in silence (maximhq/bifrost#5274, vercel/ai#18982).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.types import Gap, How
from gateway.dialects.anthropic.out_request.tools import (
    MOST_MARKS,
    PDF,
    PICTURES,
    has_mark,
    is_blank,
    mark_of,
    most_marks,
    picture_url,
)
from gateway.dialects.base import MOST_NAMED, FieldGaps, Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.memory import (
    MOST_TURN_BYTES,
    Presumed,
    SignedElsewhere,
    TurnMemory,
    UnknownMemory,
    VisibleTurn,
    unechoed,
)
from gateway.dialects.schema_tools.media import URLS, data_url, file_of, is_text, type_of_name
from gateway.dialects.schema_tools.outline import ChatOutline, gaps_of_chat, outline

# The content of a turn of Claude's, whole: how it is remembered from an answer, and put back into a request.
#
# Chat completions have thoughts, words and calls apart, and so no order of a turn that thinks, calls and thinks again. Who
# repeats it in another one is refused (400 `thinking blocks ... cannot be modified`) for as long as it stays in the
# conversation (maximhq/bifrost#6342).


_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_KNOWN: Final = _THOUGHTS | {"text", "tool_use"}
"""The blocks of which a caller hears; what has others cannot be repeated by one."""
_CITATION_CHARACTERS: Final = 64
"""What a citation is at least, besides the words that it cites."""


class Recalled(NamedTuple):
    """What is known of turns that came back without their thoughts."""

    contents: Mapping[int, list[Json]]
    """By the numbers of their messages."""
    has_foreign: bool
    """Some were signed by another provider."""


NOTHING: Final = Recalled({}, has_foreign=False)


def recalled(body: Json, facts: ServerFacts) -> Recalled:
    """Returns what is remembered of a request's turns.

    Where a model takes thoughts back only behind what it thought them after, that ends with the first turn that is not
    remembered: what follows was thought behind more than is there now.
    """
    if facts.memory is None:
        return NOTHING
    if isinstance(facts.memory, UnknownMemory):
        return Recalled(Presumed(body.get("messages")), has_foreign=False)
    found: dict[int, list[Json]] = {}
    has_foreign = False
    for number, turn in unechoed(body.get("messages")):
        content = facts.memory.find(turn)
        if type(content) is list:
            found[number] = content
        else:
            has_foreign = has_foreign or content is SignedElsewhere.BY_ANOTHER
            if facts.model.binds_thinking:
                break
    return Recalled(found, has_foreign) if found or has_foreign else NOTHING


def with_marks(content: list[Json], blocks: list[Json]) -> list[Json]:
    """Returns a remembered content with the marks for the cache that the caller has put on the same turn."""
    for block in blocks:
        if "cache_control" not in block:
            continue
        same = [one for one in content if one["type"] == block["type"] and one.get("id") == block.get("id")]
        if same:
            same[-1]["cache_control"] = block["cache_control"]
    return content


def keep_message(content: list[Any], memory: TurnMemory | None) -> None:
    """Remembers the content of a whole message, if there are calls in it."""
    if memory is None:
        return
    blocks = objects(content)
    calls = [
        (block["id"], block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"
    ]
    kinds = {text_of(block.get("type")) for block in blocks}
    if (
        not calls
        or not kinds <= _KNOWN
        or any(one["type"] == "thinking" and not one.get("signature") for one in blocks)
    ):
        return
    words = [text_of(block.get("text")) for block in blocks if block.get("type") == "text"]
    kept = [block for block in blocks if block["type"] != "text" or not is_blank(text_of(block.get("text")))]
    memory.keep(VisibleTurn(calls, "".join(words)), kept, has_thoughts=not _THOUGHTS.isdisjoint(kinds))


class OpenTurn:
    """Puts the blocks of a stream together, as far as there is room."""

    __slots__ = ("_blocks", "_citations", "_is_lost", "_parts", "_signatures", "_size")

    def __init__(self) -> None:
        self._blocks: dict[int, Json] = {}
        self._parts: dict[int, list[str]] = {}
        self._citations: dict[int, list[Json]] = {}
        self._signatures: dict[int, str] = {}
        self._size = 0
        self._is_lost = False

    def open(self, place: int, block: Json) -> None:
        """Takes a block that begins; one that is not known, or begins again, makes the turn one that cannot be repeated."""
        if text_of(block.get("type")) not in _KNOWN or place in self._blocks:
            self._lose()
        if not self._is_lost:
            self._blocks[place] = block
            self._parts[place] = []

    def grow(self, place: Any, text: str) -> None:
        """Takes more of a block's text, thought or arguments."""
        parts = self._parts.get(place) if type(place) is int else None
        if parts is None:
            return
        parts.append(text)
        self._size += len(text)
        if self._size > MOST_TURN_BYTES:
            self._lose()

    def sign(self, place: Any, signature: str) -> None:
        """Takes the signature of a thought."""
        if signature and type(place) is int:
            self._signatures[place] = signature

    def cite(self, place: Any, citation: Json) -> None:
        """Takes a citation of a text."""
        if type(place) is not int or place not in self._blocks:
            return
        self._citations.setdefault(place, []).append(citation)
        self._size += _CITATION_CHARACTERS + len(text_of(citation.get("cited_text")))
        if self._size > MOST_TURN_BYTES:
            self._lose()

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn that has come to its end, if all of it is there."""
        content = self.blocks()
        if content is not None:
            keep_message(content, memory)

    def blocks(self) -> list[Json] | None:
        """Returns the blocks of a turn with calls that has come to its end; None: not all of it is there, or it has none."""
        if self._is_lost or not any(block["type"] == "tool_use" for block in self._blocks.values()):
            return None
        try:
            return [self._whole(place, self._blocks[place]) for place in sorted(self._blocks)]
        except orjson.JSONDecodeError:
            return None

    def _whole(self, place: int, block: Json) -> Json:
        text = "".join(self._parts[place])
        if block["type"] == "tool_use":
            return {**block, "input": orjson.loads(text) if text else object_of(block.get("input"))}
        if block["type"] == "text":
            cited = [*objects(block.get("citations")), *self._citations.get(place, ())]
            return {**block, "text": text} | ({"citations": cited} if cited else {})
        if block["type"] == "redacted_thinking":
            return block
        return {**block, "thinking": text, "signature": self._signatures.get(place, "")}

    def _lose(self) -> None:
        self._is_lost = True
        self._blocks, self._parts, self._citations = {}, {}, {}


# What Claude thought, as a chat completion carries it: `reasoning_details`, which go back byte for byte.
#
# A block that is changed, moved or not signed is refused, for as long as it stays in the conversation (maximhq/bifrost#6342).
# So each detail has the block's place in the answer as its `index`; a stream tells a block in pieces of one index, the
# `format` with one of them only, because clients put the strings of pieces together.


FORMAT: Final = "anthropic-claude-v1"
_TEXT: Final = "reasoning.text"
_ENCRYPTED: Final = "reasoning.encrypted"


def detail_of(block: Json, index: int) -> Json | None:
    """Returns a block of thoughts as a detail; None: it is another block."""
    if block.get("type") == "redacted_thinking":
        return {"type": _ENCRYPTED, "data": block.get("data"), "format": FORMAT, "index": index}
    if block.get("type") != "thinking":
        return None
    made = {"type": _TEXT, "text": text_of(block.get("thinking")), "format": FORMAT, "index": index}
    return made | ({"signature": block["signature"]} if block.get("signature") else {})


def thought_blocks(message: Json) -> list[tuple[int | None, Json]]:
    """Returns the blocks that can go back, each with its place among the message's blocks, in their order.

    A message may have them as they are, too, without their places (`thinking_blocks`).
    """
    if "reasoning_details" not in message and "thinking_blocks" not in message:
        return []
    found = [
        (place if type(place := detail.get("index")) is int else None, block)
        for detail in _whole_details(message.get("reasoning_details"))
        if (block := _block_of(detail)) is not None
    ]
    if found:
        return sorted(found, key=lambda placed: -1 if placed[0] is None else placed[0])
    blocks = map(_own_block, objects(message.get("thinking_blocks")))
    return [(None, block) for block in blocks if block is not None]


def put_back(blocks: list[Json], thoughts: list[tuple[int | None, Json]]) -> None:
    """Puts thoughts to their places among a message's other blocks; those without a place stand before them.

    Texts were joined, and blank ones are gone, so that a place may be behind them all, where no thought ever stands: it is
    followed by what it led to (400 `The final block in an assistant message cannot be thinking`).
    """
    last = max(0, len(blocks) - 1)
    for number, (place, block) in enumerate(thoughts):
        blocks.insert(number if place is None else max(0, min(place, last + number)), block)


def has_foreign(message: Json) -> bool:
    """Returns whether a message has thoughts that cannot go back: another provider's, or unsigned ones."""
    return any(_block_of(detail) is None for detail in _whole_details(message.get("reasoning_details")))


def lacks_thoughts(messages: Any, recalled: Container[int]) -> bool:
    """Returns whether results of tools follow calls last whose thoughts did not come back; nor are they `recalled`, by number.

    A model with a budget for thinking refuses that; one that thinks as it sees fit does not (BerriAI/litellm#15601).
    """
    given = messages if isinstance(messages, list) else []
    for number in range(len(given) - 1, -1, -1):
        message = object_of(given[number])
        if message.get("role") == "assistant":
            return number not in recalled and not thought_blocks(message)
        if message.get("role") not in ("tool", "function"):
            return False
    return False


def _whole_details(details: Any) -> Iterator[Json]:
    """Yields details, the pieces of which a client may have left apart."""
    whole: Json | None = None
    for detail in objects(details):
        if whole is not None and _is_piece(whole, detail):
            whole["text"] = text_of(whole.get("text")) + text_of(detail.get("text"))
            whole |= {name: detail[name] for name in ("signature", "format") if detail.get(name)}
            continue
        if whole is not None:
            yield whole
        whole = dict(detail)
    if whole is not None:
        yield whole


def _is_piece(whole: Json, detail: Json) -> bool:
    is_of_one = type(whole.get("index")) is int and whole["index"] == detail.get("index")
    return is_of_one and whole.get("type") == detail.get("type") == _TEXT


def _block_of(detail: Json) -> Json | None:
    if not text_of(detail.get("format")).startswith(FORMAT):  # clients may have put the same word together
        return None
    if detail.get("type") == _ENCRYPTED:
        return _redacted(detail)
    return _thinking(detail, "text") if detail.get("type") == _TEXT else None


def _own_block(block: Json) -> Json | None:
    if block.get("type") == "redacted_thinking":
        return _redacted(block)
    return _thinking(block, "thinking") if block.get("type") == "thinking" else None


def _redacted(given: Json) -> Json | None:
    data = given.get("data")
    return {"type": "redacted_thinking", "data": data} if isinstance(data, str) and data else None


def _thinking(given: Json, name: str) -> Json | None:
    signature = given.get("signature")
    if not isinstance(signature, str) or not signature:
        return None
    return {"type": "thinking", "thinking": text_of(given.get(name)), "signature": signature}


_HINT: Final = "the target has no such option"
_OUTPUT: Final = "the target cannot answer so"

CHAT_ONLY: Final[FieldGaps] = {
    "audio": (How.REFUSED, _OUTPUT, ()),
    "logprobs": (How.REFUSED, _OUTPUT, (False,)),
    "modalities": (How.REFUSED, "the target answers with text alone", (["text"],)),
    "n": (How.REFUSED, "the target gives one answer", (1,)),
    "top_logprobs": (How.REFUSED, _OUTPUT, (0,)),
    "web_search_options": (How.REFUSED, "the target searches by a tool of its own", ()),
    "frequency_penalty": (How.DROPPED, _HINT, (0,)),
    "logit_bias": (How.DROPPED, _HINT, ({},)),
    "metadata": (How.DROPPED, _HINT, ({},)),
    "moderation": (How.DROPPED, _HINT, ()),
    "prediction": (How.DROPPED, _HINT, ()),
    "presence_penalty": (How.DROPPED, _HINT, (0,)),
    "prompt_cache_key": (How.DROPPED, _HINT, ()),
    "prompt_cache_options": (How.DROPPED, "marks say what the target is to keep", ()),
    "prompt_cache_retention": (How.DROPPED, "marks say what the target is to keep", ()),
    "seed": (How.DROPPED, _HINT, ()),
    "store": (How.DROPPED, "the target keeps no answers", (False,)),
    "verbosity": (How.DROPPED, _HINT, ("medium",)),
}
"""Top-level fields of a chat completion: what becomes of each in a Messages request, and the values that mean nothing."""

_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "thinking", "user", "safety_identifier", "service_tier",
        "cache_control",
    )
)  # fmt: skip
"""Fields that are said in Messages, or whose gaps depend on more than themselves."""
_PARTS: Final = frozenset(("text", "refusal", "image_url", "file"))
_NOTED: Final = frozenset(
    (
        "name", "audio", "refusal", "tool_calls", "reasoning_details", "reasoning_content", "reasoning", "thinking_blocks",
        "cache_control", "prompt_cache_breakpoint",
    )
)  # fmt: skip
"""Fields of a message that may be lost, or go with it."""
_NOT_ITS_OWN: Final = "thoughts go back to the provider that signed them, and to no other"
_BOUND: Final = "the model takes thoughts back only behind what it thought them after"
_IN_PLACE: Final = "instructions between the messages become a user's words, in their place"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own."""
    return gaps_of_chat(body, _SETTLED, CHAT_ONLY)


def gaps_of_recalled(recalled: Recalled, *, keeps_thoughts: bool) -> list[Gap]:
    """Returns the gap of turns whose thoughts are remembered but cannot go back."""
    if recalled.has_foreign:
        return [Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN)]
    if not keeps_thoughts and any(recalled.contents.values()):
        return [Gap("messages.reasoning_details", How.DROPPED, _BOUND)]
    return []


def gaps_of_messages(
    body: Json, facts: ServerFacts, recalled: Container[int], *, keeps_thoughts: bool, looks: ChatOutline | None = None
) -> list[Gap]:
    """Returns the gaps among a chat completion's messages; of those `recalled`, by number, the thoughts are remembered.

    `looks`: the messages' outline, where it was made.
    """
    found: list[Gap] = []
    marks, looks = _marks_of_tools(body), looks or outline(body.get("messages"))
    for number, message in looks.notable:
        role = message.get("role")
        content = message.get("content")
        if type(content) is list:
            marks += _read_parts(content, role, found)
        if _NOTED.isdisjoint(message):
            continue
        marks += _mark(message, found)
        if message.get("name") and role not in ("tool", "function"):
            found.append(Gap("messages.name", How.DROPPED, "the target knows no names of speakers"))
        if role == "assistant":
            if not keeps_thoughts and thought_blocks(message):
                found.append(Gap("messages.reasoning_details", How.DROPPED, _BOUND))
            _read_answer(message, found, is_recalled=keeps_thoughts and number in recalled)
    if looks.has_later_system and not facts.model.later_system:
        found.append(Gap("messages.system", How.APPROXIMATED, _IN_PLACE))
    if looks.begins_at is None:
        found.append(Gap("messages.system", How.APPROXIMATED, "instructions alone become a user's words"))
    if marks > most_marks(body):
        found.append(Gap("cache_control", How.APPROXIMATED, f"the last {MOST_MARKS} marks for the cache are kept"))
    return found


def _read_answer(message: Json, found: list[Gap], *, is_recalled: bool) -> None:
    """Looks at what the model has said before."""
    if message.get("audio"):
        found.append(Gap("messages.audio", How.REFUSED, "the target does not hear what it said"))
    if message.get("refusal"):
        found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
    for call in objects(message.get("tool_calls")):
        if call.get("type", "function") != "function":
            found.append(Gap("messages.tool_calls.custom", How.REFUSED, "the target has functions alone as tools"))
        if call.get("extra_content"):
            found.append(Gap("messages.tool_calls.extra_content", How.DROPPED, _NOT_ITS_OWN))
    if message.get("reasoning_details") and has_foreign(message):
        found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought and not is_recalled and not message.get("reasoning_details") and not message.get("thinking_blocks"):
        found.append(Gap("messages.reasoning_content", How.DROPPED, "thoughts that nobody signed cannot go back"))


def _read_parts(parts: list[object], role: object, found: list[Gap]) -> int:
    """Looks at a message's parts. Returns the number of its marks for the cache."""
    marks = 0
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "image_url":
            _read_picture(part, found)
        elif kind == "file":
            _read_file(object_of(part.get("file")), found)
        elif kind == "refusal" and role == "assistant":
            found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
        elif kind != "text" and text_of(kind) not in _PARTS:
            found.append(Gap(f"messages.{text_of(kind)}"[:MOST_NAMED], How.REFUSED, "the target takes no such part"))
        marks += _mark(part, found)
    return marks


def _mark(given: Json, found: list[Gap]) -> int:
    if not has_mark(given):
        return 0
    mark = mark_of(given)
    if mark is not None and mark is not given.get("cache_control"):
        found.append(Gap("messages.prompt_cache_breakpoint", How.APPROXIMATED, "the target keeps it for an hour"))
    return mark is not None


def _marks_of_tools(body: Json) -> int:
    tools = objects(body.get("tools"))
    return sum(1 for tool in tools if (mark_of(tool) or mark_of(object_of(tool.get("function")))) is not None)


def _read_picture(part: Json, found: list[Gap]) -> None:
    detail = object_of(part.get("image_url")).get("detail")
    if detail and detail != "auto":
        found.append(Gap("messages.image_url.detail", How.DROPPED, _HINT))
    url = picture_url(part) or ""
    media = data_url(url[: url.find(",") + 1]) if url[:5].lower() == "data:" else None
    if media is not None and media.type not in PICTURES:
        found.append(Gap("messages.image_url", How.REFUSED, "the target takes PNG, JPEG, GIF and WebP"))


def _read_file(file: Json, found: list[Gap]) -> None:
    if file.get("file_id"):
        found.append(Gap("messages.file.file_id", How.REFUSED, "files of a provider are unknown to others"))
    elif isinstance(data := file.get("file_data"), str):
        if data.startswith(URLS):
            is_taken = type_of_name(data) == PDF
        else:
            media = file_of(data[: data.find(",") + 1] if data[:5].lower() == "data:" else "", file.get("filename"))
            is_taken = media.type == PDF or is_text(media.type)
        if not is_taken:
            found.append(Gap("messages.file", How.REFUSED, "the target takes PDF and texts"))
