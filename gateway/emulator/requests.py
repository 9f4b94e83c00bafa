"""Reads a request: JSON to a `CheckedRequest`, or the 400 a provider would give.

The only place that meets untrusted JSON. It must not know limits or answers. Invariant: an `CheckedRequest` that exists can be
answered; everything wrong with the request is a `ProblemError` that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.replies import EmulatedProblem, ProblemError


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A checked request: `prompt` is all its text, `echo` the part that an answer quotes, `max_tokens` its output cap."""

    model: str
    data: Mapping[str, Any]
    prompt: str = ""
    echo: str = ""
    max_tokens: int | None = None
    choices: int = 1
    inputs: tuple[str, ...] = ()
    is_filtered: bool = False  # a provider's own API is to refuse in its answer

    @property
    def prompt_tokens(self) -> int:
        """Four characters make a token."""
        return (len(self.prompt) + 3) // 4

    @property
    def is_stream(self) -> bool:
        return self.data.get("stream") is True


# (lowest, highest, whole numbers only); None: open end. Source: OpenAI's API reference.
_RANGES: Mapping[str, tuple[float | None, float | None, bool]] = MappingProxyType(
    {
        "temperature": (0, 2, False),
        "top_p": (0, 1, False),
        "presence_penalty": (-2, 2, False),
        "frequency_penalty": (-2, 2, False),
        "n": (1, 128, True),
        "max_tokens": (1, None, True),
        "max_completion_tokens": (1, None, True),
        "max_output_tokens": (1, None, True),
        "dimensions": (1, None, True),
    }
)
_STORED = ("previous_response_id", "conversation", "prompt")
STORED_PROMPTS_MODEL = "gpt-4o"
_MULTIPART_MODEL = re.compile(rb'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]+)')


def read_json(body: bytes, deployment: str | None, default_model: str | None = None) -> dict[str, Any]:
    """Returns the body as an object with a `model`; a deployment in the path stands for it. Raises ProblemError."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        text = f"We could not parse the JSON body of your request: {exc}."
        raise ProblemError(EmulatedProblem(400, text)) from None
    if not isinstance(data, dict):
        raise ProblemError(EmulatedProblem(400, f"Invalid body: expected a JSON object, but got {_an(data)} instead."))
    if deployment:
        data["model"] = deployment
    if isinstance(data.get("prompt"), dict):  # a stored prompt of the Responses API names its own model
        default_model = default_model or STORED_PROMPTS_MODEL
    model = data.setdefault("model", default_model)
    if model is None or model == "":
        raise ProblemError(EmulatedProblem(400, "you must provide a model parameter"))
    if not isinstance(model, str):
        raise _wrong_type("model", "a string", model)
    return data


def read_multipart(body: bytes, deployment: str | None) -> dict[str, Any]:
    """Returns the `model` field of a form; the file itself is of no interest. Raises ProblemError."""
    found = _MULTIPART_MODEL.search(body)
    model = deployment or (found[1].decode("utf-8", "replace") if found else "")
    if not model:
        raise ProblemError(EmulatedProblem(400, "you must provide a model parameter"))
    return {"model": model}


def read_chat(data: dict[str, Any]) -> CheckedRequest:
    """Reads a chat completion."""
    messages = _array(data, "messages")
    texts = [_text_of(message, f"messages[{index}]") for index, message in enumerate(messages)]
    _check_numbers(data)
    _check_stream(data)
    cap = data.get("max_completion_tokens") or data.get("max_tokens")
    return CheckedRequest(data["model"], data, "\n".join(texts), texts[-1], cap, data.get("n") or 1)


def read_completion(data: dict[str, Any]) -> CheckedRequest:
    """Reads a legacy text completion; a list of prompts is answered as one."""
    prompt = data.get("prompt", "")
    if isinstance(prompt, list):
        prompt = "\n".join(str(part) for part in prompt)
    if not isinstance(prompt, str):
        raise _wrong_type("prompt", "a string", prompt)
    _check_numbers(data)
    _check_stream(data)
    return CheckedRequest(data["model"], data, prompt, prompt, data.get("max_tokens") or 16, data.get("n") or 1)


def read_response(data: dict[str, Any]) -> CheckedRequest:
    """Reads a Responses call; `input` is a string or a list of items, or stands at the provider already."""
    given = data.get("input")
    if given is None and not any(data.get(name) for name in _STORED):
        raise _missing("input")
    if given is None or isinstance(given, str):
        texts = [given or ""]
    else:
        texts = [_text_of(item, f"input[{index}]") for index, item in enumerate(_array(data, "input"))]
    _check_numbers(data)
    instructions = data.get("instructions")
    prompt = "\n".join([instructions, *texts] if isinstance(instructions, str) else texts)
    return CheckedRequest(data["model"], data, prompt, texts[-1], data.get("max_output_tokens"))


def read_embedding(data: dict[str, Any]) -> CheckedRequest:
    """Reads an embeddings call: a text, a list of texts, a list of token numbers, or a list of such lists."""
    inputs = _inputs(data)
    _check_numbers(data)
    if data.get("encoding_format", "float") not in ("float", "base64"):
        text = "Invalid value for 'encoding_format': supported values are: 'float' and 'base64'."
        raise ProblemError(EmulatedProblem(400, text, param="encoding_format", code="invalid_value"))
    return CheckedRequest(data["model"], data, "\n".join(inputs), inputs=inputs)


def read_moderation(data: dict[str, Any]) -> CheckedRequest:
    """Reads a moderation call."""
    inputs = _inputs(data)
    return CheckedRequest(data["model"], data, "\n".join(inputs), inputs=inputs)


def read_prompt(field: str) -> Callable[[dict[str, Any]], CheckedRequest]:
    """Returns a reader for calls with one text in `field` (images, speech)."""

    def read(data: dict[str, Any]) -> CheckedRequest:
        text = data.get(field)
        if text is None:
            raise _missing(field)
        if not isinstance(text, str):
            raise _wrong_type(field, "a string", text)
        _check_numbers(data)
        return CheckedRequest(data["model"], data, text, text, choices=data.get("n") or 1)

    return read


def read_anything(data: dict[str, Any]) -> CheckedRequest:
    """Reads a call without a prompt (a transcription)."""
    return CheckedRequest(data["model"], data)


def _inputs(data: Mapping[str, Any]) -> tuple[str, ...]:
    given = data.get("input")
    if given is None:
        raise _missing("input")
    if isinstance(given, str):
        return (given,)
    items = _array(data, "input")
    if all(type(item) is int for item in items):
        return (" ".join(map(str, items)),)
    return tuple(_input_text(item, f"input[{index}]") for index, item in enumerate(items))


def _input_text(item: Any, where: str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return " ".join(map(str, item))
    if isinstance(item, dict):
        return _text_of(item, where)
    raise _wrong_type(where, "a string or an array of integers", item)


def _text_of(message: Any, where: str) -> str:
    """Returns all text of a message or of an input item, its parts joined."""
    if not isinstance(message, dict):
        raise _wrong_type(where, "an object", message)
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        return str(message.get("text") or message.get("output") or "")
    if not isinstance(content, list):
        raise _wrong_type(f"{where}.content", "a string or an array of parts", content)
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _array(data: Mapping[str, Any], name: str) -> list[Any]:
    given = data.get(name)
    if given is None:
        raise _missing(name)
    if not isinstance(given, list):
        raise _wrong_type(name, "an array", given)
    if not given:
        text = (
            f"Invalid '{name}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        raise ProblemError(EmulatedProblem(400, text, param=name, code="empty_array"))
    return given


def _check_numbers(data: Mapping[str, Any]) -> None:
    for name, (low, high, is_whole) in _RANGES.items():
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise _wrong_type(name, "an integer" if is_whole else "a decimal", value)
        kind = "integer" if is_whole else "decimal"
        if low is not None and value < low:
            raise ProblemError(_outside(name, kind, "below minimum", f">= {low:g}", value))
        if high is not None and value > high:
            raise ProblemError(_outside(name, kind, "above maximum", f"<= {high:g}", value))


def _check_stream(data: Mapping[str, Any]) -> None:
    stream = data.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong_type("stream", "a boolean", stream)
    if data.get("stream_options") is not None and not stream:
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise ProblemError(EmulatedProblem(400, text, param="stream_options"))


def _outside(name: str, kind: str, side: str, bound: str, value: float) -> EmulatedProblem:
    text = f"Invalid '{name}': {kind} {side} value. Expected a value {bound}, but got {value} instead."
    return EmulatedProblem(400, text, param=name, code=f"{kind}_{side.replace(' ', '_').replace('imum', '')}_value")


def _missing(name: str) -> ProblemError:
    text = f"Missing required parameter: '{name}'."
    return ProblemError(EmulatedProblem(400, text, param=name, code="missing_required_parameter"))


def _wrong_type(name: str, expected: str, value: object) -> ProblemError:
    text = f"Invalid type for '{name}': expected {expected}, but got {_an(value)} instead."
    return ProblemError(EmulatedProblem(400, text, param=name, code="invalid_type"))


def _an(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return names.get(type(value), "null" if value is None else "an object")


# --- Fields, of which unknown ones are refused where the emulator is strict ---


Known = Mapping[str, Any]
"""The fields within a field, by its name; None: it is not looked at (schemas, metadata and arguments are anybody's)."""


def _known(leaves: str, **within: Known) -> Known:
    return MappingProxyType({**dict.fromkeys(leaves.split()), **within})


_BOTH = (
    "model stream temperature top_p user metadata moderation parallel_tool_calls prompt_cache_key prompt_cache_retention"
    " safety_identifier service_tier store top_logprobs"
)
_MARK = _known("mode ttl")
_CACHE = _known("mode ttl prewarm")
_STREAM = _known("include_usage include_obfuscation")
_NAMED = _known("name")
_FUNCTION = _known("name description parameters strict")
_GRAMMAR = _known("syntax definition")
KNOWN: Mapping[str, Known] = MappingProxyType(
    {
        "chat/completions": _known(
            f"{_BOTH} audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens"
            " modalities n prediction presence_penalty reasoning_effort seed stop verbosity web_search_options",
            messages=_known(
                "role name refusal tool_call_id audio annotations",  # the last is of its own answers, which come back whole
                content=_known(
                    "type text refusal",
                    image_url=_known("url detail"),
                    file=_known("file_data file_id filename"),
                    input_audio=_known("data format"),
                    prompt_cache_breakpoint=_MARK,
                ),
                tool_calls=_known("id type", function=_known("name arguments"), custom=_known("name input")),
                function_call=_known("name arguments"),
            ),
            tools=_known(
                "type", function=_FUNCTION, custom=_known("name description", format=_known("type", grammar=_GRAMMAR))
            ),
            tool_choice=_known("type allowed_tools", function=_NAMED, custom=_NAMED),
            response_format=_known("type", json_schema=_known("name description schema strict")),
            prompt_cache_options=_CACHE,
            stream_options=_STREAM,
        ),
        "responses": _known(
            f"{_BOTH} access_programs background client_metadata context_management conversation image include instructions"
            " max_output_tokens max_tool_calls previous_response_id prompt truncation",
            input=_known(
                "type id status role name call_id namespace phase async caller created_by arguments input action"
                " encrypted_content summary",
                content=_known(
                    "type text refusal annotations logprobs image_url detail file_id file_data file_url filename",
                    input_audio=_known("data format"),
                    prompt_cache_breakpoint=_MARK,
                ),
                output=_known("type text image_url detail file_id file_data file_url filename"),
            ),
            reasoning=_known("effort context generate_summary mode summary"),
            text=_known("verbosity", format=_known("type name schema strict description")),
            tool_choice=_known("type name namespace mode server_label tools"),
            prompt_cache_options=_CACHE,
            stream_options=_STREAM,
        ),
    }
)
"""The fields of a request, by endpoint; the tools of Responses are of too many kinds."""


def refuse_unknown(endpoint: str, data: Mapping[str, Any]) -> None:
    """Raises ProblemError that names the first field which the language of the endpoint does not have."""
    known = KNOWN.get(endpoint)
    if known is not None:
        _look({name: value for name, value in data.items() if endpoint != "responses" or name != "tools"}, known, "")


def _look(value: Mapping[str, Any], known: Known, place: str) -> None:
    for name, given in value.items():
        where = f"{place}.{name}" if place else name
        if name not in known:
            text = f"Unknown parameter: '{where}'."
            raise ProblemError(EmulatedProblem(400, text, param=where, code="unknown_parameter"))
        inner = known[name]
        if inner is not None and isinstance(given, dict):
            _look(given, inner, where)
        elif inner is not None and isinstance(given, list):
            for number, one in enumerate(given):
                if isinstance(one, dict):
                    _look(one, inner, f"{where}[{number}]")
