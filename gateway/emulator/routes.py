"""The paths that generate, and what answers there: a table of OpenAI's endpoints, and the other providers' own APIs.

`canonical` maps every spelling of an OpenAI path to the key under which the table holds it. Of the others the path alone says
whose API it is; a prefix (`/v1`, a project of Vertex AI) may stand before it. It must not know limits, faults or time.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BadBase64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from gateway.emulator import embeddings, replies, requests
from gateway.emulator.converse import answer_converse, read_converse, stream_converse
from gateway.emulator.embeddings import answer_embedding
from gateway.emulator.generate import (
    answer_count,
    answer_generate,
    read_count,
    read_generate,
    stream_array,
    stream_generate,
)
from gateway.emulator.messages import (
    VERSIONS,
    MessagesReader,
    answer_invoked,
    answer_messages,
    answer_token_count,
    stream_invoked,
)
from gateway.emulator.openai import (
    answer_chat,
    answer_compaction,
    answer_completion,
    answer_image,
    answer_input_tokens,
    answer_moderation,
    answer_response,
    answer_speech,
    answer_transcription,
)
from gateway.emulator.replies import EmulatedReply, EmulatedStream, ProblemError, json_reply, wrong_method
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import Writer

Read = Callable[[dict[str, Any], str], CheckedRequest]
Answer = Callable[[CheckedRequest, Writer], EmulatedReply | EmulatedStream]
_MESSAGES = re.compile(r"(?:/anthropic)?(?:/v1)?/messages(/count_tokens)?")
_GENERATE = re.compile(
    r".*/(?:models|tunedModels)/(.+):(\w+Content|countTokens|batchEmbedContents|predict|rawPredict|streamRawPredict)"
)
_CONVERSE = re.compile(r".*/model/(.+)/([a-z-]+)")
_LISTED = re.compile(r"/(v1|v1beta)/models(/[^/:]+)?")
_CLAUDES = ("claude-sonnet-5", "claude-haiku-4-5")
_GEMINIS = ("gemini-3-flash-preview", "gemini-2.5-pro", "gemini-embedding-001")
_INPUT_TOKENS, _OUTPUT_TOKENS = 200_000, 64_000
_BODY_VERSIONS = ("bedrock-2023-05-31", "vertex-2023-10-16")


@dataclass(frozen=True, slots=True)
class EmulatedEndpoint:
    """One way to generate: `operation` is Azure's name for it, `model` the default where one may be left out."""

    name: str
    operation: str
    read: Callable[[dict[str, Any]], CheckedRequest]
    answer: Callable[[CheckedRequest, Writer], EmulatedReply | EmulatedStream]
    is_form: bool = False
    model: str | None = None

    @property
    def pool(self) -> str:
        """Whose limits its calls count against: those of the configured dialect."""
        return ""

    def request(self, body: bytes, deployment: str | None) -> CheckedRequest:
        """Returns the checked call; raises ProblemError."""
        if self.is_form:
            return self.read(requests.read_multipart(body, deployment))
        return self.read(requests.read_json(body, deployment, self.model))


_ENDPOINTS = (
    EmulatedEndpoint("chat/completions", "ChatCompletions_Create", requests.read_chat, answer_chat),
    EmulatedEndpoint("completions", "Completions_Create", requests.read_completion, answer_completion),
    EmulatedEndpoint("embeddings", "Embeddings_Create", requests.read_embedding, answer_embedding),
    EmulatedEndpoint("responses", "Responses_Create", requests.read_response, answer_response),
    EmulatedEndpoint("responses/compact", "Responses_Compact", requests.read_response, answer_compaction),
    EmulatedEndpoint(
        "responses/input_tokens", "Responses_InputTokens", requests.read_response, answer_input_tokens, model="gpt-4o"
    ),
    EmulatedEndpoint(
        "moderations", "Moderations_Create", requests.read_moderation, answer_moderation, model="omni-moderation-latest"
    ),
    EmulatedEndpoint(
        "images/generations",
        "ImageGenerations_Create",
        requests.read_prompt("prompt"),
        answer_image,
        model="gpt-image-1",
    ),
    EmulatedEndpoint("audio/speech", "AudioSpeech_Create", requests.read_prompt("input"), answer_speech),
    EmulatedEndpoint(
        "audio/transcriptions", "Transcriptions_Create", requests.read_anything, answer_transcription, is_form=True
    ),
)
ENDPOINTS: Mapping[str, EmulatedEndpoint] = MappingProxyType(
    {f"/v1/{endpoint.name}": endpoint for endpoint in _ENDPOINTS}
)


def canonical(path: str) -> tuple[str, str | None]:
    """Returns the `/v1/...` form of a path, and the deployment that an Azure path names."""
    if path.startswith("/v1/"):
        return path, None
    if path.startswith("/openai/deployments/"):
        deployment, _, rest = path.removeprefix("/openai/deployments/").partition("/")
        return f"/v1/{rest}", deployment
    if path.startswith("/openai/"):
        path = path.removeprefix("/openai")
    return path if path.startswith("/v1/") else f"/v1{path}", None


@dataclass(frozen=True, slots=True)
class NativeEndpoint:
    """One way to ask: `language` is the form, `model` what the path names, `pool` whose limits a call counts against."""

    language: str
    name: str
    read: Read
    answer: Answer
    model: str | None = None
    operation: str = ""

    @property
    def pool(self) -> str:
        """Counting tokens has limits of its own."""
        return f"{self.language}/count" if self.name in _COUNTS else self.language

    def request(self, body: bytes, deployment: str | None) -> CheckedRequest:
        """Returns the checked call; raises ProblemError."""
        data = replies.read_object(body, self.language)
        model = deployment or self.model or data.get("model")
        if not isinstance(model, str) or not model:
            raise replies.refused("model: Field required")
        return self.read(data, model)


_COUNTS = frozenset({"messages/count_tokens", "countTokens", "count-tokens"})


MESSAGE_BATCHES = re.compile(r"(?:/anthropic)?(?:/v1)?/messages/batches(?:/([^/]+))?(?:/(cancel|results))?")


def is_of_batches(path: str) -> bool:
    """Returns whether a path is one of Message Batches."""
    return MESSAGE_BATCHES.fullmatch(path) is not None


def language_of(path: str, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Returns whose API a path belongs to, or None: OpenAI's."""
    if _MESSAGES.fullmatch(path) or is_of_batches(path):
        return "messages"
    if (match := _GENERATE.fullmatch(path)) and match[2] in ("rawPredict", "streamRawPredict"):
        return "messages"
    if match:
        return "generate"
    if listed := _LISTED.fullmatch(path):
        names = {name for name, _ in headers}
        if listed[1] == "v1beta" or b"x-goog-api-key" in names:
            return "generate"
        return "messages" if b"anthropic-version" in names else None
    return "converse" if _CONVERSE.fullmatch(path) else None


def endpoint_of(method: str, path: str, query: bytes, version: bytes) -> NativeEndpoint | None:
    """Returns what answers a call of this path; None: the models are asked for. Raises ProblemError where nothing does."""
    if _LISTED.fullmatch(path):
        _expect(method, path, "GET")
        return None
    _expect(method, path, "POST")
    if match := _MESSAGES.fullmatch(path):
        _check_version(version)
        return _messages(version.decode("latin-1"), is_count=bool(match[1]))
    if match := _GENERATE.fullmatch(path):
        return _generate(match[1], match[2], query, at_vertex="/publishers/" in path)
    match = _CONVERSE.fullmatch(path)
    return _converse(match[1], match[2]) if match else None


def list_models(language: str, path: str, served: Sequence[str]) -> EmulatedReply:
    """Returns the models that are served, or the one that `path` names; raises ProblemError."""
    name = path.rpartition("/models")[2].strip("/")
    shown = [name] if name else list(served or (_CLAUDES if language == "messages" else _GEMINIS))
    if name and served and name not in served:
        raise ProblemError(replies.unknown_model(language, name))
    if language == "generate":
        models = [_gemini_model(each) for each in shown]
        return json_reply(models[0] if name else {"models": models})
    models = [_claude_model(each) for each in shown]
    edges = {"first_id": shown[0], "last_id": shown[-1], "has_more": False}
    return json_reply(models[0] if name else {"data": models, **edges})


def _expect(method: str, path: str, wanted: str) -> None:
    if method != wanted:
        raise ProblemError(wrong_method(method, path, wanted))


def _check_version(version: bytes) -> None:
    if not version:
        raise replies.refused("anthropic-version: header is required")
    if version.decode("latin-1") not in VERSIONS:
        raise replies.refused(f'anthropic-version: "{version.decode("latin-1")}" is not a valid version')


def _messages(version: str, *, is_count: bool) -> NativeEndpoint:
    read = MessagesReader(version, is_count)
    if is_count:
        return NativeEndpoint("messages", "messages/count_tokens", read, answer_token_count)
    return NativeEndpoint("messages", "messages", read, answer_messages)


def _generate(model: str, verb: str, query: bytes, *, at_vertex: bool) -> NativeEndpoint:
    if (model, verb) == ("count-tokens", "rawPredict"):  # of all models of Anthropic's
        return NativeEndpoint("messages", "messages/count_tokens", _read_carried_count, answer_token_count)
    if verb in ("rawPredict", "streamRawPredict"):
        return NativeEndpoint("messages", verb, _read_carried, answer_messages, model)
    if verb == "streamGenerateContent":
        is_sse = parse_qs(query.decode("latin-1")).get("alt") == ["sse"]
        return NativeEndpoint("generate", verb, read_generate, stream_generate if is_sse else stream_array, model)
    if at_vertex and verb == "batchEmbedContents":
        return NativeEndpoint("generate", verb, embeddings.read_texts, embeddings.answer_batch_embed, model)
    found = _VERBS.get(verb)
    if found is None:
        raise replies.refused(f"models/{model}:{verb} is not supported.", 404)
    return NativeEndpoint("generate", verb, *found, model)


def _converse(model: str, verb: str) -> NativeEndpoint:
    if verb in ("invoke", "invoke-with-response-stream"):
        if verb == "invoke" and "titan-embed" in model:
            return NativeEndpoint("converse", verb, embeddings.read_titan, embeddings.answer_titan, model)
        if verb == "invoke" and "cohere.embed" in model:
            return NativeEndpoint("converse", verb, embeddings.read_cohere, embeddings.answer_cohere, model)
        answer = answer_invoked if verb == "invoke" else stream_invoked
        return NativeEndpoint("converse", verb, _read_invoked, answer, model)
    found = _OPERATIONS.get(verb)
    if found is None:
        raise ProblemError(replies.unknown_model("converse", f"{model}/{verb}"))
    return NativeEndpoint("converse", verb, *found, model)


def _read_carried(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a Messages call that another cloud carries: the version is in the body, the model in the path."""
    version = data.pop("anthropic_version", None)
    if version not in _BODY_VERSIONS:
        raise replies.refused("anthropic_version: Field required")
    if "model" in data:
        raise replies.refused("model: Extra inputs are not permitted")
    data.pop("anthropic_beta", None)
    return MessagesReader("2023-06-01")(data, model)


def _read_carried_count(data: dict[str, Any], model: str) -> CheckedRequest:
    if data.pop("anthropic_version", None) not in _BODY_VERSIONS:
        raise replies.refused("anthropic_version: Field required")
    return MessagesReader("2023-06-01", True)(data, model)


def _read_invoked(data: dict[str, Any], model: str) -> CheckedRequest:
    if "stream" in data:
        raise replies.refused("stream: Extra inputs are not permitted")
    return _read_carried(data, model)


def _read_converse_count(data: dict[str, Any], model: str) -> CheckedRequest:
    given = data.get("input")
    inner = given if isinstance(given, dict) else {}
    if isinstance(inner.get("converse"), dict):
        return read_converse(inner["converse"], model)
    invoked = inner.get("invokeModel")
    try:
        body = b64decode(str(invoked.get("body")), validate=True) if isinstance(invoked, dict) else b"{}"
    except BadBase64Error:
        body = b""
    return _read_carried(replies.read_object(body, "converse"), model)


def _answer_converse_count(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    return json_reply({"inputTokens": request.prompt_tokens})


_VERBS: Mapping[str, tuple[Read, Answer]] = MappingProxyType(
    {
        "generateContent": (read_generate, answer_generate),
        "countTokens": (read_count, answer_count),
        "embedContent": (embeddings.read_embed, embeddings.answer_embed),
        "batchEmbedContents": (embeddings.read_batch_embed, embeddings.answer_batch_embed),
        "predict": (embeddings.read_predict, embeddings.answer_predict),
    }
)
_OPERATIONS: Mapping[str, tuple[Read, Answer]] = MappingProxyType(
    {
        "converse": (read_converse, answer_converse),
        "converse-stream": (read_converse, stream_converse),
        "count-tokens": (_read_converse_count, _answer_converse_count),
    }
)


def _claude_model(name: str) -> dict[str, Any]:
    can, cannot = {"supported": True}, {"supported": False}
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": _INPUT_TOKENS,
        "max_tokens": _OUTPUT_TOKENS,
        "capabilities": {
            **dict.fromkeys(("structured_outputs", "image_input", "pdf_input"), can),
            **dict.fromkeys(("batch", "citations", "code_execution"), cannot),
        },
    }


def _gemini_model(name: str) -> dict[str, Any]:
    methods = ["embedContent", "batchEmbedContents"] if "embedding" in name else ["generateContent", "countTokens"]
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": "001",
        "inputTokenLimit": _INPUT_TOKENS,
        "outputTokenLimit": _OUTPUT_TOKENS,
        "supportedGenerationMethods": methods,
        "thinking": "embedding" not in name,
        "maxTemperature": 2,
    }
