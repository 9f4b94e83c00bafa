"""Any answer is the same streamed and whole, in both directions, however its bytes arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.base import ConvertedRequest, Reader, ServerFacts
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from tests.dialects.cases import as_bytes, events_of
from tests.dialects.grammar import check_chat, check_responses

TO_RESPONSES, TO_CHAT = ResponsesOverChat(), ChatOverResponses()
WORDS = st.lists(st.text('ab \n"\\é漢🙂{}[]:data', min_size=1, max_size=5), max_size=5)
CALLS = st.lists(st.lists(st.sampled_from(['{"x":', "1", "}", '"é漢🙂"']), max_size=4), max_size=3)
Piece = dict[str, Any]


def responses_request() -> ConvertedRequest:
    return TO_RESPONSES.request({"model": "m", "input": "x", "stream": True}, ServerFacts(), 1.7e9, lambda: "abc")


def chat_request() -> ConvertedRequest:
    asked = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    return TO_CHAT.request(asked, ServerFacts(), 1.7e9, lambda: "abc")


def piece(delta: Piece, finish: str | None = None, logprobs: Any = None) -> Piece:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "c", "created": 5, "model": "m", "choices": [choice]}


def interleaved(calls: Sequence[Sequence[str]], draw: Callable[[int], int]) -> list[Piece]:
    """The pieces of calls that begin in their order, and go on in any."""
    rest = [
        [
            {"index": index, "id": f"c{index}", "type": "function", "function": {"name": f"f{index}", "arguments": ""}},
            *({"index": index, "function": {"arguments": text}} for text in texts),
        ]
        for index, texts in enumerate(calls)
    ]
    made, begun = [], 0
    while any(rest):
        open_ones = [index for index in range(min(begun + 1, len(rest))) if rest[index]]
        index = open_ones[draw(len(open_ones) - 1)]
        begun = max(begun, index + 1)
        made.append(rest[index].pop(0))
    return made


def split(make: Callable[[], Reader], raw: bytes, size: int) -> bytes:
    reader = make()
    return b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + reader.close(is_clean=True)


@settings(max_examples=25, deadline=None)
@given(WORDS, WORDS, WORDS, CALLS, st.booleans(), st.sampled_from(["stop", "length", "content_filter"]), st.data())
def test_streamed_is_whole(
    thought: list[str],
    said: list[str],
    refused: list[str],
    calls: list[list[str]],
    likely: bool,
    finish: str,
    data: Any,
) -> None:
    """Reasoning, words with probabilities, refusals, interleaved calls, any end, usage or none."""

    def draw(most: int) -> int:
        return int(data.draw(st.integers(0, most)))

    finish = "tool_calls" if calls and finish == "stop" else finish
    probable: list[Piece] = [
        {"token": text, "bytes": None, "logprob": -1.0, "top_logprobs": []} for text in said if likely
    ]
    events = [piece({"role": "assistant", "content": ""}), *(piece({"reasoning_content": text}) for text in thought)]
    events += [
        piece({"content": text}, None, {"content": [probable[number]]} if likely else None)
        for number, text in enumerate(said)
    ]
    events += [piece({"refusal": text}) for text in refused]
    events += [piece({"tool_calls": [one]}) for one in interleaved(calls, draw)]
    events.append(piece({}, finish))
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7} if data.draw(st.booleans()) else None
    events += [{"id": "c", "model": "m", "choices": [], "usage": usage}] if usage else []
    message: Piece = {"content": "".join(said) or None, "refusal": "".join(refused) or None}
    message |= {"reasoning_content": "".join(thought)} if thought else {}
    message["tool_calls"] = [
        {"id": f"c{index}", "type": "function", "function": {"name": f"f{index}", "arguments": "".join(texts)}}
        for index, texts in enumerate(calls)
    ]
    choice = {"index": 0, "message": message, "logprobs": {"content": probable}, "finish_reason": finish}

    raw = as_bytes("chat", events)
    stream = split(lambda: TO_RESPONSES.reader(responses_request()), raw, draw(60) + 1)
    response = check_responses(events_of(stream))
    recorded = {"id": "c", "created": 5, "model": "m", "choices": [choice], "usage": usage}
    assert response == TO_RESPONSES.answer(responses_request(), orjson.loads(orjson.dumps(recorded)))

    back = split(lambda: TO_CHAT.reader(chat_request()), stream, draw(60) + 1)
    told, whole = check_chat(events_of(back), back), TO_CHAT.answer(chat_request(), response)
    answered = whole["choices"][0]["message"]
    assert (told["content"], told["refusal"]) == (answered["content"] or "", answered["refusal"] or "")
    assert told["reasoning_content"] == answered.get("reasoning_content", "") == "".join(thought)
    assert told["tool_calls"] == [one | {"index": at} for at, one in enumerate(answered.get("tool_calls", ()))]
    assert (told["finish_reason"], told["usage"]) == (whole["choices"][0]["finish_reason"], whole.get("usage"))
    assert [
        one
        for event in events_of(back)
        for choice in event["choices"]
        for one in (choice.get("logprobs") or {}).get("content", ())
    ] == (whole["choices"][0]["logprobs"] or {}).get("content", [])
