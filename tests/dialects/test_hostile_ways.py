"""Providers that say what no provider should, on each way between two languages: the next one is asked, or the caller told.

Whatever comes, a call ends with an answer or with an error in its caller's shape, never with a defect of ours; and what one
target has said before any output is not seen by anybody.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import crc32
from struct import pack
from typing import Any

import orjson
import pytest

from tests.dialects.aws_frames import event as frame
from tests.dialects.aws_frames import exception
from tests.dialects.aws_frames import frame as raw_frame
from tests.dialects.ways import CALLERS, FRAMED, FRAMES, STREAMS, WAYS, Ways, heard, sse, stream_of
from tests.support.flow import JSON, RATES, SSE, Script

HTML = b"<html><body>502 Bad Gateway</body></html>"
DEEP = b'{"a":' * 400 + b"1" + b"}" * 400
"""JSON that can be read, and not written again."""
OWN = [(asked, spoken) for asked, spoken in WAYS if spoken == asked or (asked == "messages" and "claude" in spoken)]
"""The ways on which nothing is converted."""
BEGUN = 4
"""The events of each stream of which some are output."""
ANNOUNCED = {"chat": 1, "responses": 2, "messages": 2, "claude": 2, "claude_at_vertex": 2, "generate": 0, "converse": 1}
"""The events of each stream before any output."""


def prelude(total: int, headers: int = 0) -> bytes:
    """How a frame of this length begins."""
    told = pack(">II", total, headers)
    return told + pack(">I", crc32(told))


def error(spoken: str, body: bytes = b'{"type":"overloaded_error","message":"Overloaded"}') -> bytes:
    """An error as the language tells it in a stream; `body` is its object."""
    if spoken == "claude":
        return frame("chunk", {"bytes": b64encode(b'{"type":"error","error":%b}' % body).decode()})
    if spoken == "converse":
        return raw_frame(body, message_type="exception", exception_type="modelStreamErrorException")
    if spoken.startswith(("messages", "claude")):
        return b'event: error\ndata: {"type":"error","error":%b}\n\n' % body
    if spoken == "responses":
        return b'event: error\ndata: {"type":"error","code":"server_error","message":"boom","x":%b}\n\n' % body
    return b'data: {"error":%b}\n\n' % body


def odd(spoken: str, data: bytes) -> bytes:
    """An event with this data."""
    if spoken == "claude":
        return frame("chunk", {"bytes": b64encode(data).decode()})
    if spoken == "converse":
        return raw_frame(data, message_type="event", event_type="contentBlockDelta")
    return b"data: %b\n\n" % data


def changed(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def before_output(spoken: str) -> dict[str, list[bytes]]:
    """What comes of a stream instead of an answer."""
    announced = b"".join(STREAMS[spoken][: ANNOUNCED[spoken]])
    deep = error(spoken, b'{"message":"m","type":"t","x":%b}' % DEEP)
    cases = {
        "html": [HTML],
        "nothing": [],
        "an announcement": [announced],
        "an error": [announced, error(spoken)],
        "a deep error": [deep],
        "an array": [b'[{\n "error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}\n}]'],
        "zeros": [b"\0" * 40],
        "an event of zeros": [announced, odd(spoken, b"\0\0")],
    }
    if spoken != "generate":  # Gemini's end has no event of its own
        cases["the end alone"] = [STREAMS[spoken][-1]] if spoken != "responses" else [b"data: [DONE]\n\n"]
    if spoken in FRAMED:
        first = STREAMS[spoken][0]
        cases |= {
            "a wrong checksum": [changed(first, len(first) - 1)],
            "a wrong prelude": [changed(first, 9)],
            "an exception": [exception("internalServerException", "gone")],
            "events": [b'data: {"error":{"message":"x"}}\n\n'],
        }
        cases |= {f"{total} bytes": [prelude(total) + b"x" * 40] for total in (0, 11, 15, 16, 2**24 + 1, 2**32 - 1)}
    return cases


def behind_output(spoken: str) -> dict[str, list[bytes]]:
    """What comes of a stream that has begun, and is no end."""
    cases = {
        "an error": [error(spoken)],
        "a deep error": [error(spoken, b'{"message":"m","type":"t","x":%b}' % DEEP)],
        "html": [HTML],
        "zeros": [odd(spoken, b"\0\0")],
        "no JSON": [odd(spoken, b'{"a":')],
        "an array": [b'[{\n "error": {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED"}\n}]'],
    }
    if spoken in FRAMED:
        more = STREAMS[spoken][BEGUN]
        cases |= {
            "a wrong checksum": [changed(more, len(more) - 1), *STREAMS[spoken][BEGUN + 1 :]],
            "a wrong prelude": [changed(more, 9), *STREAMS[spoken][BEGUN + 1 :]],
            "an exception": [exception("throttlingException", "slow")],
        }
        cases |= {f"{total} bytes": [prelude(total) + b"x" * 40] for total in (0, 11, 15, 16, 2**24 + 1, 2**32 - 1)}
    return cases


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
async def test_what_fails_before_any_output_is_seen_by_nobody(asked: str, spoken: str) -> None:
    """The next target serves the call, whatever language that speaks; where there is none, the error is one of the caller's."""
    kind = FRAMES if spoken in FRAMED else SSE
    scripts = {name: Script(200, (kind,), chunks) for name, chunks in before_output(spoken).items()}
    scripts["a page"] = Script(200, ((b"content-type", b"text/html"),), [HTML])
    scripts["an error in JSON"] = Script(200, (JSON,), [b'{"error":{"message":"m","code":null}}'])
    scripts["an empty object"] = Script(200, (JSON,), [b"{}"])
    for name, script in scripts.items():
        bench = Ways([spoken, "chat"], [script], [stream_of("chat", *STREAMS["chat"])], fallbacks=1)
        _, body = await bench.serve(**bench.asking(asked))
        assert heard(asked, body) == ('hmso{"x":1}', True, None), name
        failed, served = bench.account.call.attempts
        assert (served.target.name, bench.account.outcome) == ("p1/m", "ok")
        assert failed.error_class is not None, name


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
async def test_an_error_before_any_output_has_the_callers_shape(asked: str, spoken: str) -> None:
    """Where no other target is left."""
    for name in ("an error", "a deep error", "an exception", "a wrong checksum"):
        chunks = before_output(spoken).get(name)
        if chunks is None:
            continue
        bench = Ways([spoken], [stream_of(spoken, *chunks)])
        reply, body = await bench.serve(**bench.asking(asked))
        assert reply.status >= 500, name
        said = orjson.loads(body)
        assert said["error"]["message"], name
        if asked == "messages":
            assert (said["type"], said["error"]["type"][-6:]) == ("error", "_error"), name
        elif asked == "generate":
            assert said["error"]["code"] == reply.status, name
            assert said["error"]["status"].isupper(), name
        elif (asked, spoken) not in OWN:
            assert said["error"].keys() >= {"message", "type", "param", "code"}, name


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
async def test_what_fails_behind_output_is_told(asked: str, spoken: str) -> None:
    """In the caller's shape, as the last event; the attempt is a failure, and what was said is paid for."""
    for name, chunks in behind_output(spoken).items():
        bench = Ways([spoken], [stream_of(spoken, b"".join(STREAMS[spoken][:BEGUN]), *chunks)])
        _, body = await bench.serve(**bench.asking(asked))
        got = (_roughly if (asked, spoken) in OWN else heard)(asked, body)
        account = bench.account
        assert got.error is not None, name
        assert not got.is_ended, name
        assert account.outcome in ("stream_error", "stream_interrupted"), name
        assert account.call.attempts[-1].error_class == account.outcome, name
        assert account.usage is not None
        assert account.cost_usd is not None


def _roughly(asked: str, body: bytes) -> Any:
    """What a caller has of a stream in its own language, whose errors are its provider's words."""
    body, failed, _ = body.partition(b"event: response.failed\n")
    assert bool(failed) is (asked == "responses")
    last = body.rstrip(b"\n").rpartition(b"\n\n")[2]
    got = heard(asked, body.removesuffix(last.rstrip(b"\n") + b"\n\n"))
    assert b"error" in last
    return got._replace(error={})


@pytest.mark.parametrize("code", [b"[]", b"{}", b"null", b"7"])
async def test_a_response_that_failed_may_have_any_code(code: bytes) -> None:
    """As its provider says it."""
    said = b'{"object":"response","status":[],"error":{"code":%b,"message":"m"}}' % code
    bench = Ways(["responses"], [Script(200, (JSON,), [said])])
    reply, body = await bench.serve(**bench.asking("responses", stream=False))
    assert (reply.status, body) == (200, said)


@pytest.mark.parametrize(
    "said", [b'{"candidates":[]}', b'{"candidates":{}}', b'{"usageMetadata":{"totalTokenCount":1}}']
)
async def test_an_answer_of_geminis_without_candidates_is_none(said: bytes) -> None:
    """Another target is asked."""
    answer = b'{"candidates":[{"finishReason":"STOP"}]}'
    bench = Ways(["generate"] * 2, [Script(200, (JSON,), [said])], [Script(200, (JSON,), [answer])], fallbacks=1)
    _, body = await bench.serve(**bench.asking("generate", stream=False))
    assert body == answer


@pytest.mark.parametrize("spoken", ["messages", "generate", "converse"])
@pytest.mark.parametrize("asked", CALLERS)
async def test_counts_that_nobody_can_have_counted_are_none(asked: str, spoken: str) -> None:
    """Negative, huge, no numbers: the call is paid by an estimate, or by what is left of them, and its answer is an answer."""
    for count in (b"-5", b"9223372036854775807", b"18446744073709551615", b"1.5e300", b'"7"', b"true", b"[]"):
        *before, last = STREAMS[spoken]
        if spoken == "converse":
            last = raw_frame(
                b'{"usage":{"inputTokens":%b,"outputTokens":%b}}' % (count, count),
                message_type="event",
                event_type="metadata",
            )
        whole = b"".join([*before, last]).replace(b"31", count).replace(b":7}", b":%b}" % count)
        whole = whole.replace(b'Count":5', b'Count":%b' % count) if spoken == "generate" else whole
        bench = Ways([spoken], [stream_of(spoken, whole)], rates=RATES)
        _, body = await bench.serve(**bench.asking(asked))
        assert heard(asked, body).error is None
        assert (asked, spoken) in OWN or b":-5" not in body
        assert bench.account.outcome == "ok"
        assert bench.account.usage is not None
        assert 0 <= bench.account.usage.input < 2**53


@pytest.mark.parametrize("spoken", ["chat", "responses", "messages", "generate", "converse"])
async def test_googles_callers_are_told_in_the_body_when_to_come_back(spoken: str) -> None:
    """They read no header; whoever's the error is, and its own RetryInfo stays the only one."""
    own = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9s"}
    googles = {"error": {"code": 503, "message": "m", "status": "UNAVAILABLE", "details": [own]}}
    bodies = [b'{"error":{"message":"m","type":"server_error","code":null}}', orjson.dumps(googles)]
    for body in bodies[: 2 if spoken == "generate" else 1]:
        busy = Script(503, (JSON, (b"retry-after", b"7")), [body])
        bench = Ways([spoken], [busy] * 40)
        reply, said = await bench.serve(**bench.asking("generate", stream=False))
        headers = dict(reply.headers)
        assert reply.status == 503
        assert headers[b"x-should-retry"] == b"true"
        details = orjson.loads(said)["error"]["details"]
        (info,) = [one for one in details if one["@type"] == own["@type"]]
        assert info["retryDelay"] in ("7.0s", "9s")
        assert (info["retryDelay"] == "9s") is (body is bodies[1])


@pytest.mark.parametrize(("asked", "spoken"), [way for way in WAYS if way[1] not in FRAMED])
async def test_a_byte_order_mark_is_no_part_of_an_answer(asked: str, spoken: str) -> None:
    """Before a stream, in one piece or in several, and before an error in JSON."""
    mark, stream = b"\xef\xbb\xbf", STREAMS[spoken]
    for chunks in ([mark + stream[0], *stream[1:]], [mark[:1], mark[1:], *stream], [mark + b"".join(stream)]):
        bench = Ways([spoken], [stream_of(spoken, *chunks)])
        _, body = await bench.serve(**bench.asking(asked))
        assert bench.account.outcome == "ok"
        assert not body.startswith(mark)
        assert heard(asked, body)[1:] == (True, None)
    refused = Script(
        400, (JSON,), [mark + b'{"error":{"message":"no such field","type":"invalid_request_error","code":400}}']
    )
    bench = Ways([spoken], [refused])
    reply, body = await bench.serve(**bench.asking(asked))
    assert (reply.status, b"no such field" in body) == (400, True)
    assert orjson.loads(body)["error"]


@pytest.mark.parametrize(("asked", "spoken"), [way for way in WAYS if way[1] in CALLERS])
async def test_a_byte_order_mark_before_a_whole_answer_is_none(asked: str, spoken: str) -> None:
    """It is delivered without: not all clients take JSON with one."""
    whole = {
        "chat": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}]},
        "responses": {"object": "response", "status": "completed", "output": []},
        "messages": {"type": "message", "content": [], "stop_reason": "end_turn"},
        "generate": {"candidates": [{"content": {"parts": [{"text": "so"}]}, "finishReason": "STOP"}]},
    }
    bench = Ways([spoken], [Script(200, (JSON,), [b"\xef\xbb\xbf" + orjson.dumps(whole[spoken])])])
    _, body = await bench.serve(**bench.asking(asked, stream=False))
    assert bench.account.outcome == "ok"
    assert isinstance(orjson.loads(body), dict)


HALF = b"a\\ud83d"
"""The half of an emoji, as a model that was cut in the middle of it may end."""


@pytest.mark.parametrize(("asked", "spoken"), [way for way in WAYS if way[1] in CALLERS])
async def test_half_of_a_surrogate_pair_is_delivered(asked: str, spoken: str) -> None:
    """In the same bytes where nothing is converted, else as U+FFFD, and a whole answer's header says so; it is paid once."""
    texts = {
        "chat": b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}]}',
        "responses": b'{"object":"response","status":"completed","output":[{"type":"message","role":"assistant","status":'
        b'"completed","content":[{"type":"output_text","text":"%b","annotations":[]}]}]}',
        "messages": b'{"type":"message","content":[{"type":"text","text":"%b"}],"stop_reason":"end_turn"}',
        "generate": b'{"candidates":[{"content":{"parts":[{"text":"%b"}]},"finishReason":"STOP"}]}',
    }
    whole = texts[spoken] % HALF
    bench = Ways([spoken], [Script(200, (JSON,), [whole])])
    reply, body = await bench.serve(**bench.asking(asked, stream=False))
    assert len(bench.account.call.attempts) == 1
    if asked == spoken:
        assert body == whole
    else:
        assert "a\ufffd".encode() in body
        assert b"answer(approximated)" in dict(reply.headers)[b"x-gateway-lossy"]
    stream = [event.replace(b'"o"', b'"%b"' % HALF) for event in STREAMS[spoken]]
    bench = Ways([spoken], [stream_of(spoken, *stream)])
    _, body = await bench.serve(**bench.asking(asked))
    assert bench.account.outcome == "ok"
    assert (HALF if asked == spoken else "a\ufffd".encode()) in body


@pytest.mark.parametrize("asked", ["responses", "messages", "generate"])
async def test_parallel_calls_of_one_number_are_told_apart_by_their_ids(asked: str) -> None:
    """In pieces and whole: some servers number all of them 0."""
    pieces = [("a", '{"x"'), (None, ":1}"), ("b", '{"x":2}')]
    calls = [
        {"index": 0, "function": {"arguments": text, **({"name": "f"} if id else {})}, **({"id": id} if id else {})}
        for id, text in pieces
    ]
    deltas = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]} for call in calls]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    bench = Ways(["chat"], [stream_of("chat", *sse(*deltas, end, "[DONE]"))])
    _, body = await bench.serve(**bench.asking(asked))
    assert bench.account.outcome == "ok"
    assert heard(asked, body) == ('{"x":1}{"x":2}', True, None)


@pytest.mark.parametrize("asked", ["responses", "messages", "generate"])
async def test_null_for_arguments_is_none(asked: str) -> None:
    """Models write it for a tool without parameters; it is an object for callers, whole and streamed."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "null"}}
    whole = {
        "choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}]
    }
    bench = Ways(["chat"], [Script(200, (JSON,), [orjson.dumps(whole)])])
    _, body = await bench.serve(**bench.asking(asked, stream=False))
    said = orjson.loads(body)
    given = {
        "responses": lambda: orjson.loads(said["output"][0]["arguments"]),
        "messages": lambda: said["content"][-1]["input"],
        "generate": lambda: said["candidates"][0]["content"]["parts"][-1]["functionCall"]["args"],
    }
    assert given[asked]() == {}
    head = {**call, "index": 0, "function": {"name": "f", "arguments": ""}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    split = [[{"index": 0, "function": {"arguments": text}} for text in ("null"[:at], "null"[at:])] for at in range(5)]
    for pieces in ([{**call, "index": 0}], *([head, *texts] for texts in split)):
        deltas = [
            {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": None}]} for piece in pieces
        ]
        bench = Ways(["chat"], [stream_of("chat", *sse(*deltas, end, "[DONE]"))])
        _, body = await bench.serve(**bench.asking(asked))
        assert heard(asked, body) == ("{}", True, None)


@pytest.mark.parametrize("spoken", ["messages", "generate", "converse", "responses"])
@pytest.mark.parametrize("text", ["null", '{"x":"\\ud83d"}'])
async def test_a_call_comes_back_as_it_was_given(spoken: str, text: str) -> None:
    """In the history of the next request, where it was a 400: the conversation would be dead."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    bench = Ways([spoken], [stream_of(spoken, *STREAMS[spoken])])
    _, body = await bench.serve(**bench.asking("chat", more={"messages": turns}))
    assert heard("chat", body).error is None
    assert bench.account.outcome == "ok"


async def test_an_anthropic_ping_is_a_line_for_a_go_caller_of_chat_completions() -> None:
    """The comment that it becomes, in the middle of the answer."""
    bench = Ways(["messages"], [stream_of("messages", *STREAMS["messages"])])
    _, body = await bench.serve(**bench.asking("chat", headers=[(b"x-stainless-lang", b"go")]))
    assert body.count(b": ping\ndata: {") == 1
    assert b": ping\n\n" not in body
    assert heard("chat", body.replace(b": ping\n", b"")).is_ended
