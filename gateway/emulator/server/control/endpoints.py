"""The generating endpoints and the paths that lead to them.

It is a table, and must not know limits, faults or time. Invariant: `canonical` maps every spelling of an endpoint's path to
the one key under which the table holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.emulator.answers import requests
from gateway.emulator.answers.chat.chat import answer_chat, answer_completion
from gateway.emulator.answers.reply import EmulatedReply, Stream
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.responses.responses import answer_compaction, answer_input_tokens, answer_response
from gateway.emulator.responses.writer.media import answer_image, answer_speech, answer_transcription
from gateway.emulator.responses.writer.vectors import answer_embedding, answer_moderation
from gateway.emulator.responses.writer.writer import Writer


@dataclass(frozen=True, slots=True)
class EmulatedEndpoint:
    """One way to generate: `operation` is Azure's name for it, `model` the default where one may be left out."""

    name: str
    operation: str
    read: Callable[[dict[str, Any]], CheckedRequest]
    answer: Callable[[CheckedRequest, Writer], EmulatedReply | Stream]
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
