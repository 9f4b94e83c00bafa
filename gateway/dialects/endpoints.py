"""The endpoints that callers use, each with the shape in which these read answers, streams and errors.

First the shapes: OpenAI's, whose errors may come from servers of other APIs, then Anthropic's and Gemini's. Then the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.errors import GatewayError
from gateway.core.limits.headers import plain_number
from gateway.core.openai.media import PICTURES, TRANSCRIPTION
from gateway.core.openai.media import SPEECH as SPOKEN
from gateway.core.render import (
    OpenAIShape,
    ResponsesShape,
    UnknownStreamShape,
    error_object,
    no_answer,
    reported_error,
)
from gateway.core.types import Endpoint, ProviderError, RawHeaders, StreamForm
from gateway.dialects import shapes
from gateway.dialects.conversion import as_stream, as_whole
from gateway.dialects.shapes import find_foreign, for_generate, for_messages

# --- The shapes ---


class ChatShape(OpenAIShape):
    """Chat completions."""

    needs_choices = True

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        return as_stream("chat", body, include_usage=include_usage)

    def as_whole(self, frames: bytes) -> bytes | None:
        return as_whole("chat", frames)


class CompletionsShape(OpenAIShape):
    """Completions of texts."""

    needs_choices = True

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        return as_stream("completions", body, include_usage=include_usage)

    def as_whole(self, frames: bytes) -> bytes | None:
        return as_whole("completions", frames)


class ConvertibleResponsesShape(ResponsesShape):
    """Responses."""

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        return as_stream("responses", body, include_usage=include_usage)

    def as_whole(self, frames: bytes) -> bytes | None:
        return as_whole("responses", frames)


class MessageCountShape(OpenAIShape):
    """Anthropic's: errors have types of their own, and name the request."""

    stream: StreamForm = "messages"
    request_id_header: bytes | None = b"request-id"

    def error_body(self, error: GatewayError, request_id: str | None = None) -> bytes:
        """The JSON text of an error as Anthropic's callers read it; with `code` and `param`, which Anthropic's own lack."""
        return orjson.dumps(shapes.error("messages", error.message, request_id=request_id, **_about(error)))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return shapes.error_event("messages", error.message, request_id=request_id, **_about(error))

    def provider_error(self, error: ProviderError) -> bytes | None:
        if super().provider_error(error) is None:
            return None
        body = for_messages(error.status, error.body, error.code, error.request_id)
        return error.body if body is None else body

    def _event_of(self, error: Mapping[str, Any], status: int) -> bytes:
        kind = shapes.anthropic_type(status, str(error.get("type")))
        return b"event: error\ndata: %s\n\n" % orjson.dumps({"type": "error", "error": {**error, "type": kind}})


class MessagesShape(MessageCountShape):
    """Messages, whole and in events."""

    def error_inside(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        if answer.get("error"):
            return reported_error(answer)
        if not isinstance(answer.get("content"), list):
            raise no_answer("the provider answered with no message")
        return None

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        return as_stream("messages", body, include_usage=include_usage)

    def as_whole(self, frames: bytes) -> bytes | None:
        return as_whole("messages", frames)


class GenerateCountShape(OpenAIShape):
    """Gemini's: errors are Google's (AIP-193), and say themselves when to come back."""

    stream: StreamForm = "generate"

    def error_body(self, error: GatewayError, request_id: str | None = None) -> bytes:
        """The JSON text of an error as Gemini's callers read it."""
        return orjson.dumps(shapes.error("generate", error.message, retry_after_s=error.retry_after_s, **_about(error)))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return b"data: %b\n\n" % self.error_body(error)

    def provider_error(self, error: ProviderError) -> bytes | None:
        if super().provider_error(error) is None:
            return None
        body = for_generate(error.status, error.body, error.code, error.headers)
        return error.body if body is None else body

    def with_retry_advice(self, body: bytes, headers: RawHeaders) -> bytes:
        """A provider's error with the delay that its headers name: Google's clients read no header."""
        index = dict(headers)
        for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
            if (delay := plain_number(index.get(name, b""))) is not None:
                return shapes.with_retry_info(body, delay * unit_s)
        return body

    def choices_wanted(self, request: dict[str, Any]) -> object:
        options = request.get("generationConfig")
        return options.get("candidateCount") if isinstance(options, dict) else None

    def _event_of(self, error: Mapping[str, Any], status: int) -> bytes:
        body = for_generate(status, orjson.dumps({"error": error}), None)
        return b"data: %s\n\n" % (body or orjson.dumps({"error": error}))


class GenerateShape(GenerateCountShape):
    """What generateContent answers, whole and in events."""

    def error_inside(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        if answer.get("error"):
            return reported_error(answer)
        candidates = answer.get("candidates")
        if not (isinstance(candidates, list) and candidates) and not answer.get("promptFeedback"):
            raise no_answer("the provider answered without any candidate")
        return None

    def as_whole(self, frames: bytes) -> bytes | None:
        return as_whole("generate", frames)


def _about(error: GatewayError) -> dict[str, Any]:
    about = error_object(error)
    del about["message"]
    return {"status": error.status, **about}


_ADVISOR: Final = re.compile(rb'"type"\s*:\s*"(?:advisor|[^"]*\\u)', re.IGNORECASE)
"""How the tool of an advisor begins in a body that is too large to be parsed."""


def advisor_in(fields: Mapping[str, Any], body: bytes) -> str | None:
    """Returns the field of a request of Messages by which a tool, an advisor, has a model of its own; None: none has."""
    tools = fields.get("tools")
    if isinstance(tools, list):
        has_one = any(name.casefold() == "model" for tool in tools if isinstance(tool, dict) for name in tool)
    else:
        has_one = tools is not None and _ADVISOR.search(body) is not None
    return "tools.model" if has_one else None


# --- The endpoints ---


OF_FILES_BYTES: Final = 68_157_440
"""50 MB of pictures and files, as OpenAI takes them in one call, in base64 (docs: images and vision, file inputs)."""
OF_MESSAGES_BYTES: Final = 33_554_432
"""Anthropic's bound (docs: API overview, request size limits)."""
OF_GENERATE_BYTES: Final = 104_857_600
"""The Gemini API's bound of a request (docs: file input methods, inline data)."""
OF_SOUND_BYTES: Final = 27_262_976
"""25 MiB of sound, as OpenAI takes them (docs: speech to text), and a form around them."""

OPENAI: Final = OpenAIShape(find_foreign)
MESSAGES_SHAPE: Final = MessagesShape(find_foreign)
GENERATE_SHAPE: Final = GenerateShape(find_foreign)

CHAT: Final = Endpoint(
    "chat",
    "/chat/completions",
    ChatShape(find_foreign),
    usage_option=True,
    tokens="both",
    most_body_bytes=OF_FILES_BYTES,
    takes_comments=True,
)
COMPLETIONS: Final = Endpoint(
    "completions",
    "/completions",
    CompletionsShape(find_foreign),
    usage_option=True,
    tokens="both",
    takes_comments=True,
    has_many_texts=True,
)
EMBEDDINGS: Final = Endpoint(
    "embeddings", "/embeddings", OPENAI, tokens="input", has_many_texts=True, has_vectors=True, is_completed=True
)
RESPONSES: Final = Endpoint(
    "responses",
    "/responses",
    ConvertibleResponsesShape(find_foreign),
    tokens="both",
    is_model_optional=True,
    most_body_bytes=OF_FILES_BYTES,
    takes_comments=True,
    may_end_later=True,
)
MESSAGES: Final = Endpoint(
    "messages",
    "/messages",
    MESSAGES_SHAPE,
    tokens="both",
    most_body_bytes=OF_MESSAGES_BYTES,
    takes_comments=True,
    names_model=advisor_in,
)
COUNT_TOKENS: Final = Endpoint(
    "count_tokens",
    "/messages/count_tokens",
    MessageCountShape(find_foreign),
    tokens="input",
    most_body_bytes=OF_MESSAGES_BYTES,
    takes_comments=True,
    is_no_job=True,
    counts_tokens=True,
    names_model=advisor_in,
)
MODERATIONS: Final = Endpoint("moderations", "/moderations", OPENAI, is_model_optional=True)
IMAGES: Final = Endpoint(
    "images",
    "/images/generations",
    UnknownStreamShape(find_foreign),
    is_model_optional=True,
    takes_comments=True,
    is_completed=True,
    media=PICTURES,
)
SPEECH: Final = Endpoint("speech", "/audio/speech", OPENAI, answer="binary", media=SPOKEN)
TRANSCRIPTIONS: Final = Endpoint(
    "transcriptions",
    "/audio/transcriptions",
    OPENAI,
    answer="binary",
    request="multipart",
    most_body_bytes=OF_SOUND_BYTES,
    media=TRANSCRIPTION,
)
GENERATE: Final = Endpoint(
    "generate", "/generate", GENERATE_SHAPE, tokens="both", most_body_bytes=OF_GENERATE_BYTES, is_no_job=True
)
"""The endpoint of generateContent; its path is a name inside the gateway. It says a part of a request in its path."""
COUNT_GENERATED: Final = Endpoint(
    "count_generated",
    "/generate/count",
    GenerateCountShape(find_foreign),
    tokens="input",
    most_body_bytes=OF_GENERATE_BYTES,
    is_no_job=True,
    counts_tokens=True,
)
ENDPOINTS: Final = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    MODERATIONS,
    IMAGES,
    SPEECH,
    TRANSCRIPTIONS,
)
"""The endpoints with a path of their own below `/v1`."""
WORK: Final = tuple(endpoint for endpoint in ENDPOINTS if not endpoint.is_no_job)
"""What may be a job or a line of a batch: a count is answered at once, or is not worth it."""
