"""A generateContent request as a chat completion.

In this order: parts that a user says, contents as messages (`ContentsOfCaller`), the model in the path, schemas, and the
request around them. Contents of one role that follow each other are one turn. Invariant: results are paired with calls by
their ids, and where there are none by the tools' names, in order; what cannot be is refused by its place.
"""

from __future__ import annotations

import re
from math import ceil
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import Json, ServerFacts, object_of, objects, stops_for, strings, text_of
from gateway.dialects.gemini.in_answer import camel, held_by, inner, listed, without_marks
from gateway.dialects.gemini.out_answer import detail_of_signature, extra_of_call
from gateway.dialects.gemini.out_request import BUDGETS
from gateway.dialects.openai.gaps import fitted
from gateway.dialects.schema_tools.chat_parts import type_of_name
from gateway.dialects.schema_tools.schema import SchemaTooDeep, object_schema, size_of, strict_schema
from gateway.dialects.schema_tools.tools import OPENAIS, SEARCH

# --- Parts that a user says; nothing is decoded or fetched ---


FORMATS: Final = {
    "audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3", "audio/flac": "flac",
    "audio/ogg": "ogg", "audio/aac": "aac", "audio/mp4": "m4a", "audio/aiff": "aiff", "audio/webm": "webm",
}  # fmt: skip
"""What chat completions call a sound's format, by its type."""
_ENDINGS: Final = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}
OWN_FILES: Final = ("gs://", "https://generativelanguage.googleapis.com/", "files/")
"""Begins the places of what was put at Google before, which nobody else can read."""


def chat_part(part: Json, place: str) -> Json:
    """Returns a part of a message. Raises InvalidRequest, naming the place, where there is none for it."""
    if isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if data := inner(part, "inlineData"):
        return _inline(text_of(data.get("mimeType")), text_of(data.get("data")), f"{place}.inlineData")
    file = inner(part, "fileData")
    url, kind = text_of(file.get("fileUri")), text_of(file.get("mimeType"))
    if not url or url.startswith(OWN_FILES):
        raise InvalidRequest(f"'{place}' is no part that this model's provider takes.", param=place)
    return at_place(url, kind or type_of_name(url))


def _inline(kind: str, data: str, place: str) -> Json:
    if not kind or not data:
        raise InvalidRequest(f"'{place}' needs a 'mimeType' and 'data'.", param=place)
    # Google's clients write Base64 for URLs; what others take is the usual alphabet.
    data = data.translate(_USUAL) if "-" in data or "_" in data else data
    if kind.startswith("audio/"):
        form = FORMATS.get(kind) or kind.removeprefix("audio/")
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    return at_place(f"data:{kind};base64,{data}", kind)


_USUAL: Final = str.maketrans("-_", "+/")


def at_place(url: str, kind: str) -> Json:
    """Returns the part for what is at a URL, or in one."""
    if kind.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": url}}
    if kind.startswith("image/") or not kind:
        return {"type": "image_url", "image_url": {"url": url}}
    ending = _ENDINGS.get(kind) or kind.rpartition("/")[2]
    return {"type": "file", "file": {"filename": f"file.{ending}", "file_data": url}}


# --- Contents as messages ---


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
                    self._add_model_turn(self._turn, camel(part), f"{place}.parts[{number}]")
        elif role in _USERS:
            self._end_turn()
            for number, part in enumerate(parts):
                if (text := _words_alone(part)) is not None:
                    self._later.append({"type": "text", "text": text})
                else:
                    self._add_user_turn(part, f"{place}.parts[{number}]")
        else:
            raise InvalidRequest(f"'{place}.role' must be user or model.", param=f"{place}.role")

    def all(self) -> list[Json]:
        """Returns the messages. Raises InvalidRequest where a call has no result."""
        self._end_turn()
        self._end_user()
        return self._made

    def _add_model_turn(self, turn: _ModelsTurn, part: Json, place: str) -> None:
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
        if signature and self._facts.takes("extra_content"):
            held = held_by(signature)
            extra = extra_of_call(signature, _GEMINI) if held is None else object_of(held.get("extra_content"))
            made |= {"extra_content": extra} if extra else {}
        return made

    def _add_user_turn(self, part: Any, place: str) -> None:
        named = camel({"text": part} if isinstance(part, str) else part)
        if "functionResponse" in named:
            self._answered(inner(named, "functionResponse"), place)
        else:
            self._later.append(chat_part(named, place))

    def _answered(self, response: Json, place: str) -> None:
        id, name = text_of(response.get("id")), text_of(response.get("name"))
        found = next((one for one in self._unanswered if (one[0] == id if id else one[1] == name)), None)
        if found is None:
            message = (
                f"'{place}' is the result of a call of '{name or id}', which no call of the turn before it waits for."
            )
            raise InvalidRequest(message, param=place)
        self._unanswered.remove(found)
        result = response.get("response")
        alone = result.get("output", result.get("result")) if isinstance(result, dict) and len(result) == 1 else None
        content = alone if isinstance(alone, str) else orjson.dumps(result, option=orjson.OPT_NON_STR_KEYS).decode()
        made: Json = {"role": "tool", "tool_call_id": found[0], "content": content}
        if self._facts.takes_details and isinstance(result, dict) and result.keys() == {"error"}:
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
        """Ends the user's turn. Raises InvalidRequest where a call has no result, for chat completions want one of each."""
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
    """A turn of the model's: thoughts, words and calls, which are one message."""

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
            self._details.append(detail_of_signature(signature, _GEMINI, len(self._details)))
            self._unsigned += [words] if words else []
        elif detail := object_of(held.get("detail")):
            part = {"text": words} if words and detail.get("type") == "reasoning.text" else {}
            self._details.append({**detail, **part, "index": len(self._details)})

    def made(self, facts: ServerFacts) -> Json | None:
        """Returns the message; None: nothing of what it was can go back."""
        text = "".join(self.texts)
        made: Json = {"role": "assistant", "content": text or (None if self.calls else "")}
        if self.calls:
            made["tool_calls"] = self.calls
        if facts.takes("reasoning_details") and self._details:
            made["reasoning_details"] = self._details
        words = "\n\n".join([*self._unsigned, *filter(None, [self._thought])])
        if words and facts.takes_reasoning:
            made["reasoning_content"] = words
        return made if text or len(made) > 2 else None


# --- The model and the stream, which Gemini's callers name in the path ---


_FRONT: Final = re.compile(rb'\{"model":"(?:[^"\\]|\\.)*+"(,"stream":true)?,?')


def taken_out(body: bytes) -> tuple[bool, bytes]:
    """Returns whether a stream is wanted, and the body without its front, as it came from the caller.

    Gemini's callers name the model in the path, and by its last word whether they want a stream. Inside the gateway both
    stand in front of the body (`registry.front_of`), where all other languages have them, as `model` and `stream`.
    """
    found = _FRONT.match(body)
    if found is None:  # edited by the config, and so written anew
        parsed = orjson.loads(body)
        rest = {name: value for name, value in parsed.items() if name not in ("model", "stream")}
        return parsed.get("stream") is True, without_marks(orjson.dumps(rest))
    return found.group(1) is not None, without_marks(b"{" + body[found.end() :])


# --- Schemas: Gemini's own, a part of OpenAPI 3.0's, as JSON Schemas ---


MOST_DEPTH: Final = 60
_NUMBERS: Final = frozenset(("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties"))
"""Numbers that Google's JSON has as strings, because they are of 64 bits."""
_NULL: Final = {"type": "null"}
_NOT_THERE: Final = frozenset(("nullable", "propertyOrdering"))
"""What JSON Schema says otherwise."""


def json_schema(schema: Any, depth: int = MOST_DEPTH) -> Any:
    """Returns a schema of Gemini's as a JSON Schema; one that is a JSON Schema already stays what it is.

    Source: the Gemini API's reference, Schema.
    """
    if not isinstance(schema, dict) or not depth:
        return schema
    given, made = camel(schema), dict[str, Any]()
    for name, value in given.items():
        if name in _NOT_THERE:
            continue
        if name == "type" and isinstance(value, str):
            made[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            # the names in it are the caller's own, and stay as they are
            made[name] = {
                key: json_schema(value[key], depth - 1) for key in _ordered(value, given.get("propertyOrdering"))
            }
        elif name == "items":
            made[name] = json_schema(value, depth - 1)
        elif name == "anyOf" and isinstance(value, list):
            made[name] = [json_schema(one, depth - 1) for one in value]
        elif name in _NUMBERS and isinstance(value, str) and value.isdigit():
            made[name] = int(value)
        elif name == "example":
            made["examples"] = [value]
        elif name != "format" or value != "enum":
            made[name] = value
    return _nullable(made) if given.get("nullable") is True else made


def _ordered(properties: dict[str, Any], order: Any) -> list[str]:
    """Returns the names of properties as they are to come: models keep to the order in which a schema has them."""
    first = [name for name in strings(order) if name in properties]
    return [*dict.fromkeys([*first, *properties])]


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    """Lets nothing be a value, too: in each word that says what the values are."""
    if isinstance(made.get("type"), str) and made["type"] != "null":
        made["type"] = [made["type"], "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    if isinstance(made.get("anyOf"), list) and _NULL not in made["anyOf"]:
        made["anyOf"] = [*made["anyOf"], _NULL]
    return made


# --- The request around them ---


_JSON: Final = "application/json"
_PLAIN: Final = (
    ("temperature", "temperature"),
    ("topP", "top_p"),
    ("seed", "seed"),
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
    ("candidateCount", "n"),
)
_MODES: Final = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
CHECKED: Final = "VALIDATED"
"""The mode in which arguments are held to their schemas."""
SEARCHES: Final = frozenset(("googleSearch", "googleSearchRetrieval"))
_TIERS: Final = {"flex": "flex", "priority": "priority", "standard": "default"}


def chat_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the chat completion. Raises InvalidRequest where the contents make no sense."""
    given = camel(body)
    config = inner(given, "generationConfig")
    made: Json = {"model": given.get("model"), "messages": _messages(given, facts)}
    for name, theirs in _PLAIN:
        if (value := config.get(name)) is not None:
            made[theirs] = value
    if facts.takes_details and config.get("topK") is not None:
        made["top_k"] = ceil(top) if isinstance(top := config["topK"], float) else top  # theirs has a fraction
    if (most := config.get("maxOutputTokens")) is not None:
        if type(most) is not int or most < 1:
            where = "generationConfig.maxOutputTokens"
            raise InvalidRequest(f"The field '{where}' must be a whole number of at least 1.", param=where)
        highest = None if facts.takes_details else facts.model.max_output
        made[facts.bound_field] = most if highest is None else min(most, highest)
    if stops := stops_for(config.get("stopSequences"), facts):
        made["stop"] = stops
    if config.get("responseLogprobs"):
        made["logprobs"] = True
        made |= {"top_logprobs": config["logprobs"]} if config.get("logprobs") else {}
    if (effort := effort_of(inner(config, "thinkingConfig"))) is not None:
        made["reasoning_effort"] = effort
    made |= _form(config, facts) | _tools(given, facts)
    if (tier := _TIERS.get(text_of(given.get("serviceTier")).lower())) and (
        facts.takes_developer or facts.takes_details
    ):
        made["service_tier"] = tier
    if body.get("stream"):
        made |= {"stream": True, "stream_options": {"include_usage": True}}
    return made if facts.takes_details else fitted(made, facts)[0]


def effort_of(config: Json) -> str | None:
    """Returns how much the model is to think, in the words of chat completions; None: the request does not say."""
    if level := text_of(config.get("thinkingLevel")).lower():
        return level if level in BUDGETS else None
    budget = config.get("thinkingBudget")
    if type(budget) is not int or budget < 0:  # -1: as the model sees fit
        return None
    if not budget:
        return "none"
    return next((name for name, most in BUDGETS.items() if budget <= most), "high")


def requested_schema(config: Json) -> Any:
    """Returns the JSON Schema of the answer; None: there is none."""
    for name in ("responseJsonSchema", "_responseJsonSchema"):
        if config.get(name) is not None:
            return config[name]
    schema = config.get("responseSchema")
    return None if schema is None else json_schema(schema)


def modalities_of(config: Json) -> list[str]:
    """Returns how the model is to answer, in small letters; empty: with text."""
    modalities = [one.lower() for one in strings(config.get("responseModalities"))]
    return [] if modalities == ["text"] else modalities


def _messages(given: Json, facts: ServerFacts) -> list[Json]:
    contents = listed(given.get("contents"))
    if not contents:
        raise InvalidRequest("The field 'contents' must be a list with at least one content.", param="contents")
    conversation = ContentsOfCaller(facts)
    for number, content in enumerate(contents):
        conversation.take(content, f"contents[{number}]")
    return system_of(given.get("systemInstruction"), facts) + conversation.all()


def _form(config: Json, facts: ServerFacts) -> Json:
    made: Json = {"modalities": modalities} if (modalities := modalities_of(config)) else {}
    schema = requested_schema(config)
    if not isinstance(schema, dict):
        is_json = text_of(config.get("responseMimeType")) == _JSON
        return made | ({"response_format": {"type": "json_object"}} if is_json else {})
    checked = checked_form(schema, facts)
    named = {
        "name": OPENAIS.of(text_of(schema.get("title")) or "output"),
        "schema": schema if checked is None else checked,
    }
    named["strict"] = checked is not None
    return made | {"response_format": {"type": "json_schema", "json_schema": named}}


def declarations(given: Json) -> list[Json]:
    """Returns the functions of all tools, with their names in camel case."""
    tools = (camel(tool) for tool in listed(given.get("tools")))
    return [camel(one) for tool in tools for one in objects(listed(tool.get("functionDeclarations")))]


def _tools(given: Json, facts: ServerFacts) -> Json:
    calling = inner(inner(given, "toolConfig"), "functionCallingConfig")
    mode, allowed = text_of(calling.get("mode")).upper(), strings(calling.get("allowedFunctionNames"))
    functions = declarations(given)
    if allowed and mode in ("ANY", "VALIDATED"):
        functions = [one for one in functions if one.get("name") in allowed]
    search = [_search(tool) for tool in map(camel, listed(given.get("tools"))) if SEARCHES & tool.keys()]
    if not facts.takes_details:
        search = []
    if not functions and not search:
        return {}
    is_checked = mode == CHECKED
    made: Json = {"tools": [_tool(one, number, facts, is_checked=is_checked) for number, one in enumerate(functions)]}
    made["tools"] += search[:1]
    if not functions:
        return made
    if mode == "ANY" and len(allowed) == 1:
        made["tool_choice"] = {"type": "function", "function": {"name": allowed[0]}}
    elif mode in _MODES and mode != "AUTO":
        made["tool_choice"] = _MODES[mode]
    return made


def _search(tool: Json) -> Json:
    """Returns Google's own search as Responses have it."""
    blocked = strings(inner(tool, "googleSearch").get("excludeDomains"))
    return {"type": SEARCH} | ({"filters": {"blocked_domains": blocked}} if blocked else {})


def checked_schema(parameters: Any, facts: ServerFacts) -> Any:
    """Returns the schema that arguments can be held to; None: OpenAI takes none with optional properties, or of no end."""
    if not facts.requires_all:
        return object_schema(parameters)
    try:
        closed = strict_schema(object_schema(parameters))
    except SchemaTooDeep:
        return None
    return None if size_of(closed).optional else closed


def checked_form(schema: Any, facts: ServerFacts) -> Any:
    """Returns the schema that an answer can be held to; None: it cannot, for OpenAI's have no optional properties either."""
    is_object = isinstance(schema, dict) and schema.get("type") == "object"
    return checked_schema(schema, facts) if is_object or not facts.requires_all else None


def parameters_of(function: Json) -> Any:
    """Returns the JSON Schema of a function's arguments; None: it has none."""
    if (parameters := function.get("parametersJsonSchema")) is not None:
        return parameters
    parameters = function.get("parameters")
    return None if parameters is None else json_schema(parameters)


def _tool(one: Json, number: int, facts: ServerFacts, *, is_checked: bool) -> Json:
    name = one.get("name")
    if not isinstance(name, str) or not name:
        place = f"tools[0].functionDeclarations[{number}].name"
        raise InvalidRequest(f"'{place}' must be a string.", param=place)
    made: Json = {"name": name}
    if one.get("description"):
        made["description"] = one["description"]
    parameters = parameters_of(one)
    if is_checked and (checked := checked_schema(parameters, facts)) is not None:
        parameters = checked
        made["strict"] = True
    if parameters is not None:
        made["parameters"] = parameters
    return {"type": "function", "function": made}
