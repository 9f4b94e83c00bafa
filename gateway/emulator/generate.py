"""Gemini's generateContent: reads a call, checks it as Google does, and answers it.

In this order: the contents (names, parts, and the pairing of calls with their results), tools and settings, the answer as one
JSON object or as a stream of such objects. Names may be camelCase or snake_case, as in every proto-JSON API. What Google would
refuse is refused in its words. It must not know limits, faults or time. Invariant: the parts of a stream, put together, say
what the JSON would have said; only `tail` carries a `finishReason`, in a chunk of its own as the newer models send it. Source:
the Gemini API reference, and refusals as the API words them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.messages import arguments_of
from gateway.emulator.replies import JSON, EmulatedReply, EmulatedStream, json_reply, refused, text_of
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import (
    GEMINI,
    Block,
    CacheUse,
    Composed,
    Segment,
    ToolWish,
    Writer,
    compose,
    is_gemini,
    sign,
    tokens,
)

# --- The contents: names, parts, and the pairing of calls with their results ---


_DATA = frozenset(
    {
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
_KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "": frozenset(
            {
                "contents",
                "systemInstruction",
                "tools",
                "toolConfig",
                "safetySettings",
                "generationConfig",
                "cachedContent",
                "labels",
                "serviceTier",
                "store",
                "model",
                "continuationToken",
                "modelArmorConfig",
            }
        ),
        "contents": frozenset({"role", "parts"}),
        "parts": _DATA
        | {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"},
        "functionCall": frozenset({"id", "name", "args", "partialArgs", "willContinue"}),
        "functionResponse": frozenset({"id", "name", "response", "parts", "scheduling", "willContinue"}),
        "inlineData": frozenset({"mimeType", "data", "displayName"}),
        "functionDeclarations": frozenset(
            {
                "name",
                "description",
                "parameters",
                "parametersJsonSchema",
                "response",
                "responseJsonSchema",
                "behavior",
            }
        ),
        "toolConfig": frozenset({"functionCallingConfig", "retrievalConfig", "includeServerSideToolInvocations"}),
        "functionCallingConfig": frozenset({"mode", "allowedFunctionNames", "streamFunctionCallArguments"}),
        "generationConfig": frozenset(
            {
                "stopSequences",
                "responseMimeType",
                "responseSchema",
                "responseJsonSchema",
                "responseModalities",
                "candidateCount",
                "maxOutputTokens",
                "temperature",
                "topP",
                "topK",
                "seed",
                "presencePenalty",
                "frequencyPenalty",
                "responseLogprobs",
                "logprobs",
                "enableEnhancedCivicAnswers",
                "speechConfig",
                "thinkingConfig",
                "imageConfig",
                "mediaResolution",
                "responseFormat",
                "routingConfig",
                "modelSelectionConfig",
                "audioTimestamp",
                "modelConfig",
                "enableAffectiveDialog",
                "translationConfig",
                "audioTranscriptionConfig",
            }
        ),
        "thinkingConfig": frozenset({"includeThoughts", "thinkingBudget", "thinkingLevel"}),
    }
)
_UNDERLINE = re.compile(r"_([a-z])")


def camel(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with its names in camelCase."""
    return {_UNDERLINE.sub(lambda match: match[1].upper(), name): value for name, value in given.items()}


def known(given: object, kind: str) -> dict[str, Any]:
    """Returns an object with its names in camelCase; raises ProblemError for a name that its kind has not."""
    if not isinstance(given, dict):
        raise refused(f"Invalid value at '{kind or 'request'}': expected an object.")
    named = camel(given)
    unknown = sorted(set(named) - _KNOWN[kind])
    if unknown:
        place = f' at "{kind}"' if kind else ""
        text = f'Invalid JSON payload received. Unknown name "{unknown[0]}"{place}: Cannot find field.'
        raise refused(text)
    return named


def listed(value: object) -> Sequence[Any]:
    """Returns a list as it is, and what stands for one, as one."""
    if value is None:
        return ()
    return value if isinstance(value, list) else [value]


def read_content(given: object, where: str) -> dict[str, Any]:
    """Returns a content and its parts, with their names in camelCase; raises ProblemError."""
    content = known(given, "contents")
    role = content.setdefault("role", "user")
    if role not in ("user", "model", "function", "system"):
        raise refused("Please use a valid role: user, model.")
    content["parts"] = [
        _part(part, f"{where}.parts[{place}]") for place, part in enumerate(listed(content.get("parts")))
    ]
    if not content["parts"]:
        raise refused(f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.\n")
    return content


def _part(given: object, where: str) -> dict[str, Any]:
    part = known(given, "parts")
    kinds = [name for name in part if name in _DATA]
    if not kinds and "thoughtSignature" not in part:
        text = "required oneof field 'data' must have one initialized field"
        raise refused(f"* GenerateContentRequest.{where}.data: {text}\n")
    if len(kinds) > 1:
        raise refused(f"Invalid value at '{where}' (oneof), oneof field 'data' is already set. Cannot set '{kinds[1]}'")
    if "text" in part and not isinstance(part["text"], str):
        raise refused(f"Invalid value at '{where}.text' (TYPE_STRING)")
    for name, held in (("functionCall", "args"), ("functionResponse", "response")):
        if name not in part:
            continue
        inner = part[name] = known(part[name], name)
        spelled = "function_call" if held == "args" else "function_response"
        if not isinstance(inner.get("name"), str) or not inner["name"]:
            raise refused(f"* GenerateContentRequest.{where}.{spelled}.name: Name cannot be empty.\n")
        if not isinstance(inner.get(held, {}), dict):
            raise refused(f"Invalid value at '{where}.{spelled}.{held}' (type.googleapis.com/google.protobuf.Struct)")
    response = part.get("functionResponse", {}).get("response", {})
    if '"$ref"' in text_of(response) and (found := _reference(response)):
        raise refused(f"Reference to '{found}' in {where}.function_response.response cannot be resolved.")
    if "inlineData" in part:
        inner = part["inlineData"] = known(part["inlineData"], "inlineData")
        if not isinstance(inner.get("data"), str) or inner["data"].startswith("data:") or "mimeType" not in inner:
            raise refused(f"Invalid value at '{where}.inline_data.data' (TYPE_BYTES), Base64 decoding failed")
    return part


def _reference(value: object) -> str | None:
    """Google takes a `$ref` inside a result for a reference."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            return str(value["$ref"])
        return next((found for each in value.values() if (found := _reference(each))), None)
    if isinstance(value, list):
        return next((found for each in value if (found := _reference(each))), None)
    return None


def check_turns(contents: Sequence[Mapping[str, Any]]) -> None:
    """A turn of calls follows a user's turn, and as many results follow it, each with the name of its call."""
    waiting: list[Mapping[str, Any]] = []
    for place, content in enumerate(contents):
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if calls and (place == 0 or content["role"] != "model"):
            text = "function call turn comes immediately after a user turn or after a function response turn."
            raise refused(f"Please ensure that {text}")
        if len(results) != len(waiting):
            text = "the number of function response parts is equal to the number of function call parts of the"
            raise refused(f"Please ensure that {text} function call turn.")
        for result in results:
            if all(
                call["name"] != result["name"] or call.get("id") != result.get("id", call.get("id")) for call in waiting
            ):
                raise refused(f"No function call turn has a call named '{result['name']}' with this id.")
        waiting = calls
    if waiting:
        raise refused("Please ensure that function response turn comes immediately after a function call turn.")


def check_signatures(contents: Sequence[Mapping[str, Any]]) -> None:
    """Of each step of the present turn the first call has to bring the signature of its thought back."""
    for place, content in reversed(list(enumerate(contents))):
        if content["role"] == "user" and not any("functionResponse" in part for part in content["parts"]):
            return
        part = next((part for part in content["parts"] if "functionCall" in part), None)
        if part is None:
            continue
        name, signature = part["functionCall"]["name"], part.get("thoughtSignature")
        if not signature:
            text = f"Function call is missing a thought_signature in functionCall parts. function call `{name}`"
            raise refused(f"{text}, position {place + 1}.")
        if not is_gemini(str(signature), name):
            raise refused("Corrupted thought signature.")


def texts_of(content: Mapping[str, Any]) -> Iterator[str]:
    """Returns the text that each part brings to the prompt."""
    for part in content["parts"]:
        if "text" in part:
            yield part["text"]
        elif "functionCall" in part:
            yield text_of(part["functionCall"].get("args", {}))
        elif "functionResponse" in part:
            yield text_of(part["functionResponse"].get("response", {}))


# --- Tools and settings ---


_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


def read_generate(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of generateContent or of its stream; raises ProblemError."""
    data = known(data, "")
    contents = [
        read_content(content, f"contents[{place}]") for place, content in enumerate(listed(data.get("contents")))
    ]
    if not contents:
        raise refused("* GenerateContentRequest.contents: contents is not specified\n")
    config = data["generationConfig"] = known(data.get("generationConfig") or {}, "generationConfig")
    config["thinkingConfig"] = known(config.get("thinkingConfig") or {}, "thinkingConfig")
    system = (
        read_content(data["systemInstruction"], "system_instruction")
        if data.get("systemInstruction")
        else {"parts": []}
    )
    data |= {"contents": contents, "systemInstruction": system, "tools": _tools(data, model)}
    _check_config(config)
    check_turns(contents)
    if model.startswith("gemini-3"):
        check_signatures(contents)
    texts = ["".join(texts_of(content)) for content in contents]
    prompt = "".join([text_of(data["tools"]) if data["tools"] else "", *texts_of(system), *texts])
    cap = config.get("maxOutputTokens")
    return CheckedRequest(model, data, prompt, texts[-1], cap, config.get("candidateCount") or 1)


def read_count(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of countTokens: contents, or a whole call under `generateContentRequest`."""
    inner = data.get("generateContentRequest") or data.get("generate_content_request")
    given = dict(inner) if isinstance(inner, dict) else dict(data)
    return read_generate(given, model)


def wish_of(data: Mapping[str, Any]) -> ToolWish:
    """Returns the functions that may be called, of a checked call."""
    config = (data.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if config.get("mode") == "NONE":
        return ToolWish({})
    declared = [each for tool in data["tools"] for each in tool.get("functionDeclarations") or ()]
    allowed = config.get("allowedFunctionNames")
    schemas = {
        each["name"]: each.get("parametersJsonSchema") or lowered(each.get("parameters"))
        for each in declared
        if not allowed or each["name"] in allowed
    }
    return ToolWish(schemas, None, "mode" in config)


def ends_with_result(data: Mapping[str, Any]) -> bool:
    """Returns whether the last content brings the result of a function."""
    return any("functionResponse" in part for part in data["contents"][-1]["parts"])


def lowered(schema: object) -> object:
    """Returns an OpenAPI schema with its types in lower case, as JSON Schema has them."""
    if isinstance(schema, list):
        return [lowered(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else lowered(value)
        for name, value in schema.items()
    }


def _tools(data: dict[str, Any], model: str) -> list[dict[str, Any]]:
    tools, names = [], []
    for tool in listed(data.get("tools")):
        if not isinstance(tool, dict):
            raise refused("Invalid value at 'tools': expected an object.")
        named = camel(tool)
        if "functionDeclarations" in named:
            declared = [known(each, "functionDeclarations") for each in listed(named["functionDeclarations"])]
            named["functionDeclarations"] = declared
            names += [_declared(each, place) for place, each in enumerate(declared)]
        tools.append(named)
    if len(set(names)) < len(names):
        raise refused(f"Duplicate function declaration found: {next(each for each in names if names.count(each) > 1)}")
    config = data["toolConfig"] = known(data.get("toolConfig") or {}, "toolConfig")
    calling = config["functionCallingConfig"] = known(
        config.get("functionCallingConfig") or {}, "functionCallingConfig"
    )
    mode, allowed = calling.get("mode"), calling.get("allowedFunctionNames")
    if mode is not None and mode not in _MODES:
        raise refused(f"Invalid value at 'tool_config.function_calling_config.mode' (TYPE_ENUM), \"{mode}\"")
    if not isinstance(allowed or [], list) or not all(isinstance(name, str) for name in allowed or ()):
        raise refused("Invalid value at 'tool_config.function_calling_config.allowed_function_names' (TYPE_STRING)")
    if allowed and mode not in ("ANY", "VALIDATED"):
        raise refused("Function calling config: allowed_function_names should only be set when mode is ANY.")
    if set(allowed or ()) - set(names):
        raise refused("Function calling config: allowed_function_names contains a name that is not declared.")
    if mode == "ANY" and not names:
        raise refused("Function calling config is set without function_declarations.")
    form = (data.get("generationConfig") or {}).get("responseMimeType")
    if names and form == "application/json" and not model.startswith("gemini-3"):
        raise refused("Function calling with a response mime type: 'application/json' is unsupported")
    return tools


def _declared(declaration: Mapping[str, Any], place: int) -> str:
    name = declaration.get("name")
    where = f"* GenerateContentRequest.tools[0].function_declarations[{place}]"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refused(f"{where}.name: Invalid function name. Must start with a letter or an underscore.\n")
    if declaration.get("parameters") and declaration.get("parametersJsonSchema"):
        raise refused(f"{where}: parameters and parameters_json_schema are mutually exclusive.\n")
    return name


def _check_config(config: Mapping[str, Any]) -> None:
    text_of(config)  # it may be nested too deeply
    for name, low, high, is_whole in (
        ("temperature", 0, 2, False),
        ("topP", 0, 1, False),
        ("candidateCount", 1, 8, True),
        ("maxOutputTokens", 1, None, True),
    ):
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise refused(f"Invalid value at 'generation_config.{name}', {value!r}")
        if value < low or (high is not None and value > high):
            text = f"must be in the range [{low}, {high}]" if high is not None else "must be positive"
            raise refused(f"* GenerateContentRequest.generation_config.{name}: {name} {text}.\n")
    if len(config.get("stopSequences") or ()) > 5:
        raise refused("* GenerateContentRequest.generation_config.stop_sequences: at most 5 are allowed.\n")
    has_schema = config.get("responseSchema") or config.get("responseJsonSchema")
    if has_schema and config.get("responseMimeType") not in ("application/json", "text/x.enum"):
        raise refused("response_schema is only supported with response_mime_type 'application/json'.")


# --- The answer ---


_FINISH: Mapping[str, str] = MappingProxyType(
    {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
)
_BROKEN = b'data: {"candidates": [{"content": {"parts": [{"te\r\n\r\n'
_IMPLICIT_S = 300.0
Parts = list[dict[str, Any]]


def answer_generate(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the whole object."""
    answers = [_compose(request, writer, choice) for choice in range(request.choices)]
    candidates = [
        {
            "content": {
                "parts": [part for parts in _whole(request, composed, writer) for part in parts],
                "role": "model",
            },
            "finishReason": _FINISH[composed.ending],
            "index": index,
        }
        for index, composed in enumerate(answers)
    ]
    head = _head(request, writer)
    return json_reply(
        {"candidates": candidates, "usageMetadata": _usage(request, writer, answers), **head}, _sum(answers)
    )


def stream_generate(request: CheckedRequest, writer: Writer) -> EmulatedStream:
    """Answers with server-sent events, as `alt=sse` asks for."""
    chunks, last, count = _stream(request, writer)
    return EmulatedStream(
        lead=b"",
        frames=map(_event, chunks),
        tail=b"".join(map(_event, last)),
        tokens=count,
        error_frame=lambda body: b"data: " + orjson.dumps(orjson.loads(body)) + b"\r\n\r\n",
        broken=_BROKEN,
    )


def stream_array(request: CheckedRequest, writer: Writer) -> EmulatedStream:
    """Answers with a JSON array that grows, as without `alt=sse`."""
    chunks, last, count = _stream(request, writer)
    return EmulatedStream(
        lead=b"[",
        frames=(orjson.dumps(chunk) + b"\n,\r\n" for chunk in chunks),
        tail=b"\n,\r\n".join(map(orjson.dumps, last)) + b"\n]\n",
        tokens=count,
        error_frame=lambda body: body + b"\n]\n",
        broken=b'{"candidates": [{"content": {"par\n,\r\n',
        content_type=JSON,
    )


def answer_count(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the tokens of a prompt."""
    count = request.prompt_tokens
    return json_reply({"totalTokens": count, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": count}]})


def blocked(prompt_tokens: int) -> dict[str, Any]:
    """Returns the whole answer to a prompt that Google will not answer."""
    return {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": prompt_tokens, "totalTokenCount": prompt_tokens},
    }


def _compose(request: CheckedRequest, writer: Writer, choice: int) -> Composed:
    data, config = request.data, request.data["generationConfig"]
    wish = wish_of(data)
    schema = config.get("responseJsonSchema") or lowered(config.get("responseSchema"))
    if schema is None and config.get("responseMimeType") == "application/json":
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    return compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(request),
        schema=schema if isinstance(schema, dict) else None,
        choice=choice,
    )


def _thinks(request: CheckedRequest) -> bool:
    config = request.data["generationConfig"]["thinkingConfig"]
    return bool(config.get("includeThoughts") or config.get("thinkingLevel") or config.get("thinkingBudget"))


def _parts(request: CheckedRequest, block: Block, writer: Writer, *, is_signed: bool) -> Parts:
    """Returns the parts of a block: none for a thought that the caller did not ask to see; only a first call is signed."""
    match block.kind:
        case "thought":
            is_shown = request.data["generationConfig"]["thinkingConfig"].get("includeThoughts")
            return [{"text": block.text, "thought": True}] if is_shown else []
        case "tool":
            call = {"name": block.name, "args": arguments_of(block), "id": writer.new_id("")[:8]}
            signed = {"thoughtSignature": sign(GEMINI, block.name)} if is_signed else {}
            return [{"functionCall": call, **signed}]
    return [{"text": block.text}]


def _stream(request: CheckedRequest, writer: Writer) -> tuple[Iterator[Mapping[str, Any]], list[dict[str, Any]], int]:
    answers = [_compose(request, writer, choice) for choice in range(request.choices)]
    usage, head = _usage(request, writer, answers), _head(request, writer)
    count = usage["promptTokenCount"]
    opening = {"promptTokenCount": count, "totalTokenCount": count}

    def chunk(index: int, parts: Parts, usage: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        ended = {"finishReason": reason} if reason else {}
        candidate = {"content": {"parts": parts, "role": "model"}, **ended, "index": index}
        return {"candidates": [candidate], "usageMetadata": usage, **head}

    news = (
        chunk(index, parts, opening)
        for index, composed in enumerate(answers)
        for parts in _pieces(request, composed, writer)
    )
    last = [chunk(index, [{"text": ""}], usage, _FINISH[composed.ending]) for index, composed in enumerate(answers)]
    return news, last, _sum(answers)


def _whole(request: CheckedRequest, composed: Composed, writer: Writer) -> Iterator[Parts]:
    first = next((block for block in composed.blocks if block.kind == "tool"), None)
    for block in composed.blocks:
        yield _parts(request, block, writer, is_signed=block is first)


def _pieces(request: CheckedRequest, composed: Composed, writer: Writer) -> Iterator[Parts]:
    first = next((block for block in composed.blocks if block.kind == "tool"), None)
    for block in composed.blocks:
        pieces = [block] if block.kind == "tool" else [Block(block.kind, [piece]) for piece in block.pieces]
        for piece in pieces:  # a call comes whole
            if parts := _parts(request, piece, writer, is_signed=block is first):
                yield parts


def _usage(request: CheckedRequest, writer: Writer, answers: Sequence[Composed]) -> dict[str, Any]:
    thoughts = sum(composed.thought_tokens for composed in answers)
    written, prompt = _sum(answers) - thoughts, request.prompt_tokens
    usage: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": written,
        "totalTokenCount": prompt + written + thoughts,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    cached = _cached(request, writer).read
    if cached:
        usage["cachedContentTokenCount"] = min(cached, prompt)
        usage["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": min(cached, prompt)}]
    return usage


def _cached(request: CheckedRequest, writer: Writer) -> CacheUse:
    """Google caches by itself; here, whatever was a system instruction before."""
    system = "".join(part.get("text", "") for part in request.data["systemInstruction"]["parts"])
    if not system:
        return CacheUse(tokens(len(request.prompt)))
    return writer.prompt_cache.use(request.model, [Segment(system, _IMPLICIT_S)])


def _head(request: CheckedRequest, writer: Writer) -> dict[str, Any]:
    return {"modelVersion": request.model, "responseId": writer.new_id("")[:22]}


def _sum(answers: Sequence[Composed]) -> int:
    return sum(composed.tokens for composed in answers)


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\r\n\r\n"
