"""The turns of a conversation in Messages as the messages of a chat completion.

Turns of one role that follow each other are one, as Anthropic has it. Calls and results are paired: what cannot be is refused
by its place and never repaired in silence.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.dialects.anthropic.in_answer import ids
from gateway.dialects.anthropic.in_request import thinking
from gateway.dialects.anthropic.in_request.parts import Parts, is_plain_text, text_at, texts_of
from gateway.dialects.base.base import Json, ServerFacts, object_of, text_of

_ERROR: Final = "Error: "
_BETWEEN_THOUGHTS: Final = "\n\n"


class Turns:
    """Puts the messages of one request together."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts
        self._parts = Parts(facts)
        self._made: list[Json] = []
        self._turn: _Turn | None = None
        """The model's, which is being put together."""
        self._unanswered: dict[str, str] = {}
        """The calls whose results have to come next: their ids, and where they stand."""
        self._pictures: list[Json] = []
        """Of tools' results, for which the target has no place there."""
        self._later: list[Json] = []
        """What the user says besides, which follows the results."""

    def take(self, message: Any, number: int) -> None:
        """Takes the next message. Raises InvalidRequest, naming the place, where it makes no sense."""
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            self._end_user()
            self._said(message.get("content"), number)
        elif role == "user":
            self._end_turn()
            self._heard(message.get("content"), number)
        elif role == "system":
            place = f"messages[{number}]"
            self._end_turn()
            self._end_user()
            content = self._parts.content(message.get("content"), f"{place}.content")
            self._made.append({"role": "developer" if self._facts.takes_developer else "system", "content": content})
        else:
            place = f"messages[{number}].role"
            raise InvalidRequest(f"'{place}' must be user, assistant or system.", param=place)

    def all(self) -> list[Json]:
        """Returns the messages. Raises InvalidRequest where a call has no result."""
        self._end_turn()
        self._end_user()
        return self._made

    def _said(self, content: Any, of_message: int) -> None:
        turn = self._turn = self._turn or _Turn()
        if not isinstance(content, list):
            turn.texts.append({"type": "text", "text": text_at(content, f"messages[{of_message}].content")})
            return
        for number, block in enumerate(content):
            if is_plain_text(block):
                turn.texts.append(block)
                continue
            where = f"messages[{of_message}].content[{number}]"
            kind = text_of(block.get("type")) if isinstance(block, dict) else ""
            if kind == "text":
                part = {"type": "text", "text": text_at(block.get("text"), f"{where}.text")}
                turn.texts.append(self._parts.marked(block, part))
            elif kind in thinking.THOUGHTS:
                turn.think(block)
            elif kind == "tool_use":
                self._called(turn, block, where)
            else:
                raise InvalidRequest(f"'{where}' is no block that this model's provider takes.", param=where)

    def _called(self, turn: _Turn, block: Json, place: str) -> None:
        id, name = block.get("id"), block.get("name")
        if not isinstance(id, str) or not id or not isinstance(name, str) or not name:
            raise InvalidRequest(f"'{place}' needs an 'id' and a 'name'.", param=place)
        if not isinstance(block.get("input", {}), dict):
            raise InvalidRequest(f"'{place}.input' must be an object.", param=f"{place}.input")
        if id in self._unanswered:
            raise InvalidRequest(f"'{place}.id' is that of another call of the same turn.", param=f"{place}.id")
        self._unanswered[id] = place
        said = {
            "name": ids.name_for(name, self._facts),
            "arguments": orjson.dumps(block.get("input") or {}, option=orjson.OPT_NON_STR_KEYS).decode(),
        }
        made: Json = {"id": ids.id_for(id, self._facts), "type": "function", "function": said}
        if self._facts.takes_details and (extra := turn.extras.get(id)):
            made["extra_content"] = extra
        turn.calls.append(made)
        if self._facts.takes_details and block.get("cache_control"):
            turn.mark = block["cache_control"]

    def _heard(self, content: Any, of_message: int) -> None:
        rest: list[Any] = []
        if not isinstance(content, list):
            text = content if type(content) is str else text_at(content, f"messages[{of_message}].content")
            self._later.append({"role": "user", "content": text})
            return
        for number, block in enumerate(content):
            if is_plain_text(block):
                rest.append(block)
                continue
            where = f"messages[{of_message}].content[{number}]"
            if isinstance(block, dict) and block.get("type") == "tool_result":
                self._answered(block, where)
            else:
                rest += self._parts.of_block(block, where)
        if rest:
            is_text = len(rest) == 1 and is_plain_text(rest[0])
            self._later.append({"role": "user", "content": rest[0]["text"] if is_text else rest})

    def _answered(self, block: Json, place: str) -> None:
        id = block.get("tool_use_id")
        if not isinstance(id, str):
            where = f"{place}.tool_use_id"
            raise InvalidRequest(f"'{where}' must name the call that this is the result of.", param=where)
        if self._unanswered.pop(id, None) is None:
            told = f"'{place}' is the result of call '{id}', which is not among the unanswered calls of the turn before it."
            raise InvalidRequest(told, param=f"{place}.tool_use_id")
        sent = ids.id_for(id, self._facts)
        content = block.get("content")
        if not isinstance(content, str) or "cache_control" in block:
            content = self._parts.of_result(block, f"{place}.content")
        if not isinstance(content, str) and not self._facts.takes_details:
            texts, shown = texts_of(content)
            content = self._parts.as_text(texts)
            if shown:
                self._pictures += [{"type": "text", "text": f"Of the result of {sent}:"}, *shown]
        made: Json = {"role": "tool", "tool_call_id": sent, "content": content}
        if self._facts.takes_details and block.get("cache_control"):
            made["cache_control"] = block["cache_control"]
        if block.get("is_error"):
            made = _failed(made) | ({"is_error": True} if self._facts.takes_details else {})
        self._made.append(made)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        made = None if turn is None else turn.made(self._facts)
        if made is not None:
            self._made.append(made)

    def _end_user(self) -> None:
        """Ends what users said. Raises InvalidRequest where a call has no result, for they are paired by place."""
        if self._turn is not None or not (self._later or self._unanswered or self._pictures):
            return
        for id, place in self._unanswered.items():
            raise InvalidRequest(f"No result of call '{id}' follows '{place}' before the next message.", param=place)
        pictures, self._pictures = self._pictures, []
        later, self._later = self._later, []
        if pictures and later:  # one message, for some models want their users and assistants to take turns
            content = later[0]["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            later[0] = {"role": "user", "content": [*pictures, *parts]}
        elif pictures:
            later = [{"role": "user", "content": pictures}]
        self._made += later


class _Turn:
    """What the model has thought, said and called, which is one message."""

    def __init__(self) -> None:
        self.texts: list[Json] = []
        self.calls: list[Json] = []
        self.details: list[Json] = []
        self.thoughts: list[tuple[str, bool]] = []
        """Its words, and whether a provider vouches for them."""
        self.extras: dict[str, Json] = {}
        """What a provider has said besides of a call, by the call."""
        self.mark: Any = None

    def think(self, block: Json) -> None:
        held = thinking.held_by(thinking.signature_of(block))
        if held is not None and isinstance(held.get("call"), str):
            self.extras[held["call"]] = object_of(held.get("extra_content"))
            return
        place = len(self.details) + bool(self.texts) + len(self.calls)
        detail = thinking.detail_of_block(block, place)
        if detail is not None:
            self.details.append(detail)
        if text := text_of(block.get("thinking")):
            self.thoughts.append((text, detail is not None))

    def made(self, facts: ServerFacts) -> Json | None:
        """Returns the message; None: what it was cannot go back."""
        made: Json = {"role": "assistant", "content": self._content()}
        if self.calls:
            made["tool_calls"] = self.calls
        if facts.takes_details and self.details:
            made["reasoning_details"] = self.details
        thoughts = [text for text, is_signed in self.thoughts if not (facts.takes_details and is_signed)]
        if thoughts and facts.takes_reasoning:
            made["reasoning_content"] = _BETWEEN_THOUGHTS.join(thoughts)
        if self.mark:
            made["cache_control"] = self.mark
        if made["content"] is None and len(made) == 2:
            return None
        return made | {"content": ""} if made["content"] is None and not self.calls else made

    def _content(self) -> Any:
        if len(self.texts) == 1 and len(self.texts[0]) == 2:
            return self.texts[0]["text"] or (None if self.calls else "")
        if any(len(part) > 2 for part in self.texts):
            return self.texts
        return "".join(part["text"] for part in self.texts) or ("" if self.texts and not self.calls else None)


def _failed(made: Json) -> Json:
    """Returns a tool's result that says that the tool has failed; chat completions have no other way to say so."""
    content = made["content"]
    first = content[0].get("text") if isinstance(content, list) and content else content
    if isinstance(first, str) and first.lstrip().lower().startswith("error"):
        return made
    told = {"type": "text", "text": _ERROR}
    return made | {"content": [told, *content] if isinstance(content, list) else _ERROR + content}
