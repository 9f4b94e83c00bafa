"""The `/__emulator` endpoints: read the counters, change what happens next.

For tests and demos, so without a key; the emulator listens on loopback. It must not know how calls are answered.
Invariant: a change is applied whole or, with a 400 that names every bad field, not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qs

import orjson

from gateway.emulator.answers import requests
from gateway.emulator.answers.chat import answer_chat, answer_completion
from gateway.emulator.answers.reply import EmulatedReply, Stream, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.app.call import CONNECTIONS, EmulatedCall, Recorder, Stats
from gateway.emulator.config.config import EmulatorConfig, Fault, FaultPlan, parse_script_entry
from gateway.emulator.problems import EmulatedProblem, ProblemError, unknown_url, wrong_method
from gateway.emulator.responses.responses import answer_compaction, answer_input_tokens, answer_response
from gateway.emulator.responses.writer import (
    Writer,
    answer_embedding,
    answer_image,
    answer_moderation,
    answer_speech,
    answer_transcription,
)

PREFIX = "/__emulator/"
_METHODS: Mapping[str, tuple[str, ...]] = {
    "stats": ("GET",),
    "reset": ("POST",),
    "config": ("GET", "POST"),
    "script": ("POST",),
    "requests": ("GET",),
}


class Controlled(Protocol):
    """The part of the emulator that the control endpoints use."""

    config: EmulatorConfig
    faults: FaultPlan
    stats: Stats
    recorder: Recorder

    def configure(self, config: EmulatorConfig) -> None: ...
    def reset(self) -> None: ...


def control(emulator: Controlled, call: EmulatedCall) -> EmulatedReply:
    """Answers one control call whose body has been read; raises ProblemError."""
    name = call.path.removeprefix(PREFIX)
    methods = _METHODS.get(name)
    if methods is None:
        raise ProblemError(unknown_url(call.method, call.path))
    if call.method not in methods:
        raise ProblemError(wrong_method(call.method, call.path, " or ".join(methods)))
    match name, call.method:
        case "stats", _:
            return json_reply(_stats(emulator, call))
        case "reset", _:
            emulator.reset()
            return json_reply({"ok": True})
        case "config", "GET":
            return json_reply(emulator.config.to_mapping())
        case "config", _:
            return json_reply(_configure(emulator, call.body))
        case "script", _:
            return json_reply(_script(emulator, call.body))
    return json_reply({"requests": emulator.recorder.last(_count(call.scope.get("query_string", b"")))})


def _stats(emulator: Controlled, call: EmulatedCall) -> dict[str, Any]:
    connections = call.scope.get(CONNECTIONS)
    return emulator.stats.to_mapping() | {
        "open_connections": len(connections) if connections is not None else None,
        "script_entries_waiting": emulator.faults.waiting(),
    }


def _configure(emulator: Controlled, body: bytes) -> dict[str, Any]:
    # In JSON a null removes an optional value, where a missing CLI flag's None changes nothing.
    values = {name: "none" if value is None else value for name, value in _object(body).items()}
    try:
        config = EmulatorConfig.from_mapping(values, emulator.config)
    except ValueError as exc:
        raise _bad(str(exc)) from exc
    emulator.configure(config)
    return config.to_mapping()


def _script(emulator: Controlled, body: bytes) -> dict[str, Any]:
    given = _object(body)
    model, entries = given.get("model", "*"), given.get("faults")
    unknown = sorted(set(given) - {"model", "faults"})
    if unknown:
        raise _bad(f"{unknown[0]}: unknown field of a script")
    if not isinstance(model, str) or not model:
        raise _bad("model: expected a non-empty string")
    if not isinstance(entries, list):
        raise _bad("faults: expected an array")
    try:
        waiting = emulator.faults.script(model, [_entry(index, entry) for index, entry in enumerate(entries)])
    except ValueError as exc:
        raise _bad(str(exc)) from exc
    return {"model": model, "waiting": waiting}


def _entry(index: int, entry: object) -> Fault | None:
    try:
        return parse_script_entry(entry)
    except ValueError as exc:
        raise ValueError(f"faults[{index}].{exc}") from exc


def _count(query: bytes) -> int:
    text = parse_qs(query.decode("latin-1")).get("last", ["1000000"])[0]
    if not text.isdigit():
        raise _bad(f"last: expected a whole number, got {text!r}")
    return int(text)


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise _bad(f"body: {exc}") from exc
    if not isinstance(given, dict):
        raise _bad("body: expected a JSON object")
    return given


def _bad(text: str) -> ProblemError:
    return ProblemError(EmulatedProblem(400, text, param=text.partition(":")[0], code="invalid_value"))


# The generating endpoints and the paths that lead to them.
#
# It is a table, and must not know limits, faults or time. Invariant: `canonical` maps every spelling of an endpoint's path to
# the one key under which the table holds it.


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
