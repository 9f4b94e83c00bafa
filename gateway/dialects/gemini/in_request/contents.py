"""The contents of a generateContent request as the messages of a chat completion.

Contents of one role that follow each other are one turn. Results are paired with calls by their ids, and where there are none
by the tools' names, in order; what cannot be is refused by its place.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json, ServerFacts, object_of, text_of
from gateway.dialects.gemini.in_answer.marks import held_by
from gateway.dialects.gemini.in_answer.names import camel, inner, listed
from gateway.dialects.gemini.in_request.media import chat_part
from gateway.dialects.gemini.out_answer.signatures import told_of_call, told_signature

_USERS: Final = frozenset(("user", "function", "tool"))
"""Roles of who is not the model: results of tools had their own once, and one question alone needs none."""
_GEMINI: Final = "gemini"


def system_of(given: Any, facts: ServerFacts) -> list[Json]:
    """Returns the instructions as a message, if there are any. Raises InvalidRequest where they are no text."""
    if given is None:
        return []
    if isinstance(given, str):
        given = {"parts": [{"text": given}]}
    texts = []
    for number, part in enumerate(listed(camel(given).get("parts"))):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            place = f"systemInstruction.parts[{number}]"
            raise InvalidRequest(f"'{place}' must be text.", param=place)
        texts.append(text)
    role = "developer" if facts.takes_developer else "system"
    return [{"role": role, "content": "\n\n".join(filter(None, texts))}] if any(texts) else []


class ContentsOfCaller:
    """Puts the contents of one request together."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts
        self._made: list[Json] = []
        self._turn: _ModelsTurn | None = None
        """The model's, which is being put together."""
        self._unanswered: list[tuple[str, str, str]] = []
        """Calls whose results have to come next: their ids, names, and where they stand."""
        self._calls = 0
        self._later: list[Json] = []
        """Parts of what the user says besides, which follows the results."""

    def take(self, content: Any, place: str) -> None:
        """Takes the next content. Raises InvalidRequest, naming the place, where it makes no sense."""
        if isinstance(content, str):
            content = {"parts": [{"text": content}]}
        named = camel(content)
        role = text_of(named.get("role")) if named.get("role") else "user"
        parts = listed(named.get("parts"))
        if role == "model":
            self._end_user()
            self._turn = self._turn or _ModelsTurn()
            for number, part in enumerate(parts):
                if (text := _words_alone(part)) is not None:
                    self._turn.texts.append(text)
                else:
                    self._said(self._turn, camel(part), f"{place}.parts[{number}]")
        elif role in _USERS:
            self._end_turn()
            for number, part in enumerate(parts):
                if (text := _words_alone(part)) is not None:
                    self._later.append({"type": "text", "text": text})
                else:
                    self._heard(part, f"{place}.parts[{number}]")
        else:
            raise InvalidRequest(f"'{place}.role' must be user or model.", param=f"{place}.role")

    def all(self) -> list[Json]:
        """Returns the messages. Raises InvalidRequest where a call has no result."""
        self._end_turn()
        self._end_user()
        return self._made

    def _said(self, turn: _ModelsTurn, part: Json, place: str) -> None:
        signature = text_of(part.get("thoughtSignature"))
        if "functionCall" in part:
            turn.calls.append(self._called(part, signature, place))
        elif part.get("thought") is True:
            turn.think(text_of(part.get("text")), signature)
        elif isinstance(text := part.get("text"), str):
            turn.texts.append(text)
            if signature:
                turn.think("", signature)
        else:
            raise InvalidRequest(f"'{place}' is no part that this model's provider takes back.", param=place)

    def _called(self, part: Json, signature: str, place: str) -> Json:
        call = inner(part, "functionCall")
        name, given = call.get("name"), call.get("args")
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"'{place}.functionCall' needs a 'name'.", param=place)
        if not isinstance(given, dict | None):
            raise InvalidRequest(f"'{place}.functionCall.args' must be an object.", param=place)
        self._calls += 1
        id = text_of(call.get("id")) or f"call_{self._calls}"
        self._unanswered.append((id, name, place))
        arguments = orjson.dumps(given or {}, option=orjson.OPT_NON_STR_KEYS).decode()
        made: Json = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        if signature and self._facts.takes_details:
            held = held_by(signature)
            extra = told_of_call(signature, _GEMINI) if held is None else object_of(held.get("extra_content"))
            made |= {"extra_content": extra} if extra else {}
        return made

    def _heard(self, part: Any, place: str) -> None:
        named = camel({"text": part} if isinstance(part, str) else part)
        if "functionResponse" in named:
            self._answered(inner(named, "functionResponse"), place)
        else:
            self._later.append(chat_part(named, place))

    def _answered(self, response: Json, place: str) -> None:
        id, name = text_of(response.get("id")), text_of(response.get("name"))
        found = next((one for one in self._unanswered if (one[0] == id if id else one[1] == name)), None)
        if found is None:
            told = (
                f"'{place}' is the result of a call of '{name or id}', which no call of the turn before it waits for."
            )
            raise InvalidRequest(told, param=place)
        self._unanswered.remove(found)
        said = response.get("response")
        alone = said.get("output", said.get("result")) if isinstance(said, dict) and len(said) == 1 else None
        content = alone if isinstance(alone, str) else orjson.dumps(said, option=orjson.OPT_NON_STR_KEYS).decode()
        made: Json = {"role": "tool", "tool_call_id": found[0], "content": content}
        if self._facts.takes_details and isinstance(said, dict) and said.keys() == {"error"}:
            made["is_error"] = True
        self._made.append(made)
        self._later += [
            chat_part(camel(one), f"{place}.parts[{number}]")
            for number, one in enumerate(listed(response.get("parts")))
        ]

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        made = None if turn is None else turn.made(self._facts)
        if made is not None:
            self._made.append(made)

    def _end_user(self) -> None:
        """Ends what users said. Raises InvalidRequest where a call has no result, for chat completions want one of each."""
        if self._turn is None and self._unanswered:
            _, name, place = self._unanswered[0]
            raise InvalidRequest(f"No result of the call of '{name}' follows '{place}'.", param=place)
        later, self._later = self._later, []
        if later:
            is_text = all(part["type"] == "text" for part in later)
            content: Any = later[0]["text"] if is_text and len(later) == 1 else later
            self._made.append({"role": "user", "content": content})


def _words_alone(part: Any) -> str | None:
    """Returns the text of a part that is nothing else, as most are."""
    text = part.get("text") if type(part) is dict and len(part) == 1 else None
    return text if type(text) is str else None


class _ModelsTurn:
    """What the model has thought, said and called, which is one message."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Json] = []
        self._details: list[Json] = []
        self._thought = ""
        """Words that nobody has vouched for yet: the signature follows them."""
        self._unsigned: list[str] = []

    def think(self, text: str, signature: str) -> None:
        """Takes a piece of a thought, or what proves whose the words before it are."""
        self._thought += text
        if not signature:
            return
        words, self._thought = self._thought, ""
        held = held_by(signature)
        if held is None:
            self._details.append(told_signature(signature, _GEMINI, len(self._details)))
            self._unsigned += [words] if words else []
        elif detail := object_of(held.get("detail")):
            told = {"text": words} if words and detail.get("type") == "reasoning.text" else {}
            self._details.append({**detail, **told, "index": len(self._details)})

    def made(self, facts: ServerFacts) -> Json | None:
        """Returns the message; None: nothing of what it was can go back."""
        text = "".join(self.texts)
        made: Json = {"role": "assistant", "content": text or (None if self.calls else "")}
        if self.calls:
            made["tool_calls"] = self.calls
        if facts.takes_details and self._details:
            made["reasoning_details"] = self._details
        words = "\n\n".join([*self._unsigned, *filter(None, [self._thought])])
        if words and facts.takes_reasoning:
            made["reasoning_content"] = words
        return made if text or len(made) > 2 else None
