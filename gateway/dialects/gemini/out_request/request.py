"""A chat completion as a generateContent request.

Turns of one role that follow each other become one, for the provider wants them in turns. All results of a turn are in one
content, each under the name of its tool, by which they are paired (braintrustdata/lingua#166).
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json, ServerFacts, objects, text_of
from gateway.dialects.gemini.out_answer.signatures import STAND_IN, signature_of_call, signatures_in
from gateway.dialects.gemini.out_request.options import GenerateOptions
from gateway.dialects.gemini.out_request.parts import media_part, parts_of
from gateway.dialects.memory.remembered import IN_ID, id_of_call
from gateway.dialects.schema_tools.tools.tools import ToolResult, Turn, turns

_REFERENCES: Final = ("$ref", "$defs")
"""Keys that the provider takes for its own schemas', in a result too (vercel/ai#14369)."""

_LONG_NUMBER: Final = re.compile(r"[:\[,]\s*-?\d{20}")
"""Has more digits than a number keeps that is read and written again."""
_MOST_DEPTH: Final = 100
"""As deep as they are looked for."""
_ROLES: Final = {"user": "user", "assistant": "model"}
_MORE: Final = frozenset(("tool_calls", "function_call", "reasoning_details", "refusal"))
"""Fields of an answer that make parts of it, or go with one."""


def generate_body(body: Json, facts: ServerFacts, settled: GenerateOptions) -> Json:
    """Returns the generateContent request, which takes its `settled` options over.

    Raises InvalidRequest, naming the place, where it makes no sense.
    """
    for name in ("tools", "functions"):
        given = body.get(name)
        if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
            raise InvalidRequest(f"The field '{name}' must be a list of objects.", param=name)
    for tool in settled.fields.get("tools", ()):
        if not all(isinstance(one["name"], str) and one["name"] for one in tool["functionDeclarations"]):
            raise InvalidRequest("Each of the 'tools' needs a 'function' with a 'name'.", param="tools")
    said = _Contents(facts)
    take = said.take
    for turn in turns(body.get("messages")):
        take(turn)
    system, contents = said.all()
    if settled.instruction is not None:
        system.append({"text": settled.instruction})
    made: Json = {"contents": contents}
    if system:
        made["systemInstruction"] = {"parts": system}
    return made | settled.fields


class _Contents:
    """Puts turns together to contents."""

    def __init__(self, facts: ServerFacts) -> None:
        self._issuer = facts.issuer
        self._signs = facts.model.thinking == "level"
        """The model wants to see that it thought before it called a tool."""
        self._has_ids = facts.issuer != "vertex" or self._signs
        """Calls have ids; older models at Vertex AI know none."""
        self._system: list[Json] = []
        self._made: list[Json] = []
        self._role = ""
        """Of the content that was made last."""

    def all(self) -> tuple[list[Json], list[Json]]:
        """Returns the instructions and the contents, of which there has to be one."""
        if self._made or not self._system:
            return self._system, self._made
        return [], [{"role": "user", "parts": self._system}]

    def take(self, turn: Turn) -> None:
        role, message = turn.role, turn.message
        content = message.get("content")
        if role == "tool":
            self._say("user", self._results(turn))
        elif role != "system" and type(content) is str and (role == "user" or _MORE.isdisjoint(message)):
            if content:
                self._say(_ROLES[role], [{"text": content}])
        elif role == "user":
            self._say("user", parts_of(content, turn.place))
        elif role == "assistant":
            self._answer(turn, content)
        elif not self._made:
            self._system += parts_of(content, turn.place, takes_media=False)
        elif parts := parts_of(content, turn.place, takes_media=False):
            told = "\n".join(part["text"] for part in parts)
            self._say("user", [{"text": f"<system>{told}</system>"}])

    def _say(self, role: str, parts: list[Json]) -> None:
        if role == self._role:
            self._made[-1]["parts"] += parts
        elif parts:
            self._role = role
            self._made.append({"role": role, "parts": parts})

    def _answer(self, turn: Turn, content: Any) -> None:
        message = turn.message
        parts = parts_of(content, turn.place, takes_media=False) if content else []
        if refusal := message.get("refusal"):
            parts += parts_of(refusal, f"{turn.place}.refusal", takes_media=False)
        loose: list[str] = []
        by_call: dict[Any, str] = {}
        if "reasoning_details" in message:
            signed = signatures_in(message, self._issuer)
            by_call = {id: data for id, data in signed if id is not None}
            loose = [data for id, data in signed if id is None]
        if loose and parts:
            parts[-1]["thoughtSignature"] = loose.pop()
        stand_in = STAND_IN if self._signs else None
        for call in turn.calls:
            id, signature = call.id, None
            if "extra_content" in call.given or IN_ID in id:
                id, signature = id_of_call(id), signature_of_call(call.given, self._issuer)
            if signature is None:
                signature = by_call.get(id) or (loose.pop() if loose else stand_in)
            loose, stand_in = [], None  # the first call of a turn alone has to have one (earendil-works/pi#1446)
            inner = {"name": call.name, "args": call.input, "id": id}
            if not self._has_ids:
                del inner["id"]
            parts.append(
                {"functionCall": inner} if signature is None else {"functionCall": inner, "thoughtSignature": signature}
            )
        self._say("model", parts)

    def _results(self, turn: Turn) -> list[Json]:
        """Returns the results of a turn; what is to be seen or heard of them stands behind them all."""
        made, shown = [], list[Json]()
        for result in turn.results:
            content: Any = result.message.get("content")
            if type(content) is not str:
                content = self._words_of(result, content, shown)
            inner = {"name": result.name, "response": _response(content, result.message), "id": id_of_call(result.id)}
            if not self._has_ids:
                del inner["id"]
            made.append({"functionResponse": inner})
        return made + shown

    def _words_of(self, result: ToolResult, content: Any, shown: list[Json]) -> str:
        """Returns the words of a result in parts; all else of it is appended to `shown`."""
        words: list[str] = []
        media: list[Json] = []
        for number, part in enumerate(content if isinstance(content, list) else ()):
            kind = text_of(part.get("type")) if isinstance(part, dict) else ""
            if kind in ("image_url", "input_audio", "video_url", "file"):
                media.append(media_part(part, kind, f"{result.place}.content[{number}]"))
            else:
                words += (one["text"] for one in parts_of([part], result.place, takes_media=False))
        if content is not None and not isinstance(content, list):
            parts_of(content, result.place)
        if media:
            shown += [{"text": f"From the result of {result.name}:"}, *media]
        return "\n".join(words)


def _response(text: str, message: Json) -> Json:
    """Returns what a tool answered as an object, which it has to be."""
    if message.get("is_error") is True:
        return {"error": text}
    if text.startswith("{") and _LONG_NUMBER.search(text) is None:
        try:
            found: Json = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {"output": text}
        return _without_references(found, _MOST_DEPTH) if '"$' in text else found
    return {"output": text}


def _without_references(value: Any, depth: int) -> Any:
    if not depth:
        return value
    if isinstance(value, dict):
        return {name: _without_references(one, depth - 1) for name, one in value.items() if name not in _REFERENCES}
    return [_without_references(one, depth - 1) for one in value] if isinstance(value, list) else value
