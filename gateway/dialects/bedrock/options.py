"""The options of a chat completion as Converse has them, and the parts and turns that they share with its request.

In this order: parts of messages as blocks (`Blocks`), the options (`ConverseOptions`), turns of Claude's that are
remembered. What all models have in common stands in `inferenceConfig`, `toolConfig` and `outputConfig`; what a family has
of its own goes under its maker's names into `additionalModelRequestFields`, where an unknown one is refused. What a model
takes follows from its facts and from nothing else. Nothing here raises. Source: the service model of `bedrock-runtime`,
2023-09-30.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.anthropic.out_parts import PICTURES, has_mark, is_filtered, mark_of, picture_url, tools_and_choice
from gateway.dialects.anthropic.out_request import ChatOptions
from gateway.dialects.anthropic.out_thoughts import NOTHING, TurnRecorder, has_foreign
from gateway.dialects.base import Json, ServerFacts, is_blank, object_of, objects, text_of
from gateway.dialects.memory import TurnMemory, VisibleTurn
from gateway.dialects.schema_tools.chat_parts import (
    EFFORTS,
    URLS,
    Media,
    data_url,
    file_of,
    nearest_effort,
    without_blank_stops,
)
from gateway.dialects.schema_tools.schema import requested_form
from gateway.dialects.schema_tools.tools import is_call_forced

# --- Parts as content blocks, and the points at which the cache of prompts is to keep ---


DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
"""The formats of documents, by their media types."""
MOST_MARKS: Final = 4
"""The points for the cache that a request may have; one with more is refused."""
_NAME_CHARS: Final = 200
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9 ()\[\]-]+")
_ENDING: Final = re.compile(r"\.[A-Za-z0-9]{1,5}$")
_SPACES: Final = re.compile(r"\s+")


def cache_point(given: Json) -> Json | None:
    """Returns the point behind a part, message or tool that is marked for the cache; None: it is not."""
    mark = mark_of(given)
    if mark is None:
        return None
    return {"cachePoint": {"type": "default"} | ({"ttl": "1h"} if mark.get("ttl") == "1h" else {})}


def bound_points(lists: list[list[Json]]) -> None:
    """Leaves the last points only, as many as are taken, and none that lasts longer behind one that lasts shorter.

    `lists` have the points among their blocks, in the order in which the model reads them.
    """
    having = [(blocks, block) for blocks in lists for block in blocks if "cachePoint" in block]
    for blocks, block in having[:-MOST_MARKS]:
        blocks[:] = [one for one in blocks if one is not block]
    has_shorter = False
    for _, block in having[-MOST_MARKS:]:
        if block["cachePoint"].get("ttl") != "1h":
            has_shorter = True
        elif has_shorter:
            block["cachePoint"] = {"type": "default"}


def document_name(name: Any) -> str:
    """Returns a file's name as a document may have it, without its ending."""
    stem = _ENDING.sub("", text_of(name))
    return _SPACES.sub(" ", _NOT_IN_NAMES.sub(" ", stem)).strip()[:_NAME_CHARS].strip() or "document"


def words_beside(blocks: list[Json]) -> Json | None:
    """Returns the text that has to stand beside documents, which are refused alone: a name of one; None: there is some."""
    if any("text" in block for block in blocks):
        return None
    return next(({"text": block["document"]["name"]} for block in blocks if "document" in block), None)


class Blocks:
    """Makes blocks of parts; the names of documents are unique in one request.

    Text that is empty or white space is left out: a block of it is refused for as long as it stays in the conversation
    (NousResearch/hermes-agent#55092). Data goes on as base64; what is only a URL has no place there, for nothing is
    fetched.
    """

    def __init__(self) -> None:
        self.has_points = False
        """A point was made."""
        self._names: set[str] = set()

    def point(self, given: Json) -> list[Json]:
        """Returns the point behind a part, message or tool, if it is marked."""
        point = cache_point(given) if has_mark(given) else None
        if point is None:
            return []
        self.has_points = True
        return [point]

    def of(self, content: Any, place: str, *, takes_media: bool, takes_points: bool) -> list[Json]:
        """Returns a message's content. Raises InvalidRequest, naming the part, where it makes no sense."""
        if content is None:
            return []
        if isinstance(content, str):
            return [] if is_blank(content) else [{"text": content}]
        if not isinstance(content, list):
            raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
        made: list[Json] = []
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            where = f"{place}.content[{number}]"
            if kind in ("text", "refusal"):
                text = part.get(kind)
                if not isinstance(text, str):
                    raise InvalidRequest(f"'{where}.{kind}' must be a string.", param=f"{where}.{kind}")
                if is_blank(text):
                    continue
                made.append({"text": text})
            elif takes_media and kind == "image_url":
                made.append(_picture(part, where))
            elif takes_media and kind == "file":
                made.append(self._document(part, where))
            else:
                raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
            if takes_points:
                made += self.point(part)
        return made

    def _document(self, part: Json, place: str) -> Json:
        inner = part.get("file")
        data = inner.get("file_data") if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not isinstance(data, str):
            raise InvalidRequest(f"'{place}.file' needs 'file_data'.", param=f"{place}.file")
        media = file_of(data, inner.get("filename")) if not data.startswith(URLS) else Media("", "")
        form = DOCUMENTS.get(media.type)
        if form is None:
            message = f"'{place}' is no document that this model's provider takes: {', '.join(DOCUMENTS.values())}."
            raise InvalidRequest(message, param=place)
        name = first = document_name(inner.get("filename"))
        number = 1
        while name in self._names:
            number += 1
            name = f"{first[: _NAME_CHARS - 8]} ({number})"
        self._names.add(name)
        return {"document": {"format": form, "name": name, "source": {"bytes": media.data}}}


def _picture(part: Json, place: str) -> Json:
    url = picture_url(part)
    media = data_url(url) if url is not None else None
    if media is None or media.type not in PICTURES:
        message = f"'{place}' must be a PNG, JPEG, GIF or WebP in a 'data:' URL; this model's provider fetches nothing."
        raise InvalidRequest(message, param=place)
    return {"image": {"format": media.type.removeprefix("image/"), "source": {"bytes": media.data}}}


# --- The options ---


_CLAUDES: Final[tuple[str, ...]] = (
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
)
"""The options that Claude has as it has them in Messages."""
OWN: Final = ("guardrailConfig", "performanceConfig")
"""Converse's own fields that nothing of a chat completion says."""
MORE: Final = "additionalModelRequestFields"
"""Converse's own field for what a family of models has besides."""
_TIERS: Final = ("default", "flex", "priority", "reserved")
_METADATA: Final = re.compile(r"[a-zA-Z0-9\s:_@$#=/+,\-.]{0,256}")
_MOST_METADATA: Final = 16


class ConverseOptions:
    """All fields of a request but its instructions and messages, and what was lost in them."""

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self.fields: Json = {}
        self.gaps: list[Gap] = []
        self.instruction: str | None = None
        """What has to stand at the end of the instructions."""
        self._body, self._facts, self._model = body, facts, facts.model
        self._inference: Json = {}
        self._output: Json = {}
        self._own: Json = {}
        self.recalled = NOTHING
        """What is remembered of turns that came back without their thoughts."""
        if takes_thoughts_back(facts):
            self._settle_as_claude()
        else:
            self._sample()
            self._think()
        self._form()
        self._take_own()
        self._equip()
        self._address()
        parts = {
            "inferenceConfig": self._inference,
            "outputConfig": self._output,
            "additionalModelRequestFields": self._own,
        }
        self.fields |= {name: part for name, part in parts.items() if part}

    @property
    def keeps_thoughts(self) -> bool:
        """Returns whether thoughts of former turns can go back: Claude's can, if it does not bind them to what was changed."""
        if not takes_thoughts_back(self._facts):
            return False
        if not self._model.binds_thinking:
            return True
        if self.instruction is not None or is_filtered(self._body) or self.recalled.has_foreign:
            return False
        return not any(has_foreign(message) for message in objects(self._body.get("messages")))

    def _settle_as_claude(self) -> None:
        given = {name: self._body[name] for name in _CLAUDES if name in self._body}
        by_budget = "thinking" in given or (self._model.thinking == "budget" and "reasoning_effort" in given)
        if self._facts.memory is not None or by_budget:
            given["messages"] = self._body.get("messages")
        settled = ChatOptions(given, self._facts)
        self.recalled = settled.recalled
        self.gaps += [gap for gap in settled.gaps if gap.field in _CLAUDES]
        fields = settled.fields
        self._inference["maxTokens"] = fields["max_tokens"]
        self._inference |= {
            there: fields[here] for here, there in (("temperature", "temperature"), ("top_p", "topP")) if here in fields
        }
        self._own |= {name: fields[name] for name in ("thinking", "output_config", "top_k") if name in fields}

    def _sample(self) -> None:
        body = self._body
        most = next((body[name] for name in _CLAUDES[1::-1] if body.get(name) is not None), None)
        if type(most) is int and self._model.max_output:
            most = min(most, self._model.max_output)
        if (most := self._model.max_output if most is None else most) is not None:
            self._inference["maxTokens"] = most
        for name, there in (("temperature", "temperature"), ("top_p", "topP")):
            value = body.get(name)
            if value is None:
                continue
            if not self._model.sampling:
                self._lose(name, How.DROPPED, "the model is not told how to sample")
                continue
            if isinstance(value, int | float) and value > 1:
                value = 1.0
                self._lose(name, How.APPROXIMATED, f"the highest {name} is 1")
            self._inference[there] = value
        if body.get("top_k") is not None:
            if self._model.own_fields == "nova" and self._model.sampling:
                self._own["inferenceConfig"] = {"topK": body["top_k"]}
            else:
                self._lose("top_k", How.DROPPED, "the model has no such option")

    def _think(self) -> None:
        if self._body.get("thinking") is not None:
            self._lose("thinking", How.DROPPED, "the model has no such option")
        wanted, model = self._body.get("reasoning_effort"), self._model
        if wanted is None or (wanted == "none" and not model.thinks_unasked and wanted not in model.efforts):
            return
        if model.thinking == "none" or not model.efforts:
            self._lose("reasoning_effort", How.DROPPED, "the model is told no effort")
        elif wanted != "none" and wanted not in EFFORTS:
            self._lose("reasoning_effort", How.DROPPED, "there is no such effort")
        else:
            effort = nearest_effort(wanted, model.efforts)
            if effort != wanted:
                self._lose("reasoning_effort", How.APPROXIMATED, "the model has other efforts")
            # The model's maker has a name of its own for it.
            match self._model.own_fields:
                case "openai":
                    self._own["reasoning_effort"] = effort
                case "qwen":
                    self._own["reasoning_config"] = effort
                case "xai":
                    self._own["reasoning"] = {"effort": effort}
                case _:
                    self._output["effort"] = effort

    def _form(self) -> None:
        wanted, is_forced = self._body.get("response_format"), is_call_forced(self._body)
        form = requested_form(wanted, self._facts, has_description=True, is_call_forced=is_forced)
        self.instruction = form.instruction
        self.gaps += form.gaps
        if form.schema is not None:
            given = object_of(object_of(self._body.get("response_format")).get("json_schema"))
            naming = {one: given[one] for one in ("name", "description") if isinstance(given.get(one), str)}
            structure = {"jsonSchema": {"schema": orjson.dumps(form.schema).decode(), **naming}}
            self._output["textFormat"] = {"type": "json_schema", "structure": structure}

    def _take_own(self) -> None:
        """Takes what a config, or a caller who knows the target, says in the target's own words."""
        for name in OWN:
            if isinstance(value := self._body.get(name), dict):
                self.fields[name] = value
            elif value is not None:
                self._lose("other", How.DROPPED, "the target has no such option")
        more = self._body.get(MORE)
        if isinstance(more, dict):
            self._own |= more
        elif more is not None:
            self._lose("other", How.DROPPED, "the target has no such option")

    def _equip(self) -> None:
        """Settles the tools, and which of them are to be called."""
        thinks_by_budget = object_of(self._own.get("thinking")).get("type") == "enabled"
        fields, gaps = tools_and_choice(self._body, self._facts, thinks_by_budget=thinks_by_budget)
        self.gaps += gaps
        if not fields:
            return
        choice = object_of(fields.get("tool_choice"))
        kind = choice.get("type")
        if choice.get("disable_parallel_tool_use") and not (self._model.own_fields == "anthropic" and kind == "auto"):
            self._lose("parallel_tool_calls", How.DROPPED, "the target does not say how many tools are called at once")
        if kind == "none" and self._model.own_fields != "anthropic" and not self._calls_none():
            return
        tools: list[Json] = []
        for tool in fields["tools"]:
            tools.append({"toolSpec": _tool_spec(tool)})
            if "tools" in self._model.caches and (point := cache_point(tool)) is not None:
                tools.append(point)
        config: Json = {"tools": tools}
        if kind == "any":
            config["toolChoice"] = {"any": {}}
        elif kind == "tool":
            config["toolChoice"] = {"tool": {"name": choice.get("name")}}
        elif self._model.own_fields == "anthropic" and (kind == "none" or "disable_parallel_tool_use" in choice):
            self._own["tool_choice"] = choice
        self.fields["toolConfig"] = config

    def _calls_none(self) -> bool:
        """Settles that the model is to call no tool, for which most have no option. Returns whether the tools stay."""
        if not self._body.get("tools") and not self._body.get("functions"):  # those are of the conversation's calls
            return True
        if not has_calls(self._body):
            self._lose("tool_choice", How.APPROXIMATED, "the tools are left out of the request")
            return False
        why = "the model cannot be told to call no tool once it has called one"
        self._lose("tool_choice", How.APPROXIMATED if self._facts.approximates else How.REFUSED, why)
        return True

    def _address(self) -> None:
        """Settles where the answer is to end, how the call is served, and what it belongs to."""
        body = self._body
        if stop := body.get("stop"):
            given, kept = without_blank_stops(stop)
            if kept != given:
                self._lose("stop", How.DROPPED, "the target does not stop at white space")
            if kept:
                self._inference["stopSequences"] = kept
        if (tier := body.get("service_tier")) is not None and tier != "auto":
            if tier in _TIERS:
                self.fields["serviceTier"] = {"type": tier}
            else:
                self._lose("service_tier", How.DROPPED, "the target has no such tier")
        given = body.get("metadata")
        if given is not None and not isinstance(given, dict):
            self._lose("metadata", How.DROPPED, "the target takes texts by their names")
        if metadata := object_of(given):
            kept = {name: value for name, value in metadata.items() if name and _is_metadata(name, value)}
            kept = dict(list(kept.items())[:_MOST_METADATA])
            if kept:
                self.fields["requestMetadata"] = kept
            if len(kept) < len(metadata):
                self._lose("metadata", How.DROPPED, "the target takes 16 short texts of few characters")

    def _lose(self, name: str, how: How, why: str) -> None:
        self.gaps.append(Gap(name, how, why))


def takes_thoughts_back(facts: ServerFacts) -> bool:
    """Returns whether a model wants its thoughts back with the results of its calls: Claude alone signs them."""
    return facts.model.own_fields == "anthropic"


def has_calls(body: Json) -> bool:
    messages = objects(body.get("messages"))
    return any(
        one.get("role") == "assistant" and (one.get("tool_calls") or one.get("function_call")) for one in messages
    )


def _tool_spec(tool: Json) -> Json:
    made: Json = {"name": tool.get("name")}
    if "description" in tool:
        made["description"] = tool["description"]
    made["inputSchema"] = {"json": tool["input_schema"]}
    return made | ({"strict": True} if tool.get("strict") else {})


def _is_metadata(name: str, value: Any) -> bool:
    return isinstance(value, str) and all(_METADATA.fullmatch(one) is not None for one in (name, value))


# --- Turns of Claude's, remembered from an answer and put back into a request ---


_KNOWN: Final = frozenset(("text", "toolUse", "reasoningContent"))
"""The blocks that reach a caller distinguishably; a turn with others cannot be repeated by one."""


def keep_content(content: list[Any], memory: TurnMemory | None) -> None:
    """Remembers the content of a whole answer, if there are calls in it.

    As with Messages, who repeats such a turn in another order is refused (see `anthropic/out_thoughts.py`); the blocks are
    Converse's own. What a model of another maker thought is signed by nobody, and does not go back.
    """
    if memory is None:
        return
    blocks = objects(content)
    calls = [
        (use["toolUseId"], use.get("name"), use.get("input"))
        for block in blocks
        if (use := object_of(block.get("toolUse")))
    ]
    if not calls or not all(len(block) == 1 and block.keys() <= _KNOWN for block in blocks):
        return
    thoughts = [object_of(block["reasoningContent"]) for block in blocks if "reasoningContent" in block]
    if not all("redactedContent" in one or object_of(one.get("reasoningText")).get("signature") for one in thoughts):
        return
    words = "".join(text_of(block.get("text")) for block in blocks)
    kept = [block for block in blocks if "text" not in block or not is_blank(text_of(block["text"]))]
    memory.keep(VisibleTurn(calls, words), kept, has_thoughts=bool(thoughts))


def with_points(content: list[Json], blocks: list[Json]) -> list[Json]:
    """Returns a remembered content with the points for the cache that the caller has put behind the same blocks."""
    for number, block in enumerate(blocks[1:]):
        if "cachePoint" not in block:
            continue
        before = blocks[number]
        same = [place for place, one in enumerate(content) if _is_same(one, before)]
        if same:
            content.insert(same[-1] + 1, block)
    return content


def _is_same(one: Json, other: Json) -> bool:
    if "toolUse" in one and "toolUse" in other:
        return bool(one["toolUse"]["toolUseId"] == other["toolUse"]["toolUseId"])
    return "text" in one and "text" in other


class ContentRecorder:
    """Puts the blocks of a stream together, as far as there is room; words have no event for their beginning."""

    __slots__ = ("_opened", "_turn")

    def __init__(self) -> None:
        self._turn = TurnRecorder()
        self._opened: set[int] = set()

    def call(self, place: int, use: Json) -> None:
        self._open(place, {"type": "tool_use", "id": use.get("toolUseId"), "name": use.get("name")})

    def other(self, place: int) -> None:
        """Takes a block that is none of those that can be repeated."""
        self._open(place, {"type": ""})

    def append(self, place: int, text: str) -> None:
        if place not in self._opened:
            self._open(place, {"type": "text"})
        self._turn.grow(place, text)

    def argue(self, place: int, text: str) -> None:
        self._turn.grow(place, text)

    def think(self, place: int, text: str, signature: str) -> None:
        if place not in self._opened:
            self._open(place, {"type": "thinking"})
        self._turn.grow(place, text)
        self._turn.sign(place, signature)

    def hide(self, place: int, data: Any) -> None:
        self._open(place, {"type": "redacted_thinking", "data": data})

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn that has come to its end, if all of it is there."""
        blocks = self._turn.blocks()
        if blocks is not None:
            keep_content([_converse_block(block) for block in blocks], memory)

    def _open(self, place: int, block: Json) -> None:
        self._opened.add(place)
        self._turn.open(place, block)


def _converse_block(block: Json) -> Json:
    match block["type"]:
        case "text":
            return {"text": block["text"]}
        case "tool_use":
            return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
        case "redacted_thinking":
            return {"reasoningContent": {"redactedContent": block["data"]}}
        case _:
            reasoning = {"text": block["thinking"], "signature": block["signature"]}
            return {"reasoningContent": {"reasoningText": reasoning}}
