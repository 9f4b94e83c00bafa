"""Streams of chat completions for callers of Messages, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import first_error, json_object
from gateway.core.openai.transcript import Transcript
from gateway.core.types import Usage
from gateway.dialects.anthropic import in_answer
from gateway.dialects.anthropic.in_gaps import MessagesOverChat
from gateway.dialects.base import ConvertedRequest, MalformedAnswer, ServerFacts
from tests.dialects.cases import as_bytes
from tests.dialects.grammar import check_messages
from tests.dialects.odd import odd_bodies, spoiled
from tests.rows import rows

Json = dict[str, Any]
PAIR = MessagesOverChat()
DONE = b"data: [DONE]\n\n"


def request(**asked: Any) -> ConvertedRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": True, **asked}
    return PAIR.request(body, ServerFacts(), 1.7e9, lambda: "abc")


def through(raw: bytes, size: int = 0, **asked: Any) -> bytes:
    reader, size = PAIR.reader(request(**asked)), size or len(raw) or 1
    return b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + reader.close(is_clean=True)


def message(events: list[Json]) -> Json:
    return check_messages(through(as_bytes("chat", events)))


def delta(finish: str | None = None, **fields: Any) -> Json:
    return {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def piece(index: int, arguments: str = "", **fields: Any) -> Json:
    """A piece of a call."""
    function = {"arguments": arguments, **({"name": fields.pop("name")} if "name" in fields else {})}
    return delta(tool_calls=[{"index": index, "function": function, **fields}])


def begun(index: int, arguments: str = "") -> Json:
    return piece(index, arguments, id=f"c{index}", name=f"f{index}")


def used(prompt: int, **rest: Any) -> Json:
    return {
        "id": "c",
        "model": "gpt",
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 4, **rest},
    }


def kinds(made: Json) -> list[str]:
    return [block["type"] for block in made["content"]]


STREAM = [
    delta(role="assistant", content=""),
    delta(reasoning_content="h"),
    delta(reasoning_content="m"),
    delta(content="so"),
    delta(content=" it is"),
    begun(0),
    piece(0, '{"x"'),
    begun(1),
    piece(0, ":1}"),
    delta("tool_calls"),
    used(10, prompt_tokens_details={"cached_tokens": 4}),
]


def test_thoughts_words_and_interleaved_calls_are_blocks_one_after_the_other() -> None:
    """BerriAI/litellm#32357, #25212, #13373; router-for-me/CLIProxyAPI#5581; maximhq/bifrost#3441."""
    made = message(STREAM)

    assert made["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "gw1."},
        {"type": "text", "text": "so it is"},
        {"type": "tool_use", "id": "c0", "name": "f0", "input": {"x": 1}},
        {"type": "tool_use", "id": "c1", "name": "f1", "input": {}},
    ]
    assert (made["id"], made["model"], made["stop_reason"]) == ("msg_abc", "gpt", "tool_use")
    assert made["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 4,
    }  # fmt: skip


def test_a_call_that_comes_in_one_piece_keeps_its_arguments() -> None:
    """BerriAI/litellm#25321: the piece that begins a block is not lost; and a stream may begin with a call."""
    both = delta("stop", tool_calls=[call(0, '{"x":1}'), call(1, '{"y":2}')])
    made = message([both])
    assert [block["input"] for block in made["content"]] == [{"x": 1}, {"y": 2}]
    assert made["stop_reason"] == "tool_use"


def call(index: int, arguments: str) -> Json:
    return {"index": index, "id": f"c{index}", "function": {"name": f"f{index}", "arguments": arguments}}


def test_a_call_goes_on_live_as_soon_as_the_one_before_is_whole() -> None:
    """Calls that come one after the other are not held back."""
    reader = PAIR.reader(request())
    for event in (begun(0), piece(0, '{"a":'), piece(0, "{}}")):
        assert reader.feed(b"data: %b\n\n" % orjson.dumps(event))
    assert b"content_block_start" in reader.feed(b"data: %b\n\n" % orjson.dumps(begun(1)))
    assert b'partial_json":"{\\"b' in reader.feed(b"data: %b\n\n" % orjson.dumps(piece(1, '{"b')))


def test_words_in_the_middle_of_a_call_follow_it() -> None:
    """No block is torn and no word lost."""
    made = message([begun(0, '{"x"'), delta(content="a"), delta(reasoning_content="h"), delta(content="b"), begun(1, "{}"),
                    piece(0, ":1}"), delta(content="c"), delta("tool_calls")])  # fmt: skip
    assert kinds(made) == ["tool_use", "text", "thinking", "text", "tool_use", "text"]
    assert made["content"][0]["input"] == {"x": 1}


def test_calls_without_numbers_or_ids_are_told_apart() -> None:
    """Some servers number none, or all alike; ids are made where there are none."""
    unnumbered = [
        delta(tool_calls=[{"id": f"c{n}", "function": {"name": "f", "arguments": f'{{"n":{n}}}'}}]) for n in range(2)
    ]
    alike = [piece(0, f'{{"n":{n}}}', id=f"c{n}", name="f") for n in range(2)]
    for events in (unnumbered, alike):
        made = message([*events, delta("tool_calls")])
        assert [(block["id"], block["input"]) for block in made["content"]] == [("c0", {"n": 0}), ("c1", {"n": 1})]
    assert message([piece(0, "{}", name="f"), delta("stop")])["content"][0]["id"] == "toolu_abc00"


def test_calls_of_one_id_get_ids_of_their_own() -> None:
    """Their results could not be told apart."""
    events = [piece(0, "{}", id="c", name="f"), piece(1, "{}", id="c", name="g"), delta("stop")]
    calls = [{"id": "c", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    whole = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]}
    for made in (message(events), PAIR.answer(request(), whole)):
        assert [block["id"] for block in made["content"]] == ["c", "toolu_abc01"]


def test_usage_that_is_not_told_is_estimated() -> None:
    """Messages have one in any case, and nothing would be counted otherwise."""
    assert message([delta(content="x" * 40), delta("stop")])["usage"]["output_tokens"] == 10
    whole = {"choices": [{"message": {"content": "x" * 40}, "finish_reason": "stop"}]}
    assert PAIR.answer(request(), whole)["usage"]["output_tokens"] == 10


def counted(raw: bytes) -> Usage | None:
    """What the gateway's own books take from a stream."""
    said = Transcript("messages")
    said.read(raw)
    return said.usage


def test_an_estimate_is_never_taken_for_the_providers_word() -> None:
    """Neither instead of its numbers, however small they are, nor where it told none."""
    long = [{"role": "user", "content": "x" * 8000}]
    cached = used(100) | {
        "usage": {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 90}}
    }
    events = [delta(content="x" * 40), delta("stop")]
    assert counted(through(as_bytes("chat", [*events, cached]), messages=long)) == Usage(100, 3, 90)
    untold = counted(through(as_bytes("chat", events), messages=long))
    assert untold is not None
    assert (untold.output, untold.estimated) == (10, True)
    begun_only = counted(through(as_bytes("chat", events[:1]), messages=long))
    assert begun_only is not None
    assert begun_only.estimated
    whole = {"choices": [{"message": {"content": "x" * 40}, "finish_reason": "stop"}]}
    assert PAIR.answer(request(), whole)["usage"]["estimated"] is True


def test_an_estimate_does_not_count_the_bytes_of_pictures() -> None:
    """Of messages and of results of tools, whatever stands in them; a text in a document has its words."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!" * 80_000}}
    words = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "so " * 4000}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [picture]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    counts = []
    for before, block in (([], picture), ([call], result), ([], words)):
        messages = [*before, {"role": "user", "content": [block]}]
        usage = counted(through(as_bytes("chat", [delta(content="x"), delta("stop")]), messages=messages))
        assert usage is not None
        counts.append(usage.input > 1000)
    assert counts == [False, False, True]


def test_words_of_white_space_alone_are_no_block() -> None:
    """Anthropic refuses such in the next turn (NousResearch/hermes-agent#55092); before words, they are kept."""
    assert kinds(message([delta(content="\n\n"), begun(0, "{}"), delta("tool_calls")])) == ["tool_use"]
    assert message([delta(content="\n"), delta(content="a"), delta("stop")])["content"][0]["text"] == "\na"
    assert message([delta(content=" "), delta("stop")])["content"] == []


@rows(
    "finish,expected",
    [("length", "max_tokens"), ("content_filter", "refusal"), ("stop", "tool_use"), ("tool_calls", "tool_use")],
)
def test_the_end_is_what_the_source_said(finish: str, expected: str) -> None:
    """With or without `[DONE]`; calls do not hide a cut (NousResearch/hermes-agent#43478)."""
    raw = as_bytes("chat", [delta(content="a"), begun(0, "{}"), delta(finish)])
    for stream in (raw, raw.removesuffix(DONE)):
        assert check_messages(through(stream))["stop_reason"] == expected


def test_a_call_that_was_cut_is_told_as_far_as_it_came() -> None:
    """As Anthropic does."""
    made = message([begun(0, '{"x":"lon'), delta("length")])
    assert (made["stop_reason"], made["content"][0]["input"]) == ("max_tokens", '{"x":"lon')


@rows("arguments", ["{", "[1]", '"x"', '{"x":1}}'])
def test_arguments_that_are_no_object_end_in_an_error(arguments: str) -> None:
    """They are not passed on as a call that may be done."""
    made = check_messages(through(as_bytes("chat", [begun(0, arguments), delta("tool_calls")])))
    assert made["error"] == {
        "type": "api_error",
        "message": "the provider called a tool with something else than a JSON object",
        "code": "malformed_response",
    }


def test_a_call_without_a_name_ends_in_an_error() -> None:
    """Nobody could answer it."""
    made = check_messages(through(as_bytes("chat", [delta(content="a"), piece(0, "{}", id="c"), delta("tool_calls")])))
    assert made["error"]["code"] == "malformed_response"


def test_the_whole_of_the_usage_comes_last() -> None:
    """envoyproxy/ai-gateway#2352: input too; at the start it is estimated, or what the server says by then."""
    raw = through(as_bytes("chat", [delta(role="assistant"), delta("stop"), used(1000)]))
    first = orjson.loads(raw.split(b"\n")[1].removeprefix(b"data: "))
    assert first["message"]["usage"]["input_tokens"] > 0
    assert check_messages(raw)["usage"]["input_tokens"] == 1000
    early = delta(role="assistant") | {"usage": {"prompt_tokens": 7, "completion_tokens": 0}}
    assert b'"input_tokens":7' in through(as_bytes("chat", [early, delta("stop")])).partition(b"\n\n")[0]


def test_comments_go_on_and_names_alone_do_not() -> None:
    """Clients pass over the first, and take the second for events."""
    raw = b": ping\n\nevent: x\n\n" + as_bytes("chat", STREAM)
    assert through(raw) == b": ping\n\n" + through(as_bytes("chat", STREAM))


def test_a_cut_stream_has_no_end() -> None:
    """Whoever follows it says so; nothing is invented."""
    raw = as_bytes("chat", STREAM[:-2]).removesuffix(DONE)
    for at in range(0, len(raw), 7):
        assert b"message_stop" not in through(raw[:at])
        assert b"message_delta" not in through(raw[:at])


@rows("at", range(len(STREAM)))
def test_an_error_ends_the_stream_wherever_it_comes(at: int) -> None:
    """In Anthropic's shape, and nothing behind it; before any output it is told in full, for whoever tries another target."""
    raw = {"message": "busy", "type": "server_error", "code": 429, "metadata": {"raw": "x"}}
    made = through(as_bytes("chat", [*STREAM[:at], {"error": raw}, *STREAM[at:]]))
    error = check_messages(made)["error"]

    if at < 2:
        assert first_error(made.split(b"\n\n")[-2]) == raw
    else:
        assert error == raw | {"type": "rate_limit_error"}


def test_a_finish_reason_that_means_a_failure_is_an_error() -> None:
    """As some servers tell it."""
    assert message([delta(content="a"), delta("error")])["type"] == "error"


def test_signatures_are_told_at_the_end_of_their_thoughts() -> None:
    """Claude's own as they are, others' in a mark, encrypted ones as blocks; pieces after one are a block of their own."""
    claude = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    made = message([
        delta(reasoning_content="h", reasoning_details=[claude | {"text": "h"}]),
        delta(reasoning_content="m", reasoning_details=[{"type": "reasoning.text", "text": "m", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.text", "signature": "S==", "index": 0}]),
        delta(reasoning_content="n", reasoning_details=[{"type": "reasoning.text", "text": "n", "index": 1}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "D==", "index": 2}]),
        delta(content="so"), delta("stop"),
    ])  # fmt: skip
    assert made["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "S=="},
        {"type": "thinking", "thinking": "n", "signature": "gw1."},
        {"type": "redacted_thinking", "data": "D=="},
        {"type": "text", "text": "so"},
    ]


def test_what_belongs_to_a_call_rides_before_it() -> None:
    """Gemini's signature of the thought behind it."""
    extra = {"google": {"thought_signature": "AB=="}}
    made = message([begun(0, "{}") | {}, piece(1, "{}", id="c1", name="f1", extra_content=extra), delta("stop")])
    assert kinds(made) == ["tool_use", "redacted_thinking", "tool_use"]


def test_calls_without_a_thought_are_marked_where_the_caller_has_a_budget_for_thinking() -> None:
    """Once, before the first; a thought is mark enough."""
    budget: Json = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    none: Json = {}
    calls = [delta(content="so"), begun(0, "{}"), begun(1, "{}"), delta("tool_calls")]
    thought = [delta(reasoning_content="h"), *calls]
    marked, plain, known = [
        kinds(check_messages(through(as_bytes("chat", events), **asked)))
        for events, asked in ((calls, budget), (calls, none), (thought, budget))
    ]
    assert marked == ["text", "redacted_thinking", "tool_use", "tool_use"]
    assert plain == ["text", "tool_use", "tool_use"]
    assert known == ["thinking", "text", "tool_use", "tool_use"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 61])
def test_any_cut_gives_the_same(size: int) -> None:
    """At every byte, line ends of two bytes too."""
    raw = as_bytes("chat", STREAM)
    assert through(raw, size) == through(raw)
    assert through(raw.replace(b"\n", b"\r\n"), size) == through(raw)


def test_every_word_leaves_in_the_chunk_that_it_came_in() -> None:
    """Nothing is held back but what would tear an open call."""
    reader = PAIR.reader(request())
    for event in STREAM[:7]:
        assert reader.feed(b"data: %b\n\n" % orjson.dumps(event))


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends a call and sends another does not fill the memory."""
    monkeypatch.setattr(in_answer, "MOST_HELD", 100)
    for more in (piece(1, "x" * 60), delta(content="x" * 60)):
        made = message([begun(0, "{"), begun(1, "{"), more, more])
        assert made["error"]["code"] == "malformed_response"


def test_an_event_too_long_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the memory, too."""
    monkeypatch.setattr("gateway.dialects.streams.MOST_EVENT_BYTES", 10)
    assert b"event: error" in PAIR.reader(request()).feed(b"data: " + b"x" * 30)


WORDS = st.lists(st.text('ab \n"\\é漢🙂{}[]:data', min_size=1, max_size=5), max_size=4)
CALLS = st.lists(st.lists(st.sampled_from(['{"x":', "1", "}", '"é漢🙂"', " "]), max_size=4), max_size=3)


def interleaved(calls: Sequence[Sequence[str]], draw: st.DataObject) -> list[Json]:
    """The pieces of calls that begin in their order, and go on in any."""
    rest = [[begun(index), *(piece(index, text) for text in texts)] for index, texts in enumerate(calls)]
    made: list[Json] = []
    count = 0
    while any(rest):
        ready = [index for index in range(min(count + 1, len(rest))) if rest[index]]
        index = ready[draw.draw(st.integers(0, len(ready) - 1))]
        count = max(count, index + 1)
        made.append(rest[index].pop(0))
    return made


@settings(max_examples=40, deadline=None)
@given(WORDS, WORDS, CALLS, st.sampled_from(["stop", "length", "tool_calls"]), st.booleans(), st.data())
def test_streamed_is_whole(
    thought: list[str], said: list[str], calls: list[list[str]], finish: str, has_usage: bool, data: st.DataObject
) -> None:
    """Any interleaving, any cut: the same message, or both malformed."""
    middle = [*(delta(content=text) for text in said), *interleaved(calls, data)]
    events = [delta(role="assistant", content=""), *(delta(reasoning_content=text) for text in thought), *middle]
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    events += [delta(finish), *([{"id": "c", "model": "gpt", "choices": [], "usage": usage}] if has_usage else [])]
    raw = as_bytes("chat", events)
    stream = through(raw, data.draw(st.integers(1, 80)))
    assert stream == through(raw)
    streamed = check_messages(stream)

    tool_calls = [call(index, "".join(texts)) for index, texts in enumerate(calls)]
    message = {"reasoning_content": "".join(thought), "content": "".join(said), "tool_calls": tool_calls}
    body: Json = {"model": "gpt", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    body |= {"usage": usage} if has_usage else {}
    if streamed["type"] == "error":
        assert streamed["error"]["code"] == "malformed_response"
        if finish != "length":  # where it was cut, a call that makes no sense goes from a whole answer
            with pytest.raises(MalformedAnswer):
                PAIR.answer(request(), body)
        return
    whole = PAIR.answer(request(), body)
    if finish == "length":  # a call that was cut goes from a whole answer, and is told as far as it came in a stream
        streamed["content"] = [block for block in streamed["content"] if not isinstance(block.get("input"), str)]
    if not has_usage:  # both are estimates, of what was told and of what it means
        assert abs(streamed["usage"].pop("output_tokens") - whole["usage"].pop("output_tokens")) < 20
    assert streamed == whole


DETAILS = [{"type": "reasoning.text", "text": "m", "signature": "S", "format": "x", "index": 0}]
RICH = [*STREAM, delta("stop", reasoning_content="h", reasoning_details=DETAILS, refusal="r"),
        piece(2, "{}", id="c", name="f", extra_content={"x": 1})]  # fmt: skip


@settings(max_examples=150)
@given(spoiled({"events": RICH}), st.integers(1, 50))
def test_any_event_may_be_spoiled(body: Json, size: int) -> None:
    """It ends in a message or in an error."""
    events = body.get("events")
    raw = as_bytes("chat", events if isinstance(events, list) else [])
    assert through(raw, size) == through(raw)


@given(
    st.lists(odd_bodies("choices", "delta", "usage", "error", "model", "id", "type"), max_size=4), st.integers(1, 50)
)
def test_any_nonsense_is_read(bodies: list[Json], size: int) -> None:
    """Without an exception, the same at any cut, and with one end at most."""
    events = [*bodies, *({"choices": [{"index": 0, "delta": body}]} for body in bodies)]
    raw = as_bytes("chat", events)
    made = through(raw, size)
    assert made == through(raw)
    assert made.count(b"message_start\n") <= 1
    assert made.count(b"event: message_stop") + made.count(b"event: error") <= 1


def test_whether_a_call_is_whole_is_found_out_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pieces of two calls come in turns."""
    texts: list[bytes] = []

    def hear(text: bytes) -> Any:
        if not text.startswith(b'{"id"'):  # those are the provider's events
            texts.append(text)
        return json_object(text)

    monkeypatch.setattr(in_answer, "json_object", hear)
    made = through(as_bytes("chat", [begun(0, '{"'), begun(1, "{"), *[piece(0, "}"), piece(1, "x")] * 500]))
    assert b"message_stop" not in made
    assert 8 < len(texts) < 20
