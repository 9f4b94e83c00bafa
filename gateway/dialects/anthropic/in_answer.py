"""What chat completions answer, for callers of Messages: what a model thought, said and called becomes blocks.

In this order: a whole message, blocks that grow (`MessageBlock`, `ToolUse`), how they follow each other (`MessageBlocks`),
the stream (`ChatAsMessages`). The id of the answer is made from `ConvertedRequest.id`, because ids are each provider's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import orjson

from gateway.core.openai.json_edit import is_too_deep
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import INPUTS, estimate_input_tokens, filled, tier_named
from gateway.core.types import Usage
from gateway.dialects.anthropic import in_thoughts
from gateway.dialects.anthropic.in_thoughts import MARK
from gateway.dialects.base import (
    ENDED_WELL,
    ConvertedRequest,
    Json,
    MalformedAnswer,
    after_null,
    finish_in,
    is_no_argument,
    message_usage,
    object_of,
    objects,
    strings,
    text_of,
    usage_of_answer,
)
from gateway.dialects.openai.responses_answer import argument_in, first_choice, named_in, pieces_in, words_in
from gateway.dialects.schema_tools.tools import id_back, names_back
from gateway.dialects.shapes import message_error
from gateway.dialects.streams import ChatStreamReader, data_of

# --- A whole message ---


_STOPS: Final = {"length": "max_tokens", "content_filter": "refusal"}
"""Why an answer ended before it was whole, by a chat completion's finish reason."""
CUT: Final = frozenset(_STOPS)
_OWN: Final = ("model_context_window_exceeded",)
"""Finish reasons of some servers that are Anthropic's own words."""
_TIERS: Final = {"default": "standard", "priority": "priority"}


def message_of_chat(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the message. Raises MalformedAnswer where there is none, or a call in it makes no sense."""
    choice = first_choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedAnswer("the answer has no message")
    finish = finish_in(choice)
    refusal = text_of(message.get("refusal"))
    thought, text = words_in(message)
    written = text + refusal
    blocks: list[Json] = [{"type": "text", "text": written}] if written.strip() else []
    extras: dict[str, Json] = {}
    calls = _calls(sent, message, finish, extras)
    blocks += calls
    _put_in(blocks, thought, objects(message.get("reasoning_details")))
    held, blocks = blocks, []
    for block in held:
        if (id := block.get("id")) in extras:  # what a provider adds to a call stands before it
            blocks.append(in_thoughts.extra_block(id, extras[id]))
        blocks.append(block)
    has_thought = any(block["type"] in in_thoughts.THOUGHTS for block in blocks)
    if calls and not has_thought and in_thoughts.is_to_mark(sent.source):
        blocks.insert(blocks.index(calls[0]), in_thoughts.redacted_block(MARK))
    words = (block.get("text") or block.get("thinking") or "" for block in blocks)
    inputs = (orjson.dumps(block["input"]) for block in blocks if "input" in block)
    characters = sum(map(len, words)) + sum(map(len, inputs))
    return begun(sent, body) | {
        "content": blocks,
        **ended(sent, choice, finish, has_calls=bool(calls), is_refused=bool(refusal)),
        "usage": reported_usage(used(sent, body, characters), body),
    }


def begun(sent: ConvertedRequest, chunk: Json) -> Json:
    """Returns a message that has just begun; `chunk` is a chat completion or a piece of one."""
    return {
        "id": f"msg_{sent.id}",
        "type": "message",
        "role": "assistant",
        "model": text_of(chunk.get("model")) or text_of(sent.source.get("model")),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def ended(sent: ConvertedRequest, choice: Json, finish: str, *, has_calls: bool, is_refused: bool) -> Json:
    """Returns why a message ended.

    Called tools make it one that waits for them, whatever they are called with (ENTERPILOT/GoModel#124), but not where it was
    cut (NousResearch/hermes-agent#43478). vLLM names the sequence that it stopped at.
    """
    word = text_of(choice.get("finish_reason"))
    if word in _OWN:
        return {"stop_reason": word, "stop_sequence": None}
    reason = _STOPS.get(finish) or ("refusal" if is_refused else "tool_use" if has_calls else "end_turn")
    if finish not in (*_STOPS, *ENDED_WELL):
        reason = finish  # clients have to expect reasons that are new to them, and take none of these for a good end
    met = choice.get("stop_reason")
    if reason == "end_turn" and isinstance(met, str) and met in strings(sent.source.get("stop_sequences")):
        return {"stop_reason": "stop_sequence", "stop_sequence": met}
    made: Json = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        made["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return made


def used(sent: ConvertedRequest, chunk: Json, characters: int) -> Usage:
    """Returns the usage that a chat completion, or a piece of one, tells.

    What it does not tell is estimated, and marked so: the input as admission does, the output by the characters `characters`.
    """
    usage = usage_of_answer(chunk)
    if usage is not None and usage.input and (usage.output or not characters):
        return usage
    tier = tier_named(chunk.get("service_tier"))
    return filled(
        usage, Usage(estimate_input_tokens(b"", sent.source), tokens_in(characters), estimated=True, tier=tier)
    )


def reported_usage(usage: Usage, chunk: Json) -> Json:
    """Returns a usage in the words of Messages, with the tier that has answered, if it is one of Anthropic's, too."""
    tier = _TIERS.get(text_of(chunk.get("service_tier")))
    return message_usage(usage) | ({"service_tier": tier} if tier else {})


def tokens_in(characters: int) -> int:
    """Returns about how many tokens so many characters are."""
    return -(-characters // 4)


def call_id(sent: ConvertedRequest, number: int) -> str:
    """Returns an id for a call that came without one, unlike those of other turns."""
    return f"toolu_{sent.id}{number:02d}"


def _calls(sent: ConvertedRequest, message: Json, finish: str, extras: dict[str, Json]) -> list[Json]:
    """Returns the calls as blocks; one goes where the answer was cut in the middle of it.

    `extras` gets what their provider adds to each, by its id.
    """
    found = pieces_in(message)
    names = names_back(sent.source) if found else {}
    blocks: list[Json] = []
    used: set[str] = set()
    for number, call in enumerate(found):
        named = named_in(call)
        name, text = text_of(named.get("name")), argument_in(named)
        if not name:
            raise MalformedAnswer("the answer calls a tool without a name")
        given = text.encode(errors="replace")
        arguments = {} if is_no_argument(text) else json_object(given)
        if arguments is None or is_too_deep(given):
            if finish in CUT:
                continue
            raise MalformedAnswer("the answer calls a tool with something else than a JSON object")
        given_id = text_of(call.get("id"))  # of calls of one id, only the first can be answered by it
        id = id_back(given_id) if given_id and given_id not in used else call_id(sent, number)
        used.add(given_id)
        if extra := object_of(call.get("extra_content")):
            extras[id] = extra
        blocks.append({"type": "tool_use", "id": id, "name": names.get(name, name), "input": arguments})
    return blocks


def _put_in(blocks: list[Json], thought: str, details: list[Json]) -> None:
    """Puts what the model thought where it was: each block before what followed it, by its `index`."""
    made: list[tuple[int, Json]] = []
    words = next((detail for detail in details if in_thoughts.words_of(detail)), None)
    if thought and words is None:
        made.append((0, in_thoughts.thinking_block(thought)))
    for detail in details:
        place = at if type(at := detail.get("index")) is int else 0
        proof, text = in_thoughts.signature_for(detail), in_thoughts.words_of(detail)
        if detail.get("type") != "reasoning.encrypted" and (text or proof):
            made.append((place, in_thoughts.thinking_block(text, proof)))
        elif proof:
            made.append((place, in_thoughts.redacted_block(proof)))
    least = 0
    for place, block in sorted(made, key=itemgetter(0)):
        at = max(place, least)
        blocks.insert(at, block)
        least = min(at, len(blocks) - 1) + 1


# --- Blocks that are open while a stream is put into a message ---


TEXT: Final = "text"
THINKING: Final = "thinking"
CALL: Final = "tool_use"
_DELTAS: Final = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    CALL: ("input_json_delta", "partial_json"),
}
_MOST_CHECKED: Final = 1024 * 1024
"""The characters of a call's arguments that are kept to find out whether they are JSON."""
_MOST_TRIES: Final = 8


def event(kind: str, **fields: Any) -> bytes:
    """Returns an event; each has its name, for Anthropic's SDK passes over those that have none."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


class MessageBlock:
    """A block that grows. Most events only bring more of it, so they are put together of bytes."""

    __slots__ = ("_before", "_place", "characters", "is_signed", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_signed = False
        """The block is thinking, and its signature has left: nothing can follow."""
        self.characters = 0
        """The characters that have left."""
        self._place = -1
        self._before = b""

    def begin(self, place: int) -> None:
        self._place = place
        delta, field = _DELTAS[self.kind]
        delta_head = f'{{"type":"content_block_delta","index":{place},"delta":{{"type":"{delta}","{field}":'
        self._before = b"event: content_block_delta\ndata: " + delta_head.encode()

    def more(self, text: str) -> bytes:
        """Returns the event with this piece."""
        self.characters += len(text)
        return b"%b%b}}\n\n" % (self._before, orjson.dumps(text))

    def sign(self, signature: str) -> bytes:
        """Returns the event with what proves whose the thinking is."""
        self.is_signed = True
        return event(
            "content_block_delta", index=self._place, delta={"type": "signature_delta", "signature": signature}
        )

    def ended(self) -> bytes:
        """Returns the events that end the block; thinking that nobody has signed gets our mark."""
        signed = self.sign(MARK) if self.kind is THINKING and not self.is_signed else b""
        return signed + event("content_block_stop", index=self._place)


class ToolUse(MessageBlock):
    """A call. It is a block when its turn has come; until then its arguments are held."""

    __slots__ = (
        "_checked",
        "_held",
        "_known_whole",
        "_lead",
        "_made_id",
        "_tried",
        "_tries",
        "extra",
        "held_characters",
        "id",
        "index",
        "is_closed",
        "is_empty",
        "is_waiting",
        "name",
    )

    def __init__(self, index: int, id: str) -> None:
        """`index` is its provider's; `id` is for a call that comes without one."""
        super().__init__(CALL)
        self.index, self._made_id = index, id
        self.id = self.name = ""
        self.extra: Json = {}
        """What its provider adds, such as a signature."""
        self.is_waiting = self.is_closed = False
        self.is_empty = True
        """No argument has left yet."""
        self._lead = ""
        """A beginning that may still become `null`."""
        self.held_characters = 0
        self._held: list[str] = []
        self._checked: list[str] | None = []
        """What has left, as long as it is short enough to be checked."""
        self._known_whole = False
        self._tries = self._tried = 0

    @property
    def shown_id(self) -> str:
        """The id that the caller gets."""
        return id_back(self.id) if self.id else self._made_id

    def begun(self) -> Json:
        return {"type": CALL, "id": self.shown_id, "name": self.name, "input": {}}

    def hold(self, text: str) -> None:
        """Keeps a piece until the call's turn has come."""
        if text:
            self._held.append(text)
            self.held_characters += len(text)

    def release(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        self.held_characters = 0
        return text

    def more(self, text: str) -> bytes:
        if self.is_empty:
            self._lead, text = after_null(self._lead, text)
            if not text:
                return b""
            self.is_empty = False
        self._known_whole = False
        if self._checked is not None:
            self._checked.append(text)
            self.held_characters += len(text)
            if self.held_characters > _MOST_CHECKED:
                self._checked = None
        return super().more(text)

    def is_whole(self) -> bool:
        """Returns whether what has left is a JSON object, which nothing can follow.

        It is asked for with each piece of another call, so after some tries the next one waits until there is twice as much.
        """
        kept = self._checked
        if kept is None or self._known_whole or self.is_empty:
            return self._known_whole
        if not kept[-1].rstrip().endswith("}") or self._tried == len(kept):
            return False
        if self._tries >= _MOST_TRIES and len(kept) < 2 * self._tried:
            return False
        self._tries, self._tried = self._tries + 1, len(kept)
        self._known_whole = json_object("".join(kept).encode(errors="replace")) is not None
        return self._known_whole

    def is_sound(self) -> bool:
        """Returns whether it can end here: with a JSON object, or nothing, or more than was kept to be checked."""
        kept = self._checked
        if self.is_empty:
            return is_no_argument(self._lead)
        if kept is None or self._known_whole:
            return True
        return json_object("".join(kept).encode(errors="replace")) is not None

    def ended(self) -> bytes:
        """Returns the events that end the block; a call without arguments has an empty object."""
        self.is_closed = True
        self._lead = ""
        last = self.more("{}") if self.is_empty else b""
        self._checked = None
        return last + super().ended()


# --- The blocks of a stream, one after the other ---


MOST_HELD: Final = 1024 * 1024
"""The characters of one call, or of all words, that wait for another call's end."""
MOST_WAITING: Final = 16_384
"""The calls and pieces of words that wait at a time."""
_Waiting = ToolUse | tuple[str, list[Json] | None]
"""A call, or words, with the details of reasoning where they are such."""


class MessageBlocks:
    """Begins and ends blocks. All methods add events to `made`, and raise MalformedAnswer where the stream makes no sense.

    One block is open at a time, each begun is ended, and places count up from 0. What comes while a call is open that is
    not yet whole (another call's arguments, words) waits until it is, so that arguments that come interleaved leave one
    call after the other. Words of white space alone wait for others, because Anthropic refuses a block of such when it is
    sent back.
    """

    def __init__(self, *, is_to_mark: bool = False) -> None:
        """`is_to_mark`: calls that no thought comes before get a mark before them."""
        self.open: MessageBlock | None = None
        self.count = 0
        """The blocks begun so far: the place of the next one."""
        self.characters = 0
        """The characters in those that have ended."""
        self._blank: list[str] = []
        """White space that no words have followed yet."""
        self._blanks = 0
        """The characters of it."""
        self._waiting: deque[_Waiting] = deque()
        """What follows the open call."""
        self._held = 0
        """The characters of words that wait."""
        self._format: object = None
        """Whose the reasoning is, which only the first piece of it may say."""
        self._is_to_mark = is_to_mark

    def think(self, made: list[bytes], thought: str, details: list[Json]) -> None:
        self._catch_up(made)
        if isinstance(self.open, ToolUse):
            self._wait((thought, details))
        else:
            self._add_thought(made, thought, details)

    def add_text(self, made: list[bytes], text: str) -> None:
        self._catch_up(made)
        if isinstance(self.open, ToolUse):
            self._wait((text, None))
        else:
            self._add_words(made, text)

    def add_to_call(self, made: list[bytes], call: ToolUse, text: str) -> None:
        """Adds more of a call's arguments, now or when its turn has come."""
        if call is self.open:
            if text:
                made.append(call.more(text))
            return
        if call.is_closed:
            if text.strip():
                raise MalformedAnswer("the provider went on with a call that was whole")
            return
        call.hold(text)
        if call.held_characters > MOST_HELD:
            raise MalformedAnswer("the provider sends too much of several calls at once")
        if not call.is_waiting:
            call.is_waiting = True
            self._wait(call)
        self._catch_up(made)

    def end(self, made: list[bytes], *, is_cut: bool) -> None:
        """Ends the last block; `is_cut`: the answer was, so that a call may be in the middle."""
        self._catch_up(made, is_end=True, is_cut=is_cut)
        if self._waiting:
            raise MalformedAnswer("the provider called a tool without a name")
        self._close(made, is_cut=is_cut)

    def _wait(self, one: _Waiting) -> None:
        """Has something wait for the end of the open call. Raises MalformedAnswer where too much does."""
        self._waiting.append(one)
        self._held += 0 if isinstance(one, ToolUse) else len(one[0])
        if len(self._waiting) > MOST_WAITING or self._held > MOST_HELD:
            raise MalformedAnswer("the provider says too much in the middle of a call")

    def _catch_up(self, made: list[bytes], *, is_end: bool = False, is_cut: bool = False) -> None:
        """Adds what waits, as far as the calls before it are whole."""
        while self._waiting:
            if isinstance(self.open, ToolUse) and not (is_end or self.open.is_whole()):
                return
            first = self._waiting[0]
            if isinstance(first, ToolUse):
                if not first.name:
                    return
                self._close(made, is_cut=is_cut)
                self._open_call(made, first)
            else:
                if isinstance(self.open, ToolUse):
                    self._close(made, is_cut=is_cut)
                self._held -= len(first[0])
                if first[1] is None:
                    self._add_words(made, first[0])
                else:
                    self._add_thought(made, first[0], first[1])
            self._waiting.popleft()

    def _add_thought(self, made: list[bytes], thought: str, details: list[Json]) -> None:
        """Adds what the model thinks, and the signatures that came with it; what is encrypted is a block of its own."""
        if text := thought or "".join(map(in_thoughts.words_of, details)):
            made.append(self._open(made, THINKING).more(text))
        for detail in details:
            self._format = detail.get("format") or self._format
            proof = in_thoughts.signature_for({**detail, "format": self._format})
            if proof and detail.get("type") == "reasoning.encrypted":
                self._add_whole(made, in_thoughts.redacted_block(proof))
            elif proof:
                made.append(self._open(made, THINKING).sign(proof))

    def _add_words(self, made: list[bytes], text: str) -> None:
        if self.open is None or self.open.kind is not TEXT:
            if not text.strip():
                self._blanks += len(text)
                if self._blanks <= MOST_HELD:  # models have written nothing else for as long as they were let
                    self._blank.append(text)
                return
            text = "".join((*self._blank, text))
            self._forget_blank()
        made.append(self._open(made, TEXT).more(text))

    def _open_call(self, made: list[bytes], call: ToolUse) -> None:
        if call.extra:
            self._add_whole(made, in_thoughts.extra_block(call.shown_id, call.extra))
        elif self._is_to_mark:
            self._add_whole(made, in_thoughts.redacted_block(MARK))
        self._forget_blank()
        self._begin_block(made, call, call.begun())
        if text := call.release():
            made.append(call.more(text))

    def _forget_blank(self) -> None:
        self._blank, self._blanks = [], 0

    def _open(self, made: list[bytes], kind: str) -> MessageBlock:
        """Returns the open block of this kind; begins it, and ends what is open, if that is another."""
        block = self.open
        if block is None or block.kind is not kind or block.is_signed:
            self._close(made)
            begun = {"type": TEXT, "text": ""} if kind is TEXT else {"type": THINKING, "thinking": "", "signature": ""}
            self._is_to_mark = self._is_to_mark and kind is TEXT
            block = MessageBlock(kind)
            self._begin_block(made, block, begun)
        return block

    def _begin_block(self, made: list[bytes], block: MessageBlock, begun: Json) -> None:
        self.open = block
        block.begin(self.count)
        made.append(event("content_block_start", index=self.count, content_block=begun))
        self.count += 1

    def _add_whole(self, made: list[bytes], block: Json) -> None:
        """Adds a block that comes in one piece: a thought that is not shown."""
        self._is_to_mark = False
        self._close(made)
        made.append(event("content_block_start", index=self.count, content_block=block))
        made.append(event("content_block_stop", index=self.count))
        self.count += 1

    def _close(self, made: list[bytes], *, is_cut: bool = False) -> None:
        block, self.open = self.open, None
        if block is None:
            return
        if isinstance(block, ToolUse) and not (is_cut or block.is_sound()):
            raise MalformedAnswer("the provider called a tool with something else than a JSON object")
        made.append(block.ended())
        self.characters += block.characters


# --- The stream ---


_QUICK: Final = {"content": TEXT, "reasoning_content": THINKING, "reasoning": THINKING}


class ChatAsMessages(ChatStreamReader):
    """Reads pieces of a chat completion; implements `base.Reader`.

        message_start (block)* message_delta message_stop | ... error

    Each event leaves in the chunk that it came in, but for what has to wait for a call to be whole.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._has_begun = False
        self._blocks = MessageBlocks(is_to_mark=in_thoughts.is_to_mark(sent.source))
        self._calls: list[ToolUse] = []
        self._ids: set[str] = set()
        """The ids of the calls."""
        self._by_index: dict[int, ToolUse] = {}
        """The call that pieces with an index belong to."""
        self._names = names_back(sent.source)
        self._choice: Json = {}
        """The one with the finish reason."""
        self._finish: str | None = None
        self._is_refused = False
        self.reported: Usage | None = None

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None or "error" in parsed:
            return self._read_odd(event)
        choices = parsed.get("choices")
        if type(choices) is not list or not choices:
            return self._read_odd(event)
        choice = choices[0]
        if len(choices) == 1 and type(choice) is dict and not (choice.get("finish_reason") or parsed.get("usage")):
            made = self._more(choice)
            if made is not None:
                return made
        return self._read_odd(event) if first_choice(parsed).get("finish_reason") else self._take(parsed)

    def _more(self, choice: Json) -> bytes | None:
        """Reads a piece that only brings more of what has begun; None: it says something else, or other things, too."""
        delta, block = choice.get("delta"), self._blocks.open
        if type(delta) is not dict or choice.get("index") or block is None:
            return None
        found = delta if len(delta) == 1 else [name for name, value in delta.items() if value and name != "role"]
        if len(found) != 1:
            text = _thought_alone(delta) if len(found) == 2 and block.kind is THINKING and not block.is_signed else ""
            return block.more(text) if text else None
        (name,) = found
        value = delta[name]
        if type(value) is str:
            return block.more(value) if value and _QUICK.get(name) is block.kind and not block.is_signed else None
        is_of_call = name == "tool_calls" and type(value) is list and len(value) == 1
        return self._more_of_call(value[0]) if is_of_call else None

    def _more_of_call(self, piece: Any) -> bytes | None:
        if type(piece) is not dict or piece.get("id"):
            return None
        named, call = piece.get("function"), self._by_index.get(_number(piece.get("index")))
        text = named.get("arguments") if type(named) is dict else None
        if call is None or type(text) is not str or not text or piece.get("extra_content"):
            return None
        if call is self._blocks.open:
            return call.more(text)
        return self._events_of(self._blocks.add_to_call, call, text) if call.name else None

    def _take(self, chunk: Json) -> bytes:
        made: list[bytes] = []
        if not self._has_begun and ("choices" in chunk or "usage" in chunk):
            self._begin(made, chunk)
        self.reported = usage_of_answer(chunk) or self.reported
        choice = first_choice(chunk)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            made.append(self._events_of(self._take_delta, delta))
        if isinstance(choice.get("finish_reason"), str):
            self._finish, self._choice = finish_in(choice), choice
        return b"".join(made)

    def _events_of(self, add: Callable[..., None], *of: Any) -> bytes:
        """Returns the events that this adds to a list; behind them an error, where the provider makes no sense."""
        made: list[bytes] = []
        try:
            add(made, *of)
        except MalformedAnswer as error:
            made.append(self._fail({"message": str(error), "code": "malformed_response"}))
        return b"".join(made)

    def _begin(self, made: list[bytes], chunk: Json) -> None:
        """Begins the message; how much was read is known at its end only, and estimated here."""
        self._has_begun = True
        usage = reported_usage(used(self._sent, chunk, 0), chunk)
        mark = {name: usage.pop(name) for name in ("estimated",) if name in usage}  # clients keep what is in the usage
        made.append(event("message_start", message=begun(self._sent, chunk) | {"usage": usage}, **mark))

    def _take_delta(self, made: list[bytes], delta: Json) -> None:
        thought, text = words_in(delta)
        details = objects(delta.get("reasoning_details"))
        if thought or details:
            self._blocks.think(made, thought, details)
        if text:
            self._blocks.add_text(made, text)
        if refusal := text_of(delta.get("refusal")):
            self._is_refused = True
            self._blocks.add_text(made, refusal)
        for piece in pieces_in(delta):
            self._piece(made, piece)

    def _piece(self, made: list[bytes], piece: Json) -> None:
        call = self._call_of(piece)
        named = named_in(piece)
        if not call.id and (id := text_of(piece.get("id"))) and id not in self._ids:
            call.id = id  # of calls of one id, only the first can be answered by it
            self._ids.add(id)
        call.extra = call.extra or object_of(piece.get("extra_content"))
        name, text = text_of(named.get("name")), argument_in(named)
        call.name = call.name or self._names.get(name, name)
        self._blocks.add_to_call(made, call, text)

    def _call_of(self, piece: Json) -> ToolUse:
        """Returns the call that a piece belongs to. Some servers number none, or all of several calls alike, but name each."""
        index, id = piece.get("index"), text_of(piece.get("id"))
        if not isinstance(index, int):
            index = len(self._calls) if id or not self._calls else self._calls[-1].index
        call = self._by_index.get(index)
        if call is not None and id and call.id not in ("", id) and named_in(piece).get("name"):
            call = None
        if call is None:
            call = self._by_index[index] = ToolUse(index, call_id(self._sent, len(self._calls)))
            self._calls.append(call)
        return call

    def _end(self) -> bytes:
        """Writes the end, if the provider has given its reason: without a finish reason `[DONE]` ends a cut answer, too."""
        return b"" if self._is_over or self._finish is None else self._events_of(self._add_end)

    def _add_end(self, made: list[bytes]) -> None:
        self._blocks.end(made, is_cut=self._finish in CUT)
        self._is_over = True
        why = ended(
            self._sent, self._choice, self._finish or "", has_calls=bool(self._calls), is_refused=self._is_refused
        )
        estimate = Usage(0, tokens_in(self._blocks.characters), estimated=True)
        reported = self.reported
        unsaid = ("service_tier",) if reported is not None and reported.input else ("service_tier", *INPUTS)
        usage = message_usage(filled(reported, estimate))
        usage = {name: count for name, count in usage.items() if name not in unsaid}
        made.append(event("message_delta", delta=why, usage=usage))
        made.append(event("message_stop"))

    def _fail(self, error: Json) -> bytes:
        """Writes the error that the provider has reported; nothing follows.

        Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        """
        self._is_over = True
        try:
            return event("error", error=message_error(error) if self._blocks.count else error)
        except orjson.JSONEncodeError:  # nested too deeply to be written again
            return event("error", error={"type": "api_error", "message": text_of(error.get("message"))})


def _thought_alone(delta: Json) -> str:
    """Returns the words of a piece that has them twice, plainly and as a detail of reasoning with nothing besides."""
    text, details = delta.get("reasoning_content"), delta.get("reasoning_details")
    if type(text) is not str or type(details) is not list or len(details) != 1 or type(details[0]) is not dict:
        return ""
    return text if details[0].get("text") == text and not details[0].get("signature") else ""


def _number(index: Any) -> int:
    return index if type(index) is int else -1
