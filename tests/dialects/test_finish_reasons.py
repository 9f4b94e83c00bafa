"""Why an answer ended, in words that only some servers have: a failure, a refusal or a cut is never sold as a good end.

Of a word that nobody knows the caller is told, in its language's way: the answer may be whole, and nobody can say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
import pytest

from tests.dialects.aws_frames import event as frame
from tests.dialects.ways import CALLERS, STREAMS, Ways, heard, sse, stream_of
from tests.rows import rows
from tests.support.flow import JSON, Script

Json = dict[str, Any]
NEW: Final = "SOMETHING_NEW"


def chat(finish: str) -> Json:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": finish}]}


def message(reason: str) -> Json:
    content = [{"type": "text", "text": "so"}]
    return {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": content, "stop_reason": reason}


def generated(reason: str) -> Json:
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "so"}]}, "index": 0, "finishReason": reason}]
    }


def conversed(reason: str) -> Json:
    return {"output": {"message": {"role": "assistant", "content": [{"text": "so"}]}}, "stopReason": reason}


WHOLE: Final[Mapping[str, Any]] = {"chat": chat, "messages": message, "generate": generated, "converse": conversed}


def streamed(spoken: str, reason: str) -> list[bytes]:
    """The stream of an answer that says `so`, and ends with this reason."""
    stream = STREAMS[spoken]
    if spoken == "chat":
        piece = {"index": 0, "delta": {}, "finish_reason": reason}
        return [stream[0], stream[2], stream[3], *sse({"choices": [piece]}), stream[-1]]
    if spoken == "messages":
        ended = stream[14].replace(b'"tool_use"', orjson.dumps(reason))
        return [stream[0], *stream[5:10], ended, stream[15]]
    if spoken == "generate":
        return [stream[1], stream[2], stream[4].replace(b'"STOP"', orjson.dumps(reason))]
    return [stream[0], *stream[3:6], frame("messageStop", {"stopReason": reason}), stream[11]]


def end_of(asked: str, body: bytes, *, is_stream: bool) -> tuple[Any, Any]:
    """Why an answer ended, as its caller is told: the reason, and what is said beside it."""
    events = [orjson.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    if asked == "responses":
        whole = events[-1]["response"] if is_stream else orjson.loads(body)
        return whole["status"], (whole["incomplete_details"] or {}).get("reason")
    if asked == "messages":
        whole = events[-2]["delta"] if is_stream else orjson.loads(body)
        return whole["stop_reason"], None
    if asked == "generate":
        (one,) = (events[-1] if is_stream else orjson.loads(body))["candidates"]
        return one["finishReason"], one.get("finishMessage")
    choices = [choice for event in events or [orjson.loads(body)] for choice in event["choices"]]
    return choices[-1]["finish_reason"], choices[-1].get("native_finish_reason")


async def ends(asked: str, spoken: str, reason: str) -> list[tuple[Any, Any]]:
    """The end of an answer with this reason, streamed and whole."""
    made = []
    for is_stream in (True, False):
        script = Script(200, (JSON,), [orjson.dumps(WHOLE[spoken](reason))])
        bench = Ways([spoken], [stream_of(spoken, *streamed(spoken, reason)) if is_stream else script])
        _, body = await bench.serve(**bench.asking(asked, stream=is_stream))
        made.append(end_of(asked, body, is_stream=is_stream))
    return made


MARKED: Final[Mapping[str, tuple[str, str | None]]] = {
    "chat": ("stop", NEW),
    "responses": ("incomplete", NEW),
    "messages": (NEW, None),
    "generate": ("OTHER", f"the provider's reason: {NEW}"),
}


@pytest.mark.parametrize("spoken", WHOLE)
@pytest.mark.parametrize("asked", CALLERS)
async def test_a_reason_that_nobody_knows_is_no_good_end(asked: str, spoken: str) -> None:
    """A caller of chat completions has it beside OpenAI's word, because clients check that one strictly."""
    if asked != spoken:
        assert await ends(asked, spoken, NEW) == [MARKED[asked]] * 2


SENSITIVE: Final = {
    "responses": ("incomplete", "content_filter"),
    "messages": ("refusal", None),
    "generate": ("SAFETY", None),
}
CUT: Final = {
    "responses": ("incomplete", "max_output_tokens"),
    "messages": ("max_tokens", None),
    "generate": ("MAX_TOKENS", None),
}
WINDOW: Final = {**CUT, "messages": ("model_context_window_exceeded", None)}
GOOD: Final = {"responses": ("completed", None), "messages": ("end_turn", None), "generate": ("STOP", None)}


@rows(
    ("reason", "told"),
    [
        ("sensitive", SENSITIVE),
        ("model_context_window_exceeded", WINDOW),
        ("model_length", CUT),
        ("MAX_TOKENS", CUT),
        ("eos", GOOD),
        ("COMPLETE", GOOD),
        ("STOP", GOOD),
    ],
)
async def test_words_of_other_servers_are_understood(reason: str, told: Mapping[str, Any]) -> None:
    """Z.ai's, Mistral's, Together's, Cohere's, and those of proxies for Gemini."""
    for asked, expected in told.items():
        assert await ends(asked, "chat", reason) == [expected] * 2, asked


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource", "network_error"])
@pytest.mark.parametrize("asked", CALLERS)
async def test_a_whole_answer_that_failed_is_none(asked: str, reason: str) -> None:
    """The next target serves the call; where there is none, the caller gets an error, not half an answer as a whole one."""
    failed = Script(200, (JSON,), [orjson.dumps(chat(reason))])
    bench = Ways(["chat"] * 2, [failed] * 4, [Script(200, (JSON,), [orjson.dumps(chat("stop"))])], fallbacks=1)
    reply, _ = await bench.serve(**bench.asking(asked, stream=False))
    first = bench.account.call.attempts[0]
    assert first.error_class == ("overloaded" if reason == "insufficient_system_resource" else "server_error")
    assert (reply.status, bench.account.outcome) == (200, "ok")


@pytest.mark.parametrize("asked", CALLERS)
async def test_a_stream_that_failed_ends_with_an_error(asked: str) -> None:
    bench = Ways(["chat"], [stream_of("chat", *streamed("chat", "network_error"))])
    _, body = await bench.serve(**bench.asking(asked))
    assert bench.account.outcome == "stream_error"
    got = heard(asked, body)
    assert got.error is not None
    assert "network_error" in got.error["message"]
