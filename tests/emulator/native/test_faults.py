"""Each fault in each provider's own shape, over a real socket."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_script_entry
from tests.emulator.conftest import Seen, StartServer, dechunk, exchange
from tests.emulator.native.support import (
    CONVERSE,
    GENERATE,
    MESSAGES,
    STREAMED,
    VERSION,
    content_body,
    converse_events,
    data_chunks,
    frames,
    message_body,
    named_events,
    turn_body,
)

WHOLE = {
    "messages": (MESSAGES, message_body()),
    "generate": (GENERATE, content_body()),
    "converse": (CONVERSE, turn_body()),
}
STREAMS = {
    "messages": (MESSAGES, message_body(stream=True)),
    "generate": (STREAMED, content_body()),
    "converse": (f"{CONVERSE}-stream", turn_body()),
}
LANGUAGES = tuple(WHOLE)
TOLD = {
    "e401": ((401, "authentication_error"), (400, "INVALID_ARGUMENT"), (403, "UnrecognizedClientException")),
    "e403": ((403, "permission_error"), (403, "PERMISSION_DENIED"), (403, "AccessDeniedException")),
    "e404": ((404, "not_found_error"), (404, "NOT_FOUND"), (404, "ResourceNotFoundException")),
    "e500": ((500, "api_error"), (500, "INTERNAL"), (500, "InternalServerException")),
    "e503": ((503, "api_error"), (503, "UNAVAILABLE"), (503, "ServiceUnavailableException")),
    "e529": ((529, "overloaded_error"), (503, "UNAVAILABLE"), (529, "ServiceUnavailableException")),
    "rate_limit": ((429, "rate_limit_error"), (429, "RESOURCE_EXHAUSTED"), (429, "ThrottlingException")),
    "rate_limit_bare": ((429, "rate_limit_error"), (429, "RESOURCE_EXHAUSTED"), (429, "ThrottlingException")),
    "quota": ((400, "invalid_request_error"), (429, "RESOURCE_EXHAUSTED"), (429, "ThrottlingException")),
    "context_length": ((400, "invalid_request_error"), (400, "INVALID_ARGUMENT"), (400, "ValidationException")),
}


async def meet(server: EmulatorServer, fault: str, call: tuple[str, dict[str, Any]]) -> Seen:
    server.emulator.faults.script("*", [parse_script_entry(fault)])
    return await exchange(server, call[1], call[0], VERSION)


def kind_of(language: str, seen: Seen) -> str:
    """The provider's name of an error."""
    error = orjson.loads(seen.body)
    if language == "messages":
        assert f"request-id: {error['request_id']}".encode() in seen.head
        return str(error["error"]["type"])
    if language == "generate":
        return str(error["error"]["status"])
    assert list(error) == ["message"]
    line = next(line for line in seen.data.split(b"\r\n") if line.lower().startswith(b"x-amzn-errortype: "))
    return line.decode().partition(" ")[2].partition(":")[0]


def events_of(language: str, content: bytes) -> list[Any]:
    match language:
        case "messages":
            return named_events(content)
        case "generate":
            return data_chunks(content)
    return converse_events(content)


def is_ended(language: str, content: bytes) -> bool:
    """Whether the stream says that it is complete."""
    mark = {"messages": b"message_stop", "generate": b"finishReason", "converse": b"messageStop"}[language]
    return mark in content


@pytest.mark.parametrize("fault", list(TOLD))
@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_refusal_is_in_the_providers_shape(start_server: StartServer, language: str, fault: str) -> None:
    """Status and kind, for streams as for the rest, and it is counted as any other."""
    server = await start_server(EmulatorConfig(dialect="azure"))

    whole = await meet(server, fault, WHOLE[language])
    streamed = await meet(server, fault, STREAMS[language])

    wanted = TOLD[fault][LANGUAGES.index(language)]
    assert (whole.status, kind_of(language, whole)) == wanted
    assert (streamed.status, kind_of(language, streamed)) == wanted
    assert server.emulator.stats.faults == {fault: 2}
    assert server.emulator.stats.statuses == {wanted[0]: 2}
    assert b"openai" not in whole.head


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_error_in_a_stream_is_the_providers(start_server: StartServer, language: str) -> None:
    """As the first event, after three, and after the opening; nothing follows it, least of all an end."""
    server = await start_server()

    for fault, most in (("in_band_error", 0), ("in_band_error;after_chunks=3", 5), ("opening_error", 1)):
        content = dechunk((await meet(server, fault, STREAMS[language])).body)
        *before, last = events_of(language, content)
        assert len(before) <= most
        assert not is_ended(language, content)
        match language:
            case "messages":
                assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
                assert last["request_id"].startswith("req_")
            case "generate":
                assert last["error"]["status"] == "UNAVAILABLE"
            case _:
                assert last == (
                    "serviceUnavailableException",
                    {"message": "Bedrock is unable to process your request."},
                )
                headers, _ = frames(content)[-1]
                assert headers[":message-type"] == "exception"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_stream_that_breaks_off_never_says_that_it_is_whole(start_server: StartServer, language: str) -> None:
    """Cut, without its end, or with an error's JSON where an event should be."""
    server = await start_server()

    for fault in ("cut;after_chunks=3", "no_done", "raw_error", "reset;after_chunks=3"):
        seen = await meet(server, fault, STREAMS[language])
        assert not is_ended(language, dechunk(seen.body))
        assert seen.status == 200
    raw = dechunk((await meet(server, "raw_error", STREAMS[language])).body)
    told = {"messages": b'\n\n{"type":"error"', "generate": b'\r\n{\n  "error"', "converse": b'{"message":"Bedrock'}
    assert told[language] in raw


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_broken_event_has_json_that_ends_in_its_middle(start_server: StartServer, language: str) -> None:
    """In a frame that is sound as such; the stream goes on to its end."""
    server = await start_server()

    content = dechunk((await meet(server, "malformed", STREAMS[language])).body)

    with pytest.raises(orjson.JSONDecodeError):
        events_of(language, content)
    assert is_ended(language, content)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_answer_can_be_a_refusal(start_server: StartServer, language: str) -> None:
    """With 200 and the provider's reason, whole and streamed."""
    server = await start_server()
    reason = {"messages": b'"refusal"', "generate": b'"SAFETY"', "converse": b'"content_filtered"'}[language]

    assert reason in (await meet(server, "refusal", WHOLE[language])).body
    assert reason in dechunk((await meet(server, "refusal", STREAMS[language])).body)


async def test_a_filtered_prompt_is_a_400_or_googles_200(start_server: StartServer) -> None:
    """Google answers without a candidate."""
    server = await start_server()

    seen = [await meet(server, "content_filter", WHOLE[language]) for language in LANGUAGES]

    assert [each.status for each in seen] == [400, 200, 400]
    assert orjson.loads(seen[1].body)["promptFeedback"] == {"blockReason": "PROHIBITED_CONTENT"}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "fault", ["error_in_200", "in_band_error", "malformed", "cut", "truncated", "empty_200", "html502"]
)
async def test_a_whole_answer_breaks_as_others_do(start_server: StartServer, language: str, fault: str) -> None:
    """No body that is left could be taken for an answer."""
    server = await start_server()

    seen = await meet(server, fault, WHOLE[language])

    assert seen.status == (502 if fault == "html502" else 200)
    assert not is_ended(language, seen.body)
    if "error" in fault:
        assert b"verloaded" in seen.body or b"unable to process" in seen.body
    else:
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(seen.body)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_what_was_asked_and_answered_is_in_the_ledger(start_server: StartServer, language: str) -> None:
    """Endpoint, model, status and tokens, as of OpenAI's paths."""
    server = await start_server()
    emulator = server.emulator

    await exchange(server, STREAMS[language][1], STREAMS[language][0], VERSION)

    name = {"messages": "messages", "generate": "streamGenerateContent", "converse": "converse-stream"}[language]
    told = emulator.recorder.last(1)[0]
    assert emulator.stats.endpoints == {name: 1}
    assert sum(emulator.stats.models.values()) == 1
    assert (told["status"], told["tokens"]["output"]) == (200, 60)
    assert told["tokens"]["input"] in (3, 5)
