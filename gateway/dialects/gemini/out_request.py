"""A chat completion as a generateContent request.

In this order: parts, schemas, tools, options, and the request around them. What a model takes follows from its facts and
from nothing else. Each option is settled once, with what is lost of it, so that the request and the report of its gaps
cannot differ. No option raises: a value without sense goes on, and is refused there.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.base import MOST_NAMED, Json, ServerFacts, object_of, objects, strings, text_of
from gateway.dialects.gemini.in_answer import camel
from gateway.dialects.gemini.out_answer import signature_of_call, signatures_in
from gateway.dialects.issuers import STAND_IN
from gateway.dialects.memory import IN_ID, id_of_call
from gateway.dialects.schema_tools.chat_parts import EFFORTS, Media, data_url, file_of, nearest_effort, type_of_name
from gateway.dialects.schema_tools.schema import FORM_GAP, JSON_IN_WORDS, SCHEMA_IN_WORDS, described
from gateway.dialects.schema_tools.tools import (
    FUNCTIONS_ALONE,
    LESS_SEARCH,
    NO_SEARCH,
    ONLINE,
    ToolResult,
    Turn,
    function_of,
    functions_in,
    is_call_forced,
    is_search_alone,
    name_in,
    refuse_odd_tools,
    search_in,
    search_options,
    searches_offline,
    turns,
)

# --- Parts: words, and media by their data or their place ---


STORED: Final = "gs://"
"""Begins the place of what lies in Google's storage, which Vertex AI alone reads."""
PLACES: Final = ("https://", "http://", STORED)
_ANY_PICTURE: Final = "image/jpeg"
"""The type of a picture whose place does not tell it; the provider looks at what it finds there."""
_ANY_VIDEO: Final = "video/mp4"
_AUDIO: Final = {"audio/mpeg": "audio/mp3", "audio/x-m4a": "audio/mp4"}
"""Names of types that the provider has other ones for."""


def parts_of(content: Any, place: str, *, takes_media: bool = True) -> list[Json]:
    """Returns a message's content; empty words are left out. Raises InvalidRequest, naming the part that makes no sense.
    Nothing is decoded or fetched. Source: the Gemini API's reference, Content; media at any https URL are taken by the
    live API.
    """
    if type(content) is str:
        return [{"text": content}] if content else []
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
    made = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal"):
            text = part.get(kind)
            if not isinstance(text, str):
                where = f"{place}.content[{number}].{kind}"
                raise InvalidRequest(f"'{where}' must be a string.", param=where)
            if text:
                made.append({"text": text})
        elif takes_media and kind in ("image_url", "input_audio", "video_url", "file"):
            made.append(media_part(part, kind, f"{place}.content[{number}]"))
        else:
            where = f"{place}.content[{number}]"
            raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
    return made


def media_part(part: Json, kind: str, place: str) -> Json:
    """Returns a part with media. Raises InvalidRequest."""
    if kind == "input_audio":
        return _audio(object_of(part.get(kind)), f"{place}.{kind}")
    if kind == "file":
        return _file(object_of(part.get(kind)), f"{place}.{kind}")
    url = url_in(part, kind)
    if url is None:
        raise InvalidRequest(f"'{place}.{kind}' needs a 'url'.", param=f"{place}.{kind}")
    media = data_url(url)
    if media is not None:
        return _inline(media)
    kind_there = type_of_name(url) or (_ANY_PICTURE if kind == "image_url" else _ANY_VIDEO)
    return {"fileData": {"fileUri": url, "mimeType": kind_there}}


def url_in(part: Json, kind: str) -> str | None:
    """Returns where the picture or video of a part is, or the thing itself."""
    inner = part.get(kind)
    url = inner.get("url") if isinstance(inner, dict) else inner
    return url if isinstance(url, str) and url else None


def _audio(inner: Json, place: str) -> Json:
    data, form = inner.get("data"), inner.get("format")
    if not isinstance(data, str) or not data or not isinstance(form, str):
        raise InvalidRequest(f"'{place}' needs 'data' and a 'format'.", param=place)
    return _inline(data_url(data) or Media(type_of_name(f".{form}") or f"audio/{form}", data))


def _file(inner: Json, place: str) -> Json:
    data, name = inner.get("file_data"), inner.get("filename")
    if not isinstance(data, str) or not data:
        raise InvalidRequest(f"'{place}' needs 'file_data'.", param=place)
    if data.startswith(PLACES):
        kind = type_of_name(data) or type_of_name(name)
        return {"fileData": {"fileUri": data} | ({"mimeType": _AUDIO.get(kind, kind)} if kind else {})}
    media = file_of(data, name)
    if not media.type:
        message = f"'{place}' needs a 'filename' with an ending, or 'file_data' as a 'data:' URL, that tells its type."
        raise InvalidRequest(message, param=place)
    return _inline(media)


def _inline(media: Media) -> Json:
    return {"inlineData": {"mimeType": _AUDIO.get(media.type, media.type), "data": media.data}}


# --- Schemas, in the words that Gemini knows ---


_ODD: Final = re.compile(rb'"(?:\$ref|const|allOf|\$schema)"')
_ONE: Final = ("additionalProperties", "contains", "else", "if", "items", "not", "then")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf", "items", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_ANNOTATIONS: Final = frozenset(
    ("default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly", "$comment")
)
"""What may stand beside a reference without saying anything else of the values."""
_MOST_NODES: Final = 2_000
_MOST_DEPTH: Final = 100
"""What is nested deeper, or has more nodes, goes on as it is."""
_TYPES: Final = {str: "string", int: "integer", float: "number"}


class _TooLarge(Exception):
    """A schema without references would be too large, or without an end."""


def plain_schema(schema: Any) -> Any:
    """Returns a schema that says the same in other words; the same one where all of its words are known.

    What a reference leads to stands in its place, a constant is the one value. Beside a `$ref` nothing else may stand
    there, nor may it lead elsewhere than into `$defs`; `const` and an `allOf` of one are not known. What has another
    meaning without them, or no end, goes on as it is, and the provider says what it makes of it. Source: google-genai,
    `GenerationConfig.response_json_schema`.
    """
    if not isinstance(schema, dict) or not has_odd_words(schema):
        return schema
    if "$schema" in schema:  # the name of the language, which some servers take for a word of it
        schema = {name: one for name, one in schema.items() if name != "$schema"}
    try:
        made = _Plain(schema).of(schema, 0, frozenset())
    except _TooLarge:
        return schema
    if b'"$ref"' not in orjson.dumps({name: one for name, one in made.items() if name not in _DEFINITIONS}):
        made = {name: one for name, one in made.items() if name not in _DEFINITIONS}
    return made


def has_odd_words(schemas: Any) -> bool:
    """Returns whether there may be words in schemas, or in what has some in it, that Gemini does not know."""
    try:
        return _ODD.search(orjson.dumps(schemas)) is not None
    except orjson.JSONEncodeError:  # nested too deeply to be looked at
        return False


class _Plain:
    """Puts one schema into plain words."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._nodes = 0

    def of(self, schema: Any, depth: int, inside: frozenset[str]) -> Any:
        """Returns a schema within the root; `inside` are the references that led to it. Raises _TooLarge."""
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _MOST_DEPTH:
            raise _TooLarge
        ref = schema.get("$ref")
        if isinstance(ref, str):
            beside = {name: one for name, one in schema.items() if name != "$ref"}
            target = None if ref in inside else self._at(ref)
            if target is None or not _are_apart(beside, target):
                return schema
            return self.of({**target, **beside}, depth + 1, inside | {ref})
        whole = schema.get("allOf")
        if isinstance(whole, list) and len(whole) == 1 and isinstance(whole[0], dict):
            beside = {name: one for name, one in schema.items() if name != "allOf"}
            inner = self.of(whole[0], depth + 1, inside)
            if _are_apart(beside, inner):
                return self.of({**inner, **beside}, depth + 1, inside)
        return self._each(_without_constant(schema), depth, inside)

    def _each(self, schema: Json, depth: int, inside: frozenset[str]) -> Json:
        made = dict(schema)
        for name in _ONE:
            if isinstance(schema.get(name), dict):
                made[name] = self.of(schema[name], depth + 1, inside)
        for name in _SEVERAL:
            if isinstance(schema.get(name), list):
                made[name] = [self.of(one, depth + 1, inside) for one in schema[name]]
        for name in _NAMED:
            if isinstance(schema.get(name), dict):
                made[name] = {key: self.of(one, depth + 1, inside) for key, one in schema[name].items()}
        return made

    def _at(self, ref: str) -> Json | None:
        """Returns what a reference leads to (RFC 6901); None: it leads out of the schema, or to nothing."""
        if not ref.startswith("#/"):
            return None
        found: Any = self._root
        for step in unquote(ref[2:]).split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict):
                found = found.get(name)
            else:
                return None
        return found if isinstance(found, dict) else None


def _are_apart(beside: Json, target: Json) -> bool:
    """Returns whether two schemas that both hold are one with the words of both."""
    return all(name in _ANNOTATIONS or name in _DEFINITIONS or name not in target for name in beside)


def _without_constant(schema: Json) -> Json:
    """Returns the schema with a text or number that it is held to as the one value of a list, which says the same."""
    kind = _TYPES.get(type(schema.get("const")))
    if kind is None or "enum" in schema:
        return schema
    made = {name: one for name, one in schema.items() if name != "const"}
    return {"type": kind, **made, "enum": [schema["const"]]}


# --- Tools, and which of them is to be called ---


_MODES: Final = {"none": "NONE", "auto": "AUTO", "required": "ANY"}


def tools_and_choice(body: Json) -> tuple[Json, list[Gap]]:
    """Returns `tools` and `toolConfig`, and what they lose. Raises nothing: what makes no sense is left out.

    A function's parameters go on as the JSON Schema that they are (`parametersJsonSchema`): OpenAPI's kind of schema has no
    unions (UKGovernmentBEIS/inspect_ai#3097). Whether arguments are held to their schemas is one option for all functions.
    """
    gaps: list[Gap] = []
    given = functions_in(body, gaps)
    is_odd = has_odd_words(given)
    declared = [_declaration(tool, gaps, is_odd=is_odd) for tool in given]
    choice = _choice(body.get("tool_choice", body.get("function_call")), gaps)
    offered = search_in(body.get("tools"))
    search = [] if offered is None else _search(offered, body, gaps)
    if body.get("parallel_tool_calls") not in (None, True):
        gaps.append(Gap("parallel_tool_calls", How.DROPPED, "the model may call several tools at once"))
    if not declared:
        if choice.get("mode") == "ANY" and offered is not None:
            gaps.append(Gap("tool_choice", How.REFUSED, "the target cannot be made to search"))
        elif choice.get("mode") == "ANY":
            gaps.append(Gap("tool_choice", How.DROPPED, "there are no tools to choose from"))
        return ({"tools": search} if search else {}), gaps
    strict = [bool(function_of(tool).get("strict")) for tool in given]
    if any(strict) and choice.get("mode", "AUTO") == "AUTO":
        if all(strict):
            choice["mode"] = "VALIDATED"
        else:
            gaps.append(Gap("tools.strict", How.DROPPED, "all tools are held to their schemas, or none"))
    fields: Json = {"tools": [{"functionDeclarations": declared}]}
    return fields | ({"toolConfig": {"functionCallingConfig": choice}} if choice else {}), gaps


def has_tools(body: Json) -> bool:
    return bool(body.get("tools") or body.get("functions"))


def _search(offered: Json, body: Json, gaps: list[Gap]) -> list[Json]:
    """Returns Google's search. Models before Gemini 3 take it in calls without functions, and without a form of the answer."""
    kind = text_of(object_of(body.get("response_format")).get("type")) or "text"
    if not is_search_alone(body.get("tools")) or body.get("functions") or kind != "text" or searches_offline(offered):
        gaps.append(NO_SEARCH)
        return []
    options = search_options(offered)
    blocked = strings(options.get("blocked_domains"))
    if options.keys() - {ONLINE} - ({"blocked_domains"} if blocked else set()):
        gaps.append(LESS_SEARCH)
    return [{"googleSearch": {"excludeDomains": blocked} if blocked else {}}]


def _declaration(tool: Json, gaps: list[Gap], *, is_odd: bool) -> Json:
    named = function_of(tool)
    if "cache_control" in tool or "cache_control" in named:
        gaps.append(Gap("cache_control", How.DROPPED, "the target keeps beginnings of prompts by itself"))
    made: Json = {"name": named.get("name")}
    if named.get("description"):
        made["description"] = named["description"]
    if parameters := named.get("parameters"):
        made["parametersJsonSchema"] = plain_schema(parameters) if is_odd else parameters
    return made


def _choice(choice: Any, gaps: list[Gap]) -> Json:
    """Returns how functions are to be called; empty where the caller does not choose."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        if text_of(choice) in _MODES:
            return {"mode": _MODES[choice]}
        gaps.append(Gap("tool_choice", How.DROPPED, "there is no such choice"))
        return {}
    kind = text_of(choice.get("type", "function"))
    if kind == "allowed_tools":
        allowed = object_of(choice.get("allowed_tools"))
        names = [name for one in objects(allowed.get("tools")) if (name := name_in(one)) is not None]
        # AUTO takes no names; VALIDATED leaves it to the model, too, whether it calls one.
        return {"mode": "ANY" if allowed.get("mode") == "required" else "VALIDATED", "allowedFunctionNames": names}
    if kind != "function":
        gaps.append(Gap(f"tool_choice.{kind}"[:MOST_NAMED], How.REFUSED, FUNCTIONS_ALONE))
        return {}
    return {"mode": "ANY", "allowedFunctionNames": [name_in(choice)]}


# --- Options ---


BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
"""The tokens for thinking by effort, for models that take a number. Source: Gemini API, OpenAI compatibility."""
_MOST_STOPS: Final = 5
_SEEDS: Final = range(-(2**31), 2**31)
_JSON_TYPE: Final = "application/json"
_LABEL: Final = re.compile(r"[\w-]{0,63}")
_GOOGLES: Final = {"cached_content": "cachedContent", "safety_settings": "safetySettings"}
"""What Google's own chat completions know besides, and how generateContent has it. Source: Gemini API, OpenAI compatibility."""
_PLAIN: Final = (
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
)


class GenerateOptions:
    """All fields of a request but its contents and instructions, and what was lost in them."""

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self.gaps: list[Gap] = []
        self.instruction: str | None = None
        """What has to stand at the end of the instructions."""
        self._body, self._facts, self._model = body, facts, facts.model
        self._config: Json = {}
        self._googles: Json = {}
        self._bound()
        self._think()
        self._sample()
        self._form()
        for name in ("logprobs", "top_logprobs"):
            if not (value := self._body.get(name)):
                continue
            if not self._model.logprobs:
                self._lose(name, How.REFUSED, "the model tells no probabilities")
            elif name == "logprobs":
                self._config["responseLogprobs"] = True
            else:
                self._config["logprobs"] = value
        self._take_googles()
        fields, gaps = tools_and_choice(body)
        self.gaps += gaps
        self.fields: Json = fields | self._googles
        if self._config:
            self.fields["generationConfig"] = self._config
        self._address()

    def _bound(self) -> None:
        """Settles how long the answer may be, and how many there are."""
        body = self._body
        most = body.get("max_completion_tokens")
        most = body.get("max_tokens") if most is None else most
        if most is not None:
            highest = self._model.max_output
            self._config["maxOutputTokens"] = min(most, highest) if type(most) is int and highest else most
        if (count := body.get("n")) is not None and count != 1:
            self._config["candidateCount"] = count
        stop = body.get("stop")
        if stop:
            given = [stop] if isinstance(stop, str) else stop
            if isinstance(given, list) and len(given) > _MOST_STOPS:
                given = given[:_MOST_STOPS]
                self._lose("stop", How.DROPPED, f"the target stops at the first {_MOST_STOPS}")
            self._config["stopSequences"] = given

    def _think(self) -> None:
        effort, reasoning = self._body.get("reasoning_effort"), object_of(self._body.get("reasoning"))
        name = "reasoning_effort"
        if effort is None and reasoning:
            effort, name = reasoning.get("effort"), "reasoning"
            if effort is None and reasoning.get("enabled") is False:
                effort = "none"
        budget = reasoning.get("max_tokens")
        if effort is None and budget is None and not reasoning:
            return
        config: Json = {}
        if effort == "none":
            self._think_nothing(name, config)
        elif self._model.thinking == "none":
            self._lose(name, How.DROPPED, "the model does not think")
            return
        elif effort is None and budget is not None and self._model.thinking == "budget":
            config["thinkingBudget"] = budget
        elif effort is None:
            if budget is not None:
                self._lose(name, How.DROPPED, "the model is told no number of tokens for thinking")
        elif text_of(effort) not in EFFORTS:
            self._lose(name, How.DROPPED, "there is no such effort")
            return
        elif self._model.thinking == "budget":
            config["thinkingBudget"] = BUDGETS[effort]
            self._lose(name, How.APPROXIMATED, "it becomes a number of tokens for thinking")
        elif self._model.efforts:
            level = nearest_effort(effort, self._model.efforts)
            config["thinkingLevel"] = level.upper()
            if level != effort:
                self._lose(name, How.APPROXIMATED, "the model has other levels")
        if effort != "none" and reasoning.get("exclude") is not True:
            config["includeThoughts"] = True
        if config:
            self._config["thinkingConfig"] = config

    def _think_nothing(self, name: str, config: Json) -> None:
        model = self._model
        if model.thinking == "none":
            return
        if model.thinking_off != "never":
            config["thinkingBudget"] = 0
            return
        if model.thinking == "budget":
            config["thinkingBudget"] = BUDGETS["minimal"]
        elif model.efforts:
            config["thinkingLevel"] = model.efforts[0].upper()
        self._lose(name, How.APPROXIMATED, "the model always thinks: it thinks the least that it can")

    def _sample(self) -> None:
        body, config = self._body, self._config
        for name, ours in (("temperature", "temperature"), *_PLAIN):
            if (value := body.get(name)) is None:
                continue
            if self._model.sampling or name.endswith("penalty"):
                config[ours] = value
            else:
                self._lose(name, How.DROPPED, "the model is not told how to sample")
        if (seed := body.get("seed")) is not None:
            if isinstance(seed, int) and seed not in _SEEDS:
                self._lose("seed", How.DROPPED, "the target takes 32 bits")
            else:
                config["seed"] = seed

    def _form(self) -> None:
        form = self._body.get("response_format")
        kind = text_of(form.get("type")) if isinstance(form, dict) else "text"
        schema = described(object_of(object_of(form).get("json_schema"))) if kind == "json_schema" else None
        modalities = strings(self._body.get("modalities"))
        if "image" in modalities:
            self._config["responseModalities"] = [one.upper() for one in modalities if one in ("text", "image")]
        if kind == "text":
            return
        if kind not in ("json_schema", "json_object"):
            self._lose(f"response_format.{kind}"[:MOST_NAMED], How.REFUSED, "the target has no such format")
            return
        why = self._why_no_json(schema)
        if why is None:
            self._config["responseMimeType"] = _JSON_TYPE
            if isinstance(schema, dict):
                self._config["responseJsonSchema"] = plain_schema(schema)
        elif is_call_forced(self._body) and self._model.forced_tools:
            self._lose(f"response_format.{kind}", How.DROPPED, FORM_GAP)
        elif self._facts.approximates or schema is None:
            loss = "it is told in words, at the end of the instructions"
            self.instruction = JSON_IN_WORDS if schema is None else SCHEMA_IN_WORDS + orjson.dumps(schema).decode()
            self._lose(f"response_format.{kind}", How.APPROXIMATED, loss)
        else:
            self._lose(f"response_format.{kind}", How.REFUSED, why)

    def _why_no_json(self, schema: Any) -> str | None:
        """Returns why the answer cannot be held to JSON; None: it can."""
        if isinstance(schema, dict) and not self._model.json_schema:
            return "the model answers by no schema"
        has_functions = has_tools(self._body) and not is_search_alone(self._body.get("tools"))
        if has_functions and not self._model.tools_with_schema:
            return "the model has no tools in a call whose answer has a form"
        return None

    def _take_googles(self) -> None:
        """Takes what callers of Google's own chat completions say beyond OpenAI's fields."""
        extra, own = self._body.get("extra_body"), self._body.get("google")
        if isinstance(extra, dict):
            extra, own = {name: one for name, one in extra.items() if name != "google"}, extra.get("google", own)
        if extra or not isinstance(own, dict | None):
            self._lose("other", How.DROPPED, "the target has no such option")
        safety = self._body.get("safety_settings")
        for name, value in (object_of(own) | ({"safety_settings": safety} if safety else {})).items():
            if name == "thinking_config" and isinstance(value, dict):
                self._config["thinkingConfig"] = camel(value)
            elif name in _GOOGLES:
                self._googles[_GOOGLES[name]] = value
            else:
                self._lose("other", How.DROPPED, "the target has no such option")

    def _address(self) -> None:
        """Settles how the call is served, and what it is filed under."""
        tier = self._body.get("service_tier")
        if tier in ("flex", "priority"):
            self.fields["serviceTier"] = tier
        elif tier not in (None, "auto", "default"):
            self._lose("service_tier", How.DROPPED, "the target has no such tier")
        if metadata := self._body.get("metadata"):
            named = object_of(metadata) if self._facts.issuer == "vertex" else {}
            labels = {name: value for name, value in named.items() if name and _is_label(name) and _is_label(value)}
            if labels:
                self.fields["labels"] = labels
            if labels != metadata:
                self._lose("metadata", How.DROPPED, "the target files answers under no such label")

    def _lose(self, name: str, how: How, why: str) -> None:
        self.gaps.append(Gap(name, how, why))


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and _LABEL.fullmatch(value) is not None and value == value.lower()


# --- The request around them ---


_REFERENCES: Final = ("$ref", "$defs")
"""Keys that the provider takes for its own schemas', in a result too (vercel/ai#14369)."""

_LONG_NUMBER: Final = re.compile(r"[:\[,]\s*-?\d{20}")
"""Has more digits than a number keeps that is read and written again."""
_ROLES: Final = {"user": "user", "assistant": "model"}
_MORE: Final = frozenset(("tool_calls", "function_call", "reasoning_details", "refusal"))
"""Fields of an answer that make parts of it, or go with one."""


def generate_body(body: Json, facts: ServerFacts, settled: GenerateOptions) -> Json:
    """Returns the generateContent request, which takes its `settled` options over.

    Raises InvalidRequest, naming the place, where it makes no sense.
    """
    declared = settled.fields.get("tools", ())
    refuse_odd_tools(body, [one["name"] for tool in declared for one in tool.get("functionDeclarations", ())])
    conversation = _Contents(facts)
    for turn in turns(body.get("messages")):
        conversation.take(turn)
    system, contents = conversation.all()
    if settled.instruction is not None:
        system.append({"text": settled.instruction})
    made: Json = {"contents": contents}
    if system:
        made["systemInstruction"] = {"parts": system}
    return made | settled.fields


class _Contents:
    """Puts turns together to contents.

    Turns of one role that follow each other become one, for the provider wants them in turns. All results of a turn are in
    one content, each under the name of its tool, by which they are paired (braintrustdata/lingua#166).
    """

    def __init__(self, facts: ServerFacts) -> None:
        self._issuer = facts.issuer
        self._signs = facts.model.thinking == "level"
        """The model wants to see that it thought before it called a tool."""
        self._has_ids = facts.issuer != "vertex" or self._signs
        """Calls have ids; older models at Vertex AI know none."""
        self._system: list[Json] = []
        self._made: list[Json] = []
        self._role = ""
        """The role of the content that was made last."""

    def all(self) -> tuple[list[Json], list[Json]]:
        """Returns the instructions and the contents, of which there has to be one."""
        if self._made or not self._system:
            return self._system, self._made
        return [], [{"role": "user", "parts": self._system}]

    def take(self, turn: Turn) -> None:
        role, message = turn.role, turn.message
        content = message.get("content")
        if role == "tool":
            self._append("user", self._results(turn))
        elif role != "system" and type(content) is str and (role == "user" or _MORE.isdisjoint(message)):
            if content:
                self._append(_ROLES[role], [{"text": content}])
        elif role == "user":
            self._append("user", parts_of(content, turn.place))
        elif role == "assistant":
            self._answer(turn, content)
        elif not self._made:
            self._system += parts_of(content, turn.place, takes_media=False)
        elif parts := parts_of(content, turn.place, takes_media=False):
            instruction = "\n".join(part["text"] for part in parts)
            self._append("user", [{"text": f"<system>{instruction}</system>"}])

    def _append(self, role: str, parts: list[Json]) -> None:
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
        self._append("model", parts)

    def _results(self, turn: Turn) -> list[Json]:
        """Returns the results of a turn; their pictures and sounds stand behind them all."""
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
