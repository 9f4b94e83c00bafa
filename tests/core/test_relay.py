"""Streams: whole events, exact bytes, an honest end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import orjson
import pytest

from gateway.core.openai.sse import PENDING_LIMIT
from gateway.core.relay import OPENING_LIMIT, SseRelay, StreamBroken
from gateway.core.types import Answer, Endpoint, ErrorClass, Upstream, UpstreamFailed, Usage
from gateway.dialects.endpoints import IMAGES
from tests.support.flow import (
    CHAT,
    CLOCKS,
    RESPONSES,
    SPEECH,
    Bench,
    Broken,
    FakeClock,
    Script,
    ScriptedAnswer,
    ScriptedUpstream,
    read_all,
    streamed,
)

DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT_STREAM = DELTA + DELTA + FINISH + USAGE + DONE
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
TEXT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
    b'{"input_tokens":7,"output_tokens":2}}}\n\n'
)


def bench(*chunks: bytes | Exception, include_usage: bool = True) -> Bench:
    """One target that streams these chunks."""
    return Bench([ScriptedUpstream(streamed(*chunks))], include_usage=include_usage)


async def test_a_stream_whose_usage_was_asked_for_passes_byte_for_byte() -> None:
    """The caller asked for usage itself: nothing is injected, nothing is stripped."""
    stage = bench(CHAT_STREAM)

    _, body = await stage.serve(stream=True, stream_options={"include_usage": True})

    assert body == CHAT_STREAM
    assert stage.upstreams[0].sent[0].body == stage.call().request.body


async def test_injected_usage_is_counted_and_not_shown() -> None:
    """The gateway asks for usage on its own account; the caller does not see the extra event."""
    nulled = DELTA.replace(b"]}\n", b'],"usage":null}\n')
    stage = bench(nulled + DELTA + FINISH + USAGE + DONE)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + DELTA + FINISH + DONE
    assert orjson.loads(bytes(stage.upstreams[0].sent[0].body))["stream_options"] == {"include_usage": True}
    assert stage.account.usage is not None
    assert (stage.account.usage.input, stage.account.usage.output, stage.account.usage.estimated) == (7, 2, False)


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_usage_is_not_asked_for_against_the_callers_or_the_policys_will(options: object) -> None:
    """`include_usage: false`, by the caller or by the policy, leaves the body alone; tokens are estimated."""
    stage = bench(DELTA, FINISH, DONE, include_usage=options is not None)

    _, body = await stage.serve(stream=True, stream_options=options)

    assert stage.upstreams[0].sent[0].body == stage.call().request.body
    assert body == DELTA + FINISH + DONE
    assert stage.account.usage is not None
    assert stage.account.usage.estimated


@pytest.mark.parametrize(
    ("endpoint", "stream", "shown"),
    [
        (CHAT, CHAT_STREAM, DELTA + DELTA + FINISH + DONE),
        (RESPONSES, CREATED + TEXT + COMPLETED, CREATED + TEXT + COMPLETED),
    ],
)
async def test_a_split_at_any_byte_changes_nothing(endpoint: Endpoint, stream: bytes, shown: bytes) -> None:
    """Chunk borders are the network's business: output, outcome and usage are the same wherever they fall."""
    for cut in range(1, len(stream)):
        stage = bench(stream[:cut], stream[cut:])

        _, body = await stage.serve(stream=True, endpoint=endpoint)

        assert body == shown, cut
        assert stage.account.outcome == "ok"
        assert stage.account.usage is not None
        assert stage.account.usage.input == 7


async def test_byte_by_byte_arrival_changes_nothing() -> None:
    """The slowest of networks."""
    stage = bench(*(bytes([byte]) for byte in CHAT_STREAM))

    _, body = await stage.serve(stream=True)

    assert body == DELTA + DELTA + FINISH + DONE


@pytest.mark.parametrize("last", [Broken("reset by peer"), b""])
@pytest.mark.parametrize("partial", [b"", b'data: {"id":"c","cho'])
async def test_a_stream_that_breaks_ends_with_an_error_event(last: Exception | bytes, partial: bytes) -> None:
    """A reset or a bare end after output is never a silent or a fake end; the torn event is not passed on."""
    stage = bench(DELTA, partial, last)

    _, body = await stage.serve(stream=True)

    assert body.startswith(DELTA + b"data: ")
    error = orjson.loads(body[len(DELTA) + 6 :])["error"]
    assert error["code"] == "stream_interrupted"
    assert set(error) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in body
    assert stage.account.outcome == "stream_interrupted"


async def test_a_responses_stream_that_breaks_ends_with_its_own_kind_of_error() -> None:
    """`event: error` with a flat object, then `response.failed`, as OpenAI's end: clients read the one or the other."""
    stage = bench(CREATED + TEXT, Broken("reset"))

    _, body = await stage.serve(stream=True, endpoint=RESPONSES)

    last = body[len(CREATED + TEXT) :]
    assert last.startswith(b"event: error\ndata: ")
    error, failed = (orjson.loads(event.partition(b"data: ")[2]) for event in last.removesuffix(b"\n\n").split(b"\n\n"))
    assert error["type"] == "error"
    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == error["sequence_number"] + 1
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "stream_interrupted")


async def test_a_finish_reason_without_done_is_an_end() -> None:
    """Some providers leave out [DONE]; the answer is complete, and nothing is invented."""
    stage = bench(DELTA, FINISH)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH
    assert stage.account.outcome == "ok"


async def test_a_break_behind_the_last_event_is_no_harm() -> None:
    """The answer was complete before the connection went."""
    stage = bench(DELTA, FINISH, DONE, Broken("reset"))

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH + DONE
    assert stage.account.outcome == "ok"


@pytest.mark.parametrize(
    ("done", "missing"),
    [
        (b"data: [DONE]", b"\n\n"),
        (b"data: [DONE]\n", b"\n"),
        (b"data: [DONE]\r\n", b"\n"),
        (b"data: [DONE]\r", b"\n\n"),
    ],
)
async def test_a_last_event_without_its_blank_line_gets_one(done: bytes, missing: bytes) -> None:
    """Without it a reader would never see the event."""
    stage = bench(DELTA, FINISH, done)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH + done + missing
    assert stage.account.outcome == "ok"


@pytest.mark.parametrize(
    ("endpoint", "torn"),
    [
        (CHAT, FINISH[:-18]),
        (RESPONSES, COMPLETED[:-16]),
        (RESPONSES, b"event: response.completed\n"),
    ],
    ids=["chat", "responses", "name only"],
)
@pytest.mark.parametrize("last", [Broken("reset"), b""])
async def test_a_torn_last_event_ends_nothing(endpoint: Endpoint, torn: bytes, last: Exception | bytes) -> None:
    """No reader can see the end in it, so the client is told that the stream broke."""
    first = TEXT if endpoint is RESPONSES else DELTA
    stage = bench(first, torn, last)

    _, body = await stage.serve(stream=True, endpoint=endpoint)

    assert b"stream_interrupted" in body
    assert stage.account.outcome == "stream_interrupted"


@pytest.mark.parametrize(
    ("endpoint", "torn"),
    [
        (CHAT, FINISH.replace(b'"c"', b'"%b"' % (b"x" * PENDING_LIMIT))[:-18]),
        (RESPONSES, COMPLETED.replace(b'"usage"', b'"x":"%b","usage"' % (b"x" * PENDING_LIMIT))[:-16]),
        (CHAT, b'data: {"x":"' + b"x" * (PENDING_LIMIT + 10)),
    ],
    ids=["finish", "completed", "delta"],
)
@pytest.mark.parametrize("last", [Broken("reset"), b""])
async def test_a_break_inside_an_event_that_began_breaks_the_clients_connection(
    endpoint: Endpoint, torn: bytes, last: Exception | bytes
) -> None:
    """Whatever followed would be read as a part of it: no error event could be told from the text before."""
    first = TEXT if endpoint is RESPONSES else DELTA
    stage = bench(first, torn, last)

    reply = await stage.pipeline.handle(stage.call(stream=True, endpoint=endpoint))
    got = b""
    assert reply.chunks is not None
    try:
        async for chunk in reply.chunks:
            got += chunk
        pytest.fail("it ended as if it were whole")
    except StreamBroken:
        await reply.close()

    assert (first + torn).startswith(got)
    assert len(got) > PENDING_LIMIT
    assert stage.account.outcome == "stream_interrupted"


@pytest.mark.parametrize(("endpoint", "event"), [(CHAT, FINISH), (RESPONSES, COMPLETED)], ids=["finish", "responses"])
async def test_a_stream_of_nothing_but_its_last_event_is_whole_unless_torn(endpoint: Endpoint, event: bytes) -> None:
    """An empty answer is one. Torn, the stream never began and the next target is asked."""
    whole, torn = event[:-2], event[:-5]
    alone = bench(whole)
    stage = Bench([ScriptedUpstream(streamed(torn)), ScriptedUpstream(streamed(event))])

    _, body = await alone.serve(stream=True, endpoint=endpoint)
    _, second = await stage.serve(stream=True, endpoint=endpoint)

    assert (body, alone.account.outcome) == (whole + b"\n\n", "ok")
    assert (second, stage.account.outcome) == (event, "ok")
    assert len(stage.upstreams[1].sent) == 1


async def test_injected_usage_is_not_shown_without_its_blank_line_either() -> None:
    """The stream ends right behind it."""
    stage = bench(DELTA, FINISH, USAGE[:-2])

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH
    assert stage.account.outcome == "ok"


async def test_the_providers_own_error_event_is_not_doubled() -> None:
    """It is forwarded as it came, and nothing is added."""
    error = b'data: {"error":{"message":"overloaded","type":"server_error","code":null}}\n\n'
    stage = bench(DELTA, error)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + error
    assert stage.account.outcome == "stream_error"


async def test_text_that_looks_like_an_end_is_not_one() -> None:
    """A model may write about SSE; inside a JSON string that ends nothing."""
    text = {"choices": [{"delta": {"content": '\ndata: [DONE]\n\n"finish_reason":"stop" event: response.completed\n'}}]}
    stage = bench(b"data: " + orjson.dumps(text) + b"\n\n")

    await stage.serve(stream=True)

    assert stage.account.outcome == "stream_interrupted"


async def test_a_bare_json_error_at_the_end_is_told() -> None:
    """Some append raw JSON to a broken stream: its message reaches the client in an error event."""
    stage = bench(DELTA, b'{\n  "error": {"code": 503, "message": "model unavailable"}\n}\n')

    _, body = await stage.serve(stream=True)

    assert b"model unavailable" in body[len(DELTA) :]
    assert body[len(DELTA) :].startswith(b"data: ")


async def test_announcements_are_held_back_until_the_first_real_event() -> None:
    """`response.created` says nothing yet: a failure behind it still moves on to the next target."""
    stage = Bench(
        [ScriptedUpstream(streamed(CREATED, Broken("gone"))), ScriptedUpstream(streamed(CREATED, TEXT, COMPLETED))]
    )

    _, body = await stage.serve(stream=True, endpoint=RESPONSES)

    assert body == CREATED + TEXT + COMPLETED
    assert stage.account.outcome == "ok"


async def test_comments_before_the_first_event_are_kept() -> None:
    """`: OPENROUTER PROCESSING` and its like are forwarded in their place."""
    stage = bench(b": PROCESSING\n\n", b": PROCESSING\n\n", DELTA, FINISH, DONE)

    _, body = await stage.serve(stream=True)

    assert body == b": PROCESSING\n\n" * 2 + DELTA + FINISH + DONE


async def test_an_event_of_any_size_passes_in_bounded_memory() -> None:
    """A 1 MB event is passed on in parts as it comes, exactly."""
    big = b'data: {"choices":[{"delta":{"content":"' + b"x" * 1_000_000 + b'"}}]}\n\n'
    pieces = [big[at : at + 10_000] for at in range(0, len(big), 10_000)]
    stage = bench(*pieces, FINISH, DONE)

    reply = await stage.pipeline.handle(stage.call(stream=True))
    assert reply.chunks is not None
    chunks = [chunk async for chunk in reply.chunks]
    await reply.close()

    assert b"".join(chunks) == big + FINISH + DONE
    assert max(map(len, chunks)) < 2 * PENDING_LIMIT


async def test_the_total_clock_ends_a_stream_that_never_does() -> None:
    """An hour is enough for any answer; the client is told."""
    clock = FakeClock()
    script = streamed(DELTA, lambda: clock.__setattr__("now", clock.now + 4000), DELTA, DELTA)
    stage = Bench([ScriptedUpstream(script)], clock=clock)

    _, body = await stage.serve(stream=True)

    assert body.startswith(DELTA + DELTA + b'data: {"error":')
    assert stage.account.outcome == "timeout"


async def test_tokens_of_an_unfinished_stream_are_estimated_from_its_events() -> None:
    """A client that leaves half-way has used about as many tokens as it has seen events."""
    stage = bench(*[DELTA] * 30)

    reply = await stage.pipeline.handle(stage.call(stream=True))
    assert reply.chunks is not None
    for _ in range(20):
        await anext(reply.chunks)
    await reply.close()

    assert stage.account.outcome == "client_gone"
    assert stage.account.usage is not None
    assert stage.account.usage.output == 20


async def test_a_raw_body_that_breaks_off_breaks_the_clients_connection() -> None:
    """There is no error event in audio: the break itself has to be seen."""
    script = Script(200, ((b"content-type", b"audio/wav"),), [b"abc", Broken("reset")])
    stage = Bench([ScriptedUpstream(script)])

    reply = await stage.pipeline.handle(stage.call(endpoint=SPEECH))
    with pytest.raises(Exception, match="reset"):
        await read_all(reply)
    await reply.close()

    assert script.closed
    assert stage.account.outcome == "stream_interrupted"


async def test_half_of_the_choices_is_not_an_answer() -> None:
    """With `n: 2`, one finish reason and a break or an end is a cut stream."""
    body = b'{"model":"m","messages":[],"n":2}'
    for last in (b"", Broken("reset")):
        stage = bench(DELTA, FINISH, last)

        _, shown = await stage.serve(stream=True, body=body, stream_options={"include_usage": True})

        assert b"stream_interrupted" in shown
        assert stage.account.outcome == "stream_interrupted"


async def test_a_break_behind_a_finish_reason_is_a_break() -> None:
    """Without [DONE] only a clean end proves that nothing else was coming."""
    stage = bench(DELTA, FINISH, Broken("reset"))

    _, shown = await stage.serve(stream=True)

    assert b"stream_interrupted" in shown


async def test_streams_of_unknown_kind_end_when_they_end() -> None:
    """Images stream their own events, without [DONE]: a clean end is good, a break is not."""
    event = b'event: image_generation.completed\ndata: {"type":"image_generation.completed"}\n\n'

    good, broken = bench(event), bench(event, Broken("reset"))

    assert (await good.serve(stream=True, endpoint=IMAGES))[1] == event
    assert b"stream_interrupted" in (await broken.serve(stream=True, endpoint=IMAGES))[1]


async def test_usage_is_found_however_much_follows_it() -> None:
    """`response.completed` carries the whole response: metadata and tools may stand behind its usage."""
    response = {
        "usage": {"input_tokens": 1000, "output_tokens": 500},
        "metadata": {str(n): "x" * 500 for n in range(60)},
    }
    completed = b"event: response.completed\ndata: " + orjson.dumps(
        {"type": "response.completed", "response": response}
    )
    stage = bench(CREATED + TEXT, completed + b"\n\n")

    await stage.serve(stream=True, endpoint=RESPONSES)

    assert stage.account.usage is not None
    assert (stage.account.usage.input, stage.account.usage.output) == (1000, 500)


# -- before the first event -----------------------------------------------------------------------------------------------

ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
FILTERED = b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n'
OVERLOADED = b'data: {"error":{"message":"overloaded","type":"server_error","code":null}}\n\n'


def relay_of(*chunks: bytes | Exception | Callable[[], None], endpoint: Endpoint = CHAT) -> SseRelay:
    """A relay of these chunks, without a pipeline around it."""
    upstream = ScriptedUpstream()
    answer = ScriptedAnswer(streamed(*chunks))
    call = bench().call(stream=True, endpoint=endpoint)
    return SseRelay(call, cast("Upstream", upstream), cast("Answer", answer), strip_usage=False)


async def failure_of(*chunks: bytes | Exception, endpoint: Endpoint = CHAT) -> ErrorClass:
    """What opening a stream of these chunks fails with."""
    with pytest.raises(UpstreamFailed) as failed:
        await relay_of(*chunks, endpoint=endpoint).open()
    return failed.value.error_class


@pytest.mark.parametrize("lead", [ROLE, FILTERED + ROLE, b": PROCESSING\n\n" + ROLE, b"data:\n\n", ROLE * 3])
async def test_nothing_is_lost_of_what_was_held_back(lead: bytes) -> None:
    """Announcements go out with the first real event, in one chunk with it or before it."""
    for chunks in (
        (lead + DELTA, FINISH + DONE),
        (lead, DELTA + FINISH, DONE),
        (lead[:9], lead[9:] + DELTA + FINISH + DONE),
    ):
        stage = bench(*chunks)

        _, body = await stage.serve(stream=True, stream_options={"include_usage": True})

        assert body == lead + DELTA + FINISH + DONE
        assert stage.account.outcome == "ok"


@pytest.mark.parametrize("lead", [b"", ROLE, FILTERED, b": PROCESSING\n\n"])
async def test_an_error_before_any_output_is_one_of_the_attempt(lead: bytes) -> None:
    """Nothing has reached the client: another target may try."""
    error = {"message": "overloaded", "type": "server_error", "code": None}

    assert await relay_of(lead, OVERLOADED).open() == error
    assert await relay_of(lead + OVERLOADED + DONE).open() == error
    assert await relay_of(lead, b'{\n  "error": {"message": "m"}\n}\n').open() == {"message": "m"}


@pytest.mark.parametrize("reason", [b"error", b"insufficient_system_resource", b"abort"])
async def test_a_first_chunk_that_gives_up_is_an_error(reason: bytes) -> None:
    """A finish reason that means a failure, and no output yet."""
    error = await relay_of(ROLE, FINISH.replace(b"stop", reason), DONE).open()

    assert error is not None
    assert error["code"] == reason.decode()


async def test_a_failed_response_before_output_is_an_error() -> None:
    """`response.failed` behind `response.created`."""
    failed = b'data: {"type":"response.failed","response":{"error":{"code":"server_error","message":"m"}}}\n\n'

    assert await relay_of(CREATED, failed, endpoint=RESPONSES).open() == {"code": "server_error", "message": "m"}


@pytest.mark.parametrize(
    ("chunks", "error_class"),
    [
        ((ROLE,), ErrorClass.STREAM_INTERRUPTED),
        ((b"",), ErrorClass.STREAM_INTERRUPTED),
        ((ROLE, DELTA[:-3]), ErrorClass.STREAM_INTERRUPTED),
        ((ROLE, Broken("reset")), ErrorClass.CONNECTION),
        ((ROLE, DONE), ErrorClass.MALFORMED_RESPONSE),
        ((DONE,), ErrorClass.MALFORMED_RESPONSE),
        ((DONE[:-2],), ErrorClass.MALFORMED_RESPONSE),
        ((ROLE, b"data: what is this\n\n"), ErrorClass.MALFORMED_RESPONSE),
        ((b"<html>502</html>\n\n",), ErrorClass.MALFORMED_RESPONSE),
        ((b"<html>502</html>",), ErrorClass.MALFORMED_RESPONSE),
        ((b"<html>" + b"x" * PENDING_LIMIT,), ErrorClass.MALFORMED_RESPONSE),
    ],
)
async def test_a_stream_that_never_begins_fails_the_attempt(
    chunks: tuple[bytes | Exception, ...], error_class: ErrorClass
) -> None:
    """Cut short or nonsense: never a 200."""
    assert await failure_of(*chunks) is error_class


async def test_a_first_token_is_not_held_back() -> None:
    """What follows it in time is not waited for."""
    waits: list[str] = []
    relay = relay_of(ROLE, DELTA, lambda: waits.append("asked for more"), DELTA)

    assert await relay.open() is None
    assert waits == []


async def test_holding_back_is_bounded() -> None:
    """A flood of comments goes out at last."""
    waits: list[str] = []
    relay = relay_of(b": x\n\n" * OPENING_LIMIT, lambda: waits.append("asked for more"), DELTA)

    assert await relay.open() is None
    assert waits == []


# -- in the middle --------------------------------------------------------------------------------------------------------


async def test_a_malformed_event_is_replaced_by_an_error_event() -> None:
    """Its reader could only choke on it; nothing follows, whatever the provider still sends."""
    stage = bench(DELTA, b'data: {"choices":[{"delta":{"con\n\n', DELTA, FINISH, DONE)

    _, body = await stage.serve(stream=True)

    assert body.startswith(DELTA + b'data: {"error":')
    assert body.count(b"data:") == 2
    assert stage.account.outcome == "stream_interrupted"


async def test_nothing_follows_the_providers_own_error() -> None:
    """Not even its own [DONE]."""
    for chunks in ((DELTA, OVERLOADED, DONE), (DELTA + OVERLOADED + DONE,)):
        stage = bench(*chunks)

        _, body = await stage.serve(stream=True)

        assert body == DELTA + OVERLOADED
        assert stage.account.outcome == "stream_error"


async def test_an_error_that_looks_like_any_other_chunk_is_no_success() -> None:
    """It is passed on, SDKs see it, and the account says what it was."""
    chunk = DELTA.replace(b'{"id"', b'{"error":{"message":"m"},"id"')
    stage = bench(DELTA, chunk)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + chunk
    assert stage.account.outcome == "stream_error"


@pytest.mark.parametrize("after", [DONE, DELTA, b"garbage", Broken("reset")])
async def test_what_comes_after_the_last_event_is_no_harm(after: bytes | Exception) -> None:
    """The answer is complete, and nothing is added to it."""
    stage = bench(DELTA, FINISH, DONE, after)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH + DONE
    assert stage.account.outcome == "ok"


async def test_a_client_that_leaves_behind_the_last_event_has_its_answer() -> None:
    """SDKs stop reading at [DONE]."""
    stage = bench(DELTA, FINISH, DONE, DELTA)

    reply = await stage.pipeline.handle(stage.call(stream=True))
    assert reply.chunks is not None
    for _ in range(3):
        await anext(reply.chunks)
    await reply.close()

    assert stage.account.outcome == "ok"


async def test_the_usage_of_a_stream_that_breaks_is_the_last_one_reported() -> None:
    """Some report it with every chunk; it is what the client pays for."""
    chunk = DELTA.replace(b"]}\n", b'],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n')
    stage = bench(chunk % 1, chunk % 2, chunk % 3, Broken("reset"))

    await stage.serve(stream=True, stream_options={"include_usage": True})

    assert stage.account.outcome == "stream_interrupted"
    assert stage.account.usage == Usage(7, 3)


async def test_tokens_are_estimated_from_events_however_they_came() -> None:
    """Twenty in one chunk are twenty; comments and what only announces an answer are none."""
    stage = bench(FILTERED + DELTA * 10, b": x\n\n" + DELTA * 10, DELTA, Broken("reset"))

    await stage.serve(stream=True)

    assert stage.account.usage is not None
    assert stage.account.usage.output == 21


# -- clocks ---------------------------------------------------------------------------------------------------------------


async def dripped(event: bytes, gap_s: float, count: int, *, client_s: float = 0.0) -> tuple[bytes, str]:
    """What the client gets of a stream whose events come so far apart, where 1 event a second is asked for, and its outcome."""
    clock = FakeClock()
    chunks: list[bytes | Callable[[], None]] = [DELTA]
    for _ in range(count):
        chunks += [lambda: clock.advance(gap_s), event]
    relay = relay_of(*chunks, FINISH + DONE)
    outcomes: list[str] = []
    await relay.open()
    clocks = replace(CLOCKS, least_events_per_s=1.0, drip_window_s=10.0)
    body = b""
    async for chunk in relay.chunks(lambda outcome, *_: outcomes.append(outcome), clocks, clock.monotonic):
        body += chunk
        clock.advance(client_s)
    return body, outcomes[0]


async def test_a_stream_that_drips_ends_with_an_error_event() -> None:
    """Fewer events than asked for over a whole window: the client is told that it took too long."""
    body, outcome = await dripped(DELTA, 2.0, 60)

    assert body.startswith((DELTA * 6 + b'data: {"error":', DELTA * 7 + b'data: {"error":'))
    assert b'"code":"timeout"' in body
    assert b"[DONE]" not in body
    assert outcome == "timeout"


async def test_a_stream_that_is_fast_enough_is_left_alone() -> None:
    """However long it takes."""
    assert await dripped(DELTA, 0.9, 60) == (DELTA * 61 + FINISH + DONE, "ok")


async def test_comments_are_silence() -> None:
    """A provider that only keeps the connection alive brings nothing."""
    body, outcome = await dripped(b": keep-alive\n\n", 0.1, 300)

    assert outcome == "timeout"
    assert body.count(b": keep-alive") == pytest.approx(101, abs=2)


@pytest.mark.parametrize("comments", [1, 50])
async def test_a_flood_of_comments_is_silence_too(comments: int) -> None:
    """Handling and passing them on takes all the time there is, which is not the client's: it would never count as waiting."""
    body, outcome = await dripped(b": keep-alive\n\n" * comments, 0.0, 10_000, client_s=0.004)

    assert outcome == "timeout"
    assert b'"code":"timeout"' in body


async def test_a_slow_client_is_not_the_providers_fault() -> None:
    """Only time spent waiting for the provider counts."""
    assert await dripped(DELTA, 0.5, 30, client_s=5.0) == (DELTA * 31 + FINISH + DONE, "ok")


async def test_a_raw_body_has_a_total_clock_too() -> None:
    """Its end can only be seen by a break."""
    clock = FakeClock()
    script = Script(200, ((b"content-type", b"audio/wav"),), [b"abc", lambda: clock.advance(4000), b"def", b"ghi"])
    stage = Bench([ScriptedUpstream(script)], clock=clock)

    reply = await stage.pipeline.handle(stage.call(endpoint=SPEECH))
    with pytest.raises(StreamBroken):
        await read_all(reply)
    await reply.close()

    assert stage.account.outcome == "timeout"
