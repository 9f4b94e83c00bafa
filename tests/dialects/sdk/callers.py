"""What callers of each language say: the least that makes sense of each object, and whole conversations around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from openai.types import embedding_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from tests.dialects.sdk.forms import Forms, Json, Reader, recorded_forms
from tests.dialects.sdk.walk import Given

CODE = "aGk="
PICTURE = f"data:image/png;base64,{CODE}"
FILE = {"file_data": f"data:application/pdf;base64,{CODE}", "filename": "a.pdf"}
SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def forms_of(root: Any, *, is_openais: bool = True) -> Forms:
    """Returns the forms of one of OpenAI's types; others of its kind take back what the model thought."""
    reader = Reader()
    form = reader.form(root)
    reader.types[form[1:]] |= {"stream": "bool"}
    if "ChatCompletionAssistantMessageParam" in reader.types and not is_openais:
        reader.types["ChatCompletionAssistantMessageParam"] |= {"reasoning_content": "str"}
    return Forms(form, reader.types)


def paired_chat(body: Json) -> Json:
    """Gives each call of a chat completion its result, and each result its call."""
    said: list[Json] = []
    for message in body["messages"]:
        if message["role"] == "tool" and not any(one.get("tool_calls") for one in said):
            said.append({"role": "assistant", "content": None, "tool_calls": [CALL | {"id": message["tool_call_id"]}]})
        if message["role"] == "function":
            said.append(
                {"role": "assistant", "content": None, "function_call": {"name": message["name"], "arguments": "{}"}}
            )
        said.append(message)
        said += [
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message.get("tool_calls") or ()
        ]
        if message.get("function_call"):
            said.append({"role": "function", "name": message["function_call"]["name"], "content": "ok"})
    made = body | {"messages": [said[0], *said[1:]] if said[0]["role"] != "assistant" else [USER, *said]}
    if said[-1]["role"] == "assistant" or all(one["role"] in ("system", "developer") for one in said):
        made["messages"] = [*made["messages"], USER]
    return made


def paired_messages(body: Json) -> Json:
    """Gives each call of a request of Messages its result, and each result its call."""
    said: list[Json] = []
    for message in body["messages"]:
        blocks = [block for block in message["content"] if isinstance(block, dict)]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if results:
            said.append({"role": "assistant", "content": [USE | {"id": id} for id in results]})
        said.append(message)
        used = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if used:
            said.append({"role": "user", "content": [RESULT | {"tool_use_id": id} for id in used]})
    if said[0]["role"] != "user":
        said.insert(0, USER)
    if said[-1]["role"] != "user":
        said.append(USER)
    return body | {"messages": said}


def paired_responses(body: Json) -> Json:
    """Gives each call of a request of Responses its result, and each result its call."""
    if not isinstance(body.get("input"), list):
        return body
    said: list[Json] = []
    for item in body["input"]:
        kind, id = item.get("type", "message"), item.get("call_id")
        if kind in ("function_call_output", "custom_tool_call_output"):
            said.append({"type": kind.removesuffix("_output"), "call_id": id, "name": "f"}
                        | ({"arguments": "{}"} if kind.startswith("function") else {"input": "{}"}))  # fmt: skip
        said.append(item)
        if kind in ("function_call", "custom_tool_call"):
            said.append({"type": f"{kind}_output", "call_id": id, "output": "ok"})
    return body | {"input": said}


def told_generate(body: Json) -> Json:
    """Gives each part one thing to be, each call its result, and each result its call."""
    said: list[Json] = []
    for content in body["contents"]:
        parts = [_one_thing(part) for part in content.get("parts", ())]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if results:
            said.append({"role": "model", "parts": [{"functionCall": {**_named(one), "args": {}}} for one in results]})
        is_models = calls or any(part.keys() & {"thought", "thoughtSignature"} for part in parts)
        said.append({**content, "parts": parts} | ({"role": "model"} if is_models else {}))
        if calls:
            shown = [{"functionResponse": {**_named(one), "response": {"a": 1}}} for one in calls]
            said.append({"role": "user", "parts": shown})
    if said[0].get("role") == "model":
        said.insert(0, TURN)
    return body | {"contents": said if said[-1].get("role") != "model" else [*said, TURN]}


def _one_thing(part: Json) -> Json:
    """A part of theirs is words, or something else, with words about it."""
    beside = {"text", "thought", "thoughtSignature", "mediaProcessing", "mediaResolution", "partMetadata"}
    is_words = all(name in beside or name.endswith("Metadata") for name in part)
    made = part if is_words else {name: value for name, value in part.items() if name != "text"}
    shown = made.get("functionResponse", {}).get("parts", ())
    if not any("fileData" in one for one in shown):
        return made
    parts = [{name: value for name, value in one.items() if name != "inlineData"} for one in shown]
    return {**made, "functionResponse": {**made["functionResponse"], "parts": parts}}


def _named(one: Json) -> Json:
    return {name: one[name] for name in ("id", "name") if name in one}


USER: Json = {"role": "user", "content": "x"}
CALL: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
TURN: Json = {"role": "user", "parts": [{"text": "x"}]}
FUNCTION: Json = {"name": "f", "parameters": SCHEMA}

CHAT = Given(
    {
        "CompletionCreateParamsNonStreaming": {
            "model": "m",
            "messages": [USER],
            "stream": True,
            "tools": [{"type": "function", "function": FUNCTION}],
        },
        "ChatCompletionAssistantMessageParam": {"content": "x"},
        "ChatCompletionMessageFunctionToolCallParam": CALL,
        "Function": {"arguments": "{}", "name": "f"},
        "FunctionCall": {"arguments": "{}", "name": "f"},
        "FunctionDefinition": FUNCTION,
        "ImageURL": {"url": PICTURE},
        "FileFile": FILE,
        "InputAudio": {"data": CODE, "format": "wav"},
        "JSONSchema": {"name": "x", "schema": SCHEMA},
        "Detail": {"type": "reasoning.text", "text": "x", "signature": "S", "format": "anthropic-claude-v1"},
        "ChatCompletionAllowedToolsParam": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        "ChatCompletionNamedToolChoiceParam": {"function": {"name": "f"}},
    },
    {
        "arguments": '{"told":1}',
        "max_tokens": 99,
        "max_completion_tokens": 99,
        "ChatCompletionAllowedToolsParam.tools": [{"type": "function", "function": {"name": "g"}}],
    },
    paired_chat,
)
RESPONSES = Given(
    {
        "ResponseCreateParamsNonStreaming": {
            "model": "m",
            "input": "x",
            "stream": True,
            "tools": [{"type": "function", **FUNCTION, "strict": False}],
        },
        "FunctionToolParam": FUNCTION | {"strict": False},
        "ResponseInputImageParam": {"image_url": PICTURE},
        "ResponseInputImageContentParam": {"image_url": PICTURE},
        "ResponseInputFileParam": FILE,
        "ResponseInputFileContentParam": FILE,
        "FunctionCallOutput": {"call_id": "a", "output": "x"},
        "ResponseFunctionToolCallParam": {"arguments": "{}", "name": "f", "call_id": "a"},
        "ResponseFormatTextJSONSchemaConfigParam": {"name": "x", "schema": SCHEMA},
    },
    {"arguments": '{"told":1}', "max_output_tokens": 99},
    paired_responses,
)
MESSAGES = Given(
    {
        "MessageCreateParamsNonStreaming": {"model": "m", "max_tokens": 9000, "messages": [USER], "stream": True,
                                         "tools": [{"name": "f", "input_schema": SCHEMA}]},
        "BetaToolParam": {"name": "f", "input_schema": SCHEMA},
        "BetaBase64ImageSourceParam": {"data": CODE, "media_type": "image/png"},
        "BetaBase64PDFSourceParam": {"data": CODE},
        "BetaSystemMessageParam": {"role": "system", "content": "x"},
        "BetaToolUseBlockParam": USE,
        "BetaToolResultBlockParam": RESULT,
    },
    {"max_tokens": 8000},
    paired_messages,
)  # fmt: skip
GENERATE = Given(
    {
        "Request": {"contents": [TURN], "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": SCHEMA}]}]},
        "Content": TURN,
        "Part": {"text": "x"},
        "Blob": {"data": CODE, "mimeType": "image/png"},
        "FileData": {"fileUri": "https://a.b/c.png", "mimeType": "image/png"},
        "FunctionCall": {"name": "f", "args": {}},
        "FunctionResponse": {"name": "f", "response": {"a": 1}},
        "FunctionResponsePart": {"inlineData": {"data": CODE, "mimeType": "image/png"}},
        "FunctionResponseBlob": {"data": CODE, "mimeType": "image/png"},
        "FunctionResponseFileData": {"fileUri": "https://a.b/c.png", "mimeType": "image/png"},
        "FunctionDeclaration": {"name": "f"},
        "Schema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
    },
    {"maxOutputTokens": 99, "Content.role": "model", "Blob.mimeType": "image/webp", "topK": 7.0,
     "FunctionResponseBlob.mimeType": "image/webp"},
    told_generate,
)  # fmt: skip


@cache
def target_forms(language: str, *, is_openais: bool = True) -> Forms:
    """Returns what may be said to a target in its language."""
    if language == "chat":
        return forms_of(completion_create_params.CompletionCreateParamsNonStreaming, is_openais=is_openais)
    if language == "responses":  # where a chat completion's fields that nobody knows go on as they are
        forms = CALLERS[language][0]()
        forms.types[forms.root[1:]] |= {"cache_control": "any", "thinking": "any"}
        return forms
    return recorded_forms({"vertex": "generate"}.get(language, language), "request")


def chat_forms() -> Forms:
    """Returns what callers of chat completions say, with what OpenAI's types do not have and many servers understand."""
    forms = forms_of(completion_create_params.CompletionCreateParamsNonStreaming, is_openais=False)
    mark: Json = {"cache_control": "@CacheControl"}
    added: dict[str, Json] = {
        "ChatCompletionAssistantMessageParam": {"reasoning": "str", "reasoning_details": ["@Detail"], **mark},
        "ChatCompletionContentPartTextParam": mark,
        "ChatCompletionContentPartImageParam": mark,
        "ChatCompletionToolMessageParam": mark,
        "ChatCompletionUserMessageParam": mark,
        "ChatCompletionSystemMessageParam": mark,
        "ChatCompletionFunctionToolParam": mark,
        "CompletionCreateParamsNonStreaming": {"top_k": "int", "thinking": "@Thinking", **mark},
    }
    for name, fields in added.items():
        forms.types[name] |= fields
    forms.types.update({
        "CacheControl": {"type!": {"=": ["ephemeral"]}, "ttl": {"=": ["5m", "1h"]}},
        "Detail": {"type!": {"=": ["reasoning.text"]}, "text!": "str", "signature": "str",
                   "format": {"=": ["anthropic-claude-v1", "google-gemini-v1", "openai-responses-v1"]}},
        "Thinking": {"type!": {"=": ["enabled"]}, "budget_tokens!": "int"},
    })  # fmt: skip
    return forms


EMBEDDINGS = Given({"EmbeddingCreateParams": {"model": "m", "input": ["x"]}}, {})
CALLERS: dict[str, tuple[Callable[[], Forms], Given]] = {
    "chat": (chat_forms, CHAT),
    "responses": (lambda: forms_of(response_create_params.ResponseCreateParamsNonStreaming), RESPONSES),
    "messages": (lambda: recorded_forms("messages", "request"), MESSAGES),
    "generate": (lambda: recorded_forms("generate", "request"), GENERATE),
    "embeddings": (lambda: forms_of(embedding_create_params.EmbeddingCreateParams), EMBEDDINGS),
}
