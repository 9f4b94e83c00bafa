"""A generateContent request as a chat completion.

The request has the model and whether it is streamed in its path; here they stand in the body, as `model` and `stream`.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json, ServerFacts, objects, stops_for, strings, text_of
from gateway.dialects.gemini.in_answer.names import camel, inner, listed
from gateway.dialects.gemini.in_request.contents import ContentsOfCaller, system_of
from gateway.dialects.gemini.in_request.schema import json_schema
from gateway.dialects.gemini.out_request.options import BUDGETS
from gateway.dialects.schema_tools.schema import SchemaTooDeep, object_schema, size_of, strict_schema
from gateway.dialects.schema_tools.tools.tool_names import OPENAIS

_JSON: Final = "application/json"
_PLAIN: Final = (
    ("temperature", "temperature"),
    ("topP", "top_p"),
    ("seed", "seed"),
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
    ("candidateCount", "n"),
)
SAMPLING: Final = frozenset(("temperature", "topP", "topK"))
_MODES: Final = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
CHECKED: Final = "VALIDATED"
"""The mode in which arguments are held to their schemas."""
_TIERS: Final = {"flex": "flex", "priority": "priority", "standard": "default"}


def chat_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the chat completion. Raises InvalidRequest where the contents make no sense."""
    given = camel(body)
    config = inner(given, "generationConfig")
    made: Json = {"model": given.get("model"), "messages": _messages(given, facts)}
    takes_sampling = facts.takes_details or facts.model.sampling
    for name, theirs in _PLAIN:
        if (value := config.get(name)) is not None and (takes_sampling or name not in SAMPLING):
            made[theirs] = value
    if facts.takes_details and config.get("topK") is not None:
        made["top_k"] = ceil(top) if isinstance(top := config["topK"], float) else top  # theirs has a fraction
    if (most := config.get("maxOutputTokens")) is not None:
        made[facts.bound_field] = _bounded(most, facts)
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
    return made


def effort_of(config: Json) -> str | None:
    """Returns how much the model is to think, in the words of chat completions; None: nothing is said of it."""
    if level := text_of(config.get("thinkingLevel")).lower():
        return level if level in BUDGETS else None
    budget = config.get("thinkingBudget")
    if type(budget) is not int or budget < 0:  # -1: as the model sees fit
        return None
    if not budget:
        return "none"
    return next((name for name, most in BUDGETS.items() if budget <= most), "high")


def schema_asked(config: Json) -> Any:
    """Returns the JSON Schema of the answer; None: there is none."""
    for name in ("responseJsonSchema", "_responseJsonSchema"):
        if config.get(name) is not None:
            return config[name]
    schema = config.get("responseSchema")
    return None if schema is None else json_schema(schema)


def modalities_of(config: Json) -> list[str]:
    """Returns how the model is to answer, in small letters; empty: with text."""
    asked = [one.lower() for one in strings(config.get("responseModalities"))]
    return [] if asked == ["text"] else asked


def _bounded(most: Any, facts: ServerFacts) -> Any:
    if type(most) is not int or most < 1:
        where = "generationConfig.maxOutputTokens"
        raise InvalidRequest(f"The field '{where}' must be a whole number of at least 1.", param=where)
    highest = None if facts.takes_details else facts.model.max_output
    return most if highest is None else min(most, highest)


def _messages(given: Json, facts: ServerFacts) -> list[Json]:
    contents = listed(given.get("contents"))
    if not contents:
        raise InvalidRequest("The field 'contents' must be a list with at least one content.", param="contents")
    said = ContentsOfCaller(facts)
    for number, content in enumerate(contents):
        said.take(content, f"contents[{number}]")
    return system_of(given.get("systemInstruction"), facts) + said.all()


def _form(config: Json, facts: ServerFacts) -> Json:
    made: Json = {"modalities": modalities} if (modalities := modalities_of(config)) else {}
    schema = schema_asked(config)
    if not isinstance(schema, dict):
        is_json = text_of(config.get("responseMimeType")) == _JSON
        return made | ({"response_format": {"type": "json_object"}} if is_json else {})
    named = {"name": OPENAIS.of(text_of(schema.get("title")) or "output"), "schema": schema, "strict": False}
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
    if not functions:
        return {}
    is_checked = mode == CHECKED
    made: Json = {"tools": [_tool(one, number, facts, is_checked=is_checked) for number, one in enumerate(functions)]}
    if mode == "ANY" and len(allowed) == 1:
        made["tool_choice"] = {"type": "function", "function": {"name": allowed[0]}}
    elif mode in _MODES and mode != "AUTO":
        made["tool_choice"] = _MODES[mode]
    return made


def checked_schema(parameters: Any, facts: ServerFacts) -> Any:
    """Returns the schema that arguments can be held to; None: OpenAI takes none with optional properties, or of no end."""
    if not facts.requires_all:
        return object_schema(parameters)
    try:
        closed = strict_schema(object_schema(parameters))
    except SchemaTooDeep:
        return None
    return None if size_of(closed).optional else closed


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
