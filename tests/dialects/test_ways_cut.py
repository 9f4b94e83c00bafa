"""Streams cut anywhere, on each way between two languages: the caller has all of the answer or an error, never a false end.

At every byte through the readers, which decide what an end is; at every event through the whole of a call, with its account.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from gateway.core.errors import GatewayError
from gateway.core.types import ErrorClass
from gateway.dialects.base import Reader, ServerFacts
from gateway.dialects.registry import pair_of
from tests.dialects.aws_frames import event as frame
from tests.dialects.ways import ASKED, FRAMED, LANGUAGES, MODELS, STREAMS, WAYS, Ways, heard, stream_of
from tests.support.flow import Broken

CONVERTED = [(asked, spoken) for asked, spoken in WAYS if asked != spoken and spoken != "claude_at_vertex"]
ENDING = {
    "chat": 7,
    "responses": 9,
    "messages": 15,
    "claude": 15,
    "claude_at_vertex": 15,
    "generate": 4,
    "converse": 10,
}
"""The event of each stream with which its end is told: behind it a stream may end."""
_OF_MESSAGES = (0, 5, 7, 9, 14, 15)
SHORT = {
    "chat": (0, 2, 7, 8, 9), "responses": (0, 2, 9), "messages": _OF_MESSAGES, "claude": _OF_MESSAGES, "generate": (1, 4),
    "converse": (0, 3, 5, 10, 11),
}  # fmt: skip
"""The events of each stream that make a small one of it."""
_WORDS_OF_MESSAGES = {2: "hm", 7: "s", 8: "o", 11: '{"x"', 12: ":1}"}
WORDS = {
    "chat": {1: "hm", 2: "s", 3: "o", 5: '{"x"', 6: ":1}"},
    "responses": {2: "s", 3: "o", 6: '{"x"', 7: ":1}"},
    "messages": _WORDS_OF_MESSAGES,
    "claude": _WORDS_OF_MESSAGES,
    "generate": {0: "hm", 1: "s", 2: "o", 3: '{"x":1}'},
    "converse": {1: "hm", 3: "s", 4: "o", 7: '{"x"', 8: ":1}"},
}
"""What the events of each stream say, by their numbers."""
END_MARKS = (b"[DONE]", b"message_stop", b"response.completed", b'"finish_reason":"', b'"finishReason"')
HELD = (ErrorClass.STREAM_INTERRUPTED, ErrorClass.CONNECTION)


def readers_of(asked: str, spoken: str) -> Callable[[], Reader]:
    """Makes readers of the answer to one request."""
    pair = pair_of(asked, spoken)
    facts = ServerFacts(model=MODELS.of(LANGUAGES[spoken].model))
    body = {"model": "m", **ASKED[asked], "stream": True}
    sent = pair.translator.request(body, facts, 0.0, lambda: "abc")
    return lambda: pair.reader(sent)


@pytest.mark.parametrize(("asked", "spoken"), CONVERTED)
def test_a_stream_cut_at_any_byte_has_no_false_end(asked: str, spoken: str) -> None:
    """However clean the cut is: what comes is how the whole begins, and no end that was not told."""
    events = [STREAMS[spoken][number] for number in SHORT[spoken]]
    stream, ending = b"".join(events), sum(map(len, events[: SHORT[spoken].index(ENDING[spoken]) + 1]))
    ending -= 0 if spoken in FRAMED else 4 if spoken == "generate" else 2  # an event without its blank line is whole
    make = readers_of(asked, spoken)
    one = make()
    whole = one.feed(stream) + one.close(is_clean=True)
    assert heard(asked, whole)._replace(text="") == ("", True, None)

    for at in range(len(stream)):
        one = make()
        told = one.feed(stream[:at]) + one.close(is_clean=True)
        if at < ending:
            assert whole.startswith(told)
            assert not any(mark in told for mark in END_MARKS)
        else:
            assert heard(asked, told) == heard(asked, whole) or (spoken in FRAMED and whole.startswith(told))


@pytest.mark.parametrize(("asked", "spoken"), [way for way in CONVERTED if way[0] != "generate"])
def test_no_word_waits_for_another_event(asked: str, spoken: str) -> None:
    """Each thought, word and piece of arguments leaves with the event that brought it, however the two languages differ.

    Gemini's callers have calls whole: see `test_generate_over_chat.py`.
    """
    reader = readers_of(asked, spoken)()
    told = [heard(asked, reader.feed(event)).text for event in STREAMS[spoken]]

    assert told == [WORDS[spoken].get(number, "") for number in range(len(STREAMS[spoken]))]


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
async def test_a_call_whose_stream_is_cut_is_told_and_settled(asked: str, spoken: str) -> None:
    """At every event, whether the stream ends there or breaks: in the caller's shape, and as a failure of the attempt."""
    stream, borders = b"".join(STREAMS[spoken]), accumulate(map(len, STREAMS[spoken]))
    whole = await told(asked, spoken, stream)
    for number, border in enumerate(borders, 1):
        for cut in ([stream[:border]], [stream[:border], Broken("reset")]):
            bench = Ways([spoken], [stream_of(spoken, *cut)])
            try:
                _, body = await bench.serve(**bench.asking(asked))
            except GatewayError:
                assert bench.account.call.attempts[-1].error_class in HELD
                assert number <= 3, "something was said by then"
                continue
            account = bench.account
            got = heard(asked, body)
            assert whole.startswith(got.text)
            assert account.usage is not None
            assert account.cost_usd is not None
            if account.outcome == "ok":
                assert number > ENDING[spoken]
                assert got == (whole, True, None)
            else:
                assert (account.outcome, account.call.attempts[-1].error_class) == ("stream_interrupted",) * 2
                assert got.error is not None
                assert not body.endswith(b"[DONE]\n\n")
                assert b"message_stop" not in body
                assert b"response.completed" not in body
                assert asked != "generate" or not got.is_ended or spoken == "generate"


@pytest.mark.parametrize("asked", ["responses", "messages", "generate"])
async def test_done_without_a_finish_reason_is_a_cut(asked: str) -> None:
    """At every event, amid arguments too: the provider has told no end, so the caller gets an error and none is invented."""
    done = b"data: [DONE]\n\n"
    for number in range(2, ENDING["chat"] + 1):
        bench = Ways(["chat"], [stream_of("chat", *STREAMS["chat"][:number], done)])
        _, body = await bench.serve(**bench.asking(asked))
        got = heard(asked, body)
        assert got.error is not None, number
        assert not got.is_ended, number
        assert bench.account.outcome == "stream_interrupted"


@pytest.mark.parametrize("asked", ["chat", "responses", "generate"])
async def test_a_message_that_stops_without_a_reason_is_a_cut(asked: str) -> None:
    """Its last delta tells counts alone."""
    stream = [*STREAMS["messages"]]
    stream[14] = stream[14].replace(b'"stop_reason":"tool_use"', b'"stop_reason":null')
    bench = Ways(["messages"], [stream_of("messages", *stream)])
    _, body = await bench.serve(**bench.asking(asked))
    got = heard(asked, body)
    assert got.error is not None
    assert not got.is_ended


@pytest.mark.parametrize("asked", ["chat", "responses", "messages", "generate"])
async def test_a_converse_stream_that_stops_without_a_reason_is_a_cut(asked: str) -> None:
    """As Bedrock never sends it."""
    stream = [*STREAMS["converse"]]
    stream[10] = frame("messageStop", {})
    bench = Ways(["converse"], [stream_of("converse", *stream)])
    _, body = await bench.serve(**bench.asking(asked))
    got = heard(asked, body)
    assert got.error is not None
    assert not got.is_ended


@pytest.mark.parametrize("ended", [1, 2])
async def test_a_stream_of_geminis_own_ends_with_all_candidates(ended: int) -> None:
    """That were asked for: one that has told why it ended does not end another one."""
    candidates = [f'{{"index":{index},"finishReason":"STOP"}}'.encode() for index in range(ended)]
    ends = [b'data: {"candidates":[%b]}\r\n\r\n' % one for one in candidates]
    bench = Ways(["generate"], [stream_of("generate", STREAMS["generate"][1], *ends)])
    _, body = await bench.serve(**bench.asking("generate", more={"generationConfig": {"candidateCount": 2}}))

    assert bench.account.outcome == ("ok" if ended == 2 else "stream_interrupted")
    assert (b"error" in body) is (ended < 2)


async def told(asked: str, spoken: str, *chunks: Any) -> str:
    bench = Ways([spoken], [stream_of(spoken, *chunks)])
    return heard(asked, (await bench.serve(**bench.asking(asked)))[1]).text
