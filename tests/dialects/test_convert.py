"""One answer in several forms: all that it says or nothing, and never what it might have said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import event_json, split_events
from gateway.core.openai.transcript import Transcript
from gateway.dialects.conversion import as_stream, as_whole, ends_well, with_usage, without_usage
from gateway.dialects.conversion_chat import PIECE_LENGTH
from tests.dialects.answers import Json, frame_of, plainly
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
STREAMS = Path(__file__).parents[1] / "support" / "streams"
WHOLE = sorted(path.stem for path in STREAMS.glob("*.json"))
DONE = frame_of(b"[DONE]")
USAGE: Json = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def endpoint_of(name: str) -> str:
    return "completions" if name == "text" else name.partition("_")[0] if name.startswith("responses") else "chat"


def recorded(name: str) -> tuple[bytes, Any]:
    """A stream, and the whole answer it stands for, written down by hand."""
    return (STREAMS / f"{name}.sse").read_bytes(), orjson.loads((STREAMS / f"{name}.json").read_bytes())


def parsed(body: bytes | None) -> Any:
    return None if body is None else orjson.loads(body)


def chunk(delta: Any, finish: str | None = None, **around: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **around}


def said(*deltas: Any) -> Any:
    """The message that these deltas make; None when they make none for certain."""
    frames = b"".join(plainly(chunk(delta)) for delta in deltas) + plainly(chunk({}, "stop")) + DONE
    whole = parsed(as_whole("chat", frames))
    return None if whole is None else whole["choices"][0]["message"]


def around(*chunks: Json) -> Any:
    """The whole answer of chunks that say this around one choice."""
    frames = b"".join(plainly(chunk({}, "stop") | each) for each in chunks) + DONE
    return parsed(as_whole("chat", frames))


def chat(message: Json, **more: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return orjson.dumps({"id": "c", "object": "chat.completion", "choices": [choice], **more})


# -- recorded streams -----------------------------------------------------------------------------------------------------


@rows("name", WHOLE)
def test_a_recorded_stream_is_its_whole_answer(name: str) -> None:
    """As many providers write them."""
    frames, whole = recorded(name)

    assert parsed(as_whole(endpoint_of(name), frames)) == whole


@rows("name", WHOLE)
def test_a_whole_answer_survives_being_streamed(name: str) -> None:
    """There and back again."""
    _, whole = recorded(name)
    frames = as_stream(endpoint_of(name), orjson.dumps(whole), include_usage=True)
    assert frames is not None

    assert parsed(as_whole(endpoint_of(name), frames)) == whole


@rows("name", [name for name in WHOLE if not name.startswith("responses")])
def test_a_cut_stream_is_never_taken_for_a_whole_answer(name: str) -> None:
    """Behind each event and inside it: nothing, or all that its choices said."""
    frames, whole = recorded(name)
    ends = [0]
    for event in split_events(frames):
        ends += [ends[-1] + len(event) // 2, ends[-1] + len(event)]

    for end in ends[:-1]:
        cut = parsed(as_whole(endpoint_of(name), frames[:end]))
        assert cut is None or cut["choices"] == whole["choices"]


@rows("name", ["responses_items", "responses_bare"])
def test_a_cut_response_is_none(name: str) -> None:
    """Its last event is what makes it one."""
    frames, _ = recorded(name)
    *before, last = split_events(frames.removesuffix(b": ping\n\n"))

    assert as_whole("responses", b"".join(before)) is None
    assert as_whole("responses", b"".join(before) + last[: len(last) // 2]) is None


# -- what a stream says ---------------------------------------------------------------------------------------------------


@rows(
    ("deltas", "message"),
    [
        ([{"content": "a"}, {"content": "b"}], {"content": "ab"}),
        ([{"content": None}, {"content": "b"}], {"content": "b"}),
        ([{"content": "a"}, {"content": None}], {"content": "a"}),
        ([{"content": "a"}, {}], {"content": "a"}),
        ([{"role": "assistant"}, {"role": "assistant"}, {"role": ""}], {"role": "assistant", "content": None}),
        ([{"reasoning": "a"}, {"reasoning": "b"}], {"reasoning": "ab", "content": None}),
        ([{"content": [{"type": "text"}]}], {"content": [{"type": "text"}]}),
        ([{"x": {"a": 1}}, {"x": {"b": 2}}], {"x": {"a": 1, "b": 2}, "content": None}),
        ([{"x": {"a": 1}}, {"x": {"a": 1}}], {"x": {"a": 1}, "content": None}),
        ([{"x": "a"}, {"x": ""}, {"x": None}], {"x": "a", "content": None}),
        ([{"x": []}, {"x": [1]}, {"x": []}], {"x": [1], "content": None}),
        (
            [{"annotations": [{"a": 1}]}, {"annotations": [{"a": 2}]}],
            {"annotations": [{"a": 1}, {"a": 2}], "content": None},
        ),
        (
            [{"d": [{"index": 1, "text": "b"}, {"index": 1, "text": "c"}]}, {"d": [{"index": 0, "text": "a"}]}],
            {"d": [{"index": 0, "text": "a"}, {"index": 1, "text": "bc"}], "content": None},
        ),
    ],
)
def test_deltas_add_up(deltas: list[Json], message: Json) -> None:
    """Known texts grow, indexed lists grow entry by entry, all else comes once, null says nothing."""
    assert said(*deltas) == {"role": "assistant", **message}


@rows(
    "deltas",
    [
        [{"unknown": "a"}, {"unknown": "b"}],
        [{"unknown": "ha"}, {"unknown": "ha"}],
        [{"role": "assistant"}, {"role": "tool"}],
        [{"content": "a"}, {"content": ["b"]}],
        [{"content": ["a"]}, {"content": "b"}],
        [{"content": ["a"]}, {"content": ["b"]}],
        [{"content": "a"}, {"content": {"b": 1}}],
        [{"x": 1}, {"x": 2}],
        [{"x": {"a": 1}}, {"x": "a"}],
        [{"x": [{"index": 0}]}, {"x": [{"a": 1}]}],
        [{"x": [{"a": 1}]}, {"x": [{"index": 0}]}],
        [{"x": "a"}, {"x": [1]}],
        [{"annotations": [{"a": 1}]}, {"annotations": [{"a": 1}, {"a": 2}]}],
        [{"annotations": {"a": 1}}, {"annotations": [{"a": 1}]}],
        [{"audio": {"data": "AAA="}}, {"audio": {"data": "AAA="}}],
        [{"tool_calls": [{"id": "a", "function": {"name": "f"}}]}],
        [{"tool_calls": [{"index": -1, "id": "a"}]}],
        [{"tool_calls": {"index": 0}}],
        [{"tool_calls": [{"index": 0, "id": "a"}]}, {"tool_calls": [{"index": 0, "id": "b"}]}],
        [
            {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
            {"tool_calls": [{"index": 0, "function": {"name": "g"}}]},
        ],
        ["text"],
    ],
)
def test_what_can_be_put_together_in_two_ways_is_not(deltas: list[Any]) -> None:
    """Nobody gets a guess."""
    assert said(*deltas) is None


@rows(
    ("chunks", "fields"),
    [
        ([{"x": {"a": "1"}}, {"x": {"a": "1", "b": [2]}}], {"x": {"a": "1", "b": [2]}}),
        ([{"x": ["a"]}, {"x": ["a", "b"]}, {"x": None}], {"x": ["a", "b"]}),
        ([{"x": ["a"]}, {"x": []}], {"x": ["a"]}),
        ([{"x": ""}, {"x": "a"}, {"x": ""}], {"x": "a"}),
        ([{"x": 0}, {"x": 0}], {"x": 0}),
        ([{"x": {"a": 1}}, {"x": {}}], {"x": {"a": 1}}),
        (
            [{"id": "", "created": 0}, {"id": "first", "created": 5}, {"id": "later", "created": 6}],
            {"id": "first", "created": 5},
        ),
        ([{"service_tier": "auto"}, {"service_tier": "default"}, {"service_tier": None}], {"service_tier": "default"}),
        ([{"obfuscation": "a", "p": "abc"}, {"obfuscation": "b", "p": "a"}], {}),
        (
            [{"usage": {"total_tokens": 1}}, {"usage": {"total_tokens": 2}}, {"usage": None}],
            {"usage": {"total_tokens": 2}},
        ),
        (
            [{"x_groq": {"id": "r"}}, {"x_groq": {"usage": USAGE}}],
            {"x_groq": {"id": "r", "usage": USAGE}, "usage": USAGE},
        ),
    ],
)
def test_what_stands_around_deltas_is_said_once(chunks: list[Json], fields: Json) -> None:
    """However often the stream says it."""
    whole = around(*chunks)
    expected: Json = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": whole["choices"]}

    assert whole == expected | fields


@rows(
    "chunks",
    [
        [{"x": 1}, {"x": 2}],
        [{"x": "a"}, {"x": "b"}],
        [{"x": ["a"]}, {"x": ["b"]}],
        [{"x": []}, {"x": 1}],
        [{"x": 1}, {"x": {"a": 1}}],
    ],
)
def test_what_is_said_differently_is_not_settled(chunks: list[Json]) -> None:
    """One of them would be lost."""
    assert around(*chunks) is None


END = plainly(chunk({}, "stop"))


@rows(
    "frames",
    [
        b"",
        DONE,
        b": comment\n\n",
        plainly(chunk({"content": "a"})) + DONE,
        END + b"data: {broken\n\n",
        END + b"data: [1]\n\n",
        END + b"<html>\n\n",
        END + plainly({"type": "ping"}) + DONE,
        END + plainly({"error": {"message": "m"}}) + DONE,
        END + plainly(chunk({}) | {"error": {"message": "m"}}) + DONE,
        plainly(chunk({}, "error")) + DONE,
        plainly(chunk({}, "stop")) + plainly(chunk({}, "length")) + DONE,
        plainly({"choices": [{"index": "0", "delta": {}, "finish_reason": "stop"}]}) + DONE,
        plainly(
            {"choices": [{"index": 0, "message": {"content": "a"}, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        )
        + DONE,
        plainly({"choices": [{"index": 0, "error": {"code": 1}, "delta": {}, "finish_reason": "stop"}]}) + DONE,
        plainly({"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}) + DONE,
        plainly({"choices": ["a"]}) + END + DONE,
        plainly({"choices": [{"index": 1, "delta": {"content": "a"}}]}) + END + DONE,
        plainly(chunk({"content": 5})) + plainly(chunk({"content": "a"}, "stop")),
        frame_of(b'{"choices":[{"delta":' + b'{"x":' * 900 + b"1" + b"}" * 900 + b',"finish_reason":"stop"}]}') + DONE,
    ],
)
def test_what_is_no_complete_chat_is_not_made_one(frames: bytes) -> None:
    """No end, no JSON, an error, or nothing that is known."""
    assert as_whole("chat", frames) is None


def test_a_stream_without_done_has_ended_with_the_reasons_of_its_choices() -> None:
    """Some providers leave it out; and nothing behind it counts."""
    assert parsed(as_whole("chat", END)) == parsed(as_whole("chat", END + DONE + plainly(chunk({"content": "more"}))))


def test_usage_taken_out_of_a_stream_comes_back_in_the_whole_answer() -> None:
    """Its client had not asked for it; this one gets it in any case."""
    event = plainly({"id": "c", "choices": [], "usage": USAGE})

    assert parsed(as_whole("chat", END + DONE, event))["usage"] == USAGE
    assert as_whole("chat", END + event + DONE) == as_whole("chat", END + DONE, event)


# -- what a whole answer says ---------------------------------------------------------------------------------------------


@rows(
    "body",
    [
        b"",
        b"[]",
        b'{"error":{"message":"m"}}',
        b'{"choices":[]}',
        b'{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":"a"}}]}',
        b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":0,"message":{},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"error"}]}',
        chat({"content": "a"}, p="a field that streams fill with padding"),
        chat({"content": "a"}, error={"message": "m"}),
        chat({"content": "a", "tool_calls": ["b"]}),
        chat({"content": "a", "details": [{"index": 0, "text": "b"}, {"index": 0, "text": "c"}]}),
        b'{"x":' * 300 + b"1" + b"}" * 300,
        chat({"content": "a"})[:-1] + b',"x":' + b'{"x":' * 300 + b"1" + b"}" * 301,
    ],
)
def test_what_no_stream_can_say_is_not_streamed(body: bytes) -> None:
    """Errors, choices that have not ended, what would be put together in another way."""
    assert as_stream("chat", body, include_usage=True) is None


def test_a_chat_is_streamed_as_openai_does_it() -> None:
    """Role first, texts, tool calls with an index, the reason to end, the usage in an event of its own."""
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = chat({"role": "assistant", "content": "Hi", "tool_calls": [call]}, usage=USAGE, citations=["a"])
    frames = as_stream("chat", body, include_usage=True)
    assert frames is not None
    *chunks, last = [event_json(event) for event in split_events(frames)]
    deltas = [each["choices"][0]["delta"] for each in chunks if each and each["choices"]]

    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hi"},
        {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [each and each["usage"] for each in chunks] == [None, None, None, None, None, USAGE]
    assert [each and "citations" in each for each in chunks] == [True, False, False, False, False, False]
    assert last is None
    assert frames.endswith(DONE)


def test_choices_are_streamed_in_their_order() -> None:
    """However the whole answer has them: the SDK wants the first one first."""
    choices = [{"index": index, "message": {"content": str(index)}, "finish_reason": "stop"} for index in (1, 0)]
    frames = as_stream("chat", orjson.dumps({"choices": choices}), include_usage=False)
    assert frames is not None
    events = [event_json(event) for event in split_events(frames)]

    assert [each["choices"][0]["index"] for each in events if each] == [0, 0, 0, 1, 1, 1]


def test_no_line_of_a_stream_is_too_long_to_be_read() -> None:
    """Long texts come in pieces, whatever their bytes."""
    body = chat({"role": "assistant", "content": "\x00🎈" * 50_000})
    frames = as_stream("chat", body, include_usage=False)
    assert frames is not None

    assert max(map(len, frames.split(b"\n"))) < 7 * PIECE_LENGTH


def test_a_response_is_streamed_with_numbers_that_count_up() -> None:
    """From zero, and each event is named as it says itself."""
    _, whole = recorded("responses_items")
    frames = as_stream("responses", orjson.dumps(whole), include_usage=False)
    assert frames is not None
    events = [event_json(event) or {} for event in split_events(frames)]
    names = [line.removeprefix(b"event: ").decode() for line in frames.split(b"\n") if line.startswith(b"event: ")]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events] == names


@rows("name", ["responses", "responses_items"])
def test_a_response_is_streamed_in_the_events_that_were_recorded(name: str) -> None:
    """In the same order, but for the number of pieces."""
    frames = (STREAMS / f"{name}.sse").read_bytes()
    again = as_stream("responses", as_whole("responses", frames) or b"", include_usage=False)
    assert again is not None

    assert steps(again) == steps(frames)


def steps(frames: bytes) -> list[str]:
    """The events of a stream, pieces of one text as one."""
    names = [str(event["type"]) for event in map(event_json, split_events(frames)) if event is not None]
    return [name for at, name in enumerate(names) if not (name.endswith(".delta") and names[at - 1] == name)]


def test_a_response_that_begins_does_not_tell_its_end() -> None:
    """Neither the response, nor its items, nor their parts; and the tokens of a text are told once."""
    text = "a" * (PIECE_LENGTH + 1)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [{"token": "a"}]}
    item = {"type": "message", "id": "i", "status": "completed", "content": [part]}
    response = {"id": "r", "status": "completed", "completed_at": 5, "output": [item], "usage": USAGE}
    frames = as_stream("responses", orjson.dumps(response), include_usage=False)
    assert frames is not None
    created, _, added, opened, *deltas = [event_json(event) or {} for event in split_events(frames)]

    begun: Json = {"status": "in_progress", "completed_at": None, "output": [], "usage": None}
    assert created["response"] == response | begun
    assert added["item"] == item | {"status": "in_progress", "content": []}
    assert opened["part"] == part | {"text": "", "logprobs": []}
    assert [(len(each["delta"]), each["logprobs"]) for each in deltas[:2]] == [
        (PIECE_LENGTH, [{"token": "a"}]),
        (1, []),
    ]


def test_a_providers_own_tools_tell_their_progress() -> None:
    """Only when they have come to their end; what failed is not said to have succeeded."""
    item = {"type": "code_interpreter_call", "id": "i", "status": "completed", "code": "1"}
    failed = {"type": "web_search_call", "id": "w", "status": "failed"}
    body = orjson.dumps({"id": "r", "status": "completed", "output": [item, failed]})
    frames = as_stream("responses", body, include_usage=False)
    assert frames is not None

    kind = "response.code_interpreter_call"
    assert [name for name in steps(frames) if "call" in name] == [
        f"{kind}.in_progress",
        f"{kind}_code.delta",
        f"{kind}_code.done",
        f"{kind}.interpreting",
        f"{kind}.completed",
    ]


def test_an_item_of_an_unknown_kind_is_streamed_as_it_is() -> None:
    """It begins and ends, with all that it has."""
    item = {"type": "new", "id": "n", "status": "completed", "payload": {"text": "a"}}
    body = orjson.dumps({"id": "r", "status": "completed", "output": [item]})
    frames = as_stream("responses", body, include_usage=False)
    assert frames is not None
    events = [event_json(event) or {} for event in split_events(frames)]

    assert [event.get("item") for event in events[2:4]] == [item | {"status": "in_progress"}, item]


def test_an_incomplete_response_stays_incomplete() -> None:
    """It ends with an event of its own."""
    body = orjson.dumps(
        {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    )
    frames = as_stream("responses", body, include_usage=False)
    assert frames is not None

    assert steps(frames) == ["response.created", "response.in_progress", "response.incomplete"]
    assert as_whole("responses", frames) == body


@rows(
    "body",
    [
        b"{}",
        b'{"status":"failed","output":[]}',
        b'{"status":"in_progress","output":[]}',
        b'{"status":"queued","output":[]}',
        b'{"status":"completed","output":[],"error":{"code":"x"}}',
        b'{"status":"completed","output":[1]}',
        b'{"status":"completed","output":[{"id":"a"}]}',
        b'{"status":"completed","output":[{"type":"message","content":"a"}]}',
        b'{"status":"completed"}',
    ],
)
def test_a_response_that_has_not_ended_well_is_not_streamed(body: bytes) -> None:
    """Nor one that cannot be read."""
    assert as_stream("responses", body, include_usage=False) is None


@rows(
    "last",
    [
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}, "output": []}},
        {"type": "response.completed", "response": {"status": "in_progress", "output": []}},
        {"type": "response.completed", "response": {"status": "completed", "output": "a"}},
        {"type": "response.completed", "response": "response.completed"},
        {"type": "response.in_progress", "response": {"metadata": {"a": "response.completed"}}},
    ],
)
def test_a_stream_that_does_not_end_with_a_response_is_none(last: Json) -> None:
    """What looks like one in a text or in metadata does not count."""
    assert as_whole("responses", plainly({"type": "response.created", "response": {}}) + plainly(last)) is None


def test_an_item_that_has_not_ended_is_not_left_out() -> None:
    """Where the last event tells no items, all that have begun must be there."""
    frames, _ = recorded("responses_bare")
    events = list(split_events(frames))
    cut = [event for event in events if b'"response.output_item.done"' not in event or b'"output_index":1' not in event]

    assert len(cut) == len(events) - 1
    assert as_whole("responses", b"".join(cut)) is None


# -- anything -------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "index",
        "delta",
        "text",
        "message",
        "content",
        "role",
        "tool_calls",
        "function",
        "logprobs",
        "finish_reason",
        "id",
        "usage",
        "data",
        "x",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "stop", "null", "="]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
CHOICE_LISTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | VALUES, max_size=2)


@BOUNDED
@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=2) | CHOICE_LISTS.map(lambda some: {"choices": some}), max_size=3),
    st.sampled_from(["chat", "completions", "responses", "messages"]),
)
def test_anything_is_converted_or_given_up(chunks: list[Json], endpoint: str) -> None:
    """Providers write what they like; whatever comes of it can be read."""
    frames = b"".join(map(plainly, chunks)) + DONE

    parsed(as_whole(endpoint, frames))
    for body in [
        frames,
        *map(orjson.dumps, chunks),
        *(orjson.dumps(each | {"status": "completed", "output": each.get("choices")}) for each in chunks),
    ]:
        frames = as_stream(endpoint, body, include_usage=True) or b""
        assert not frames or as_whole(endpoint, frames) is not None
        ends_well(endpoint, True, body)
        ends_well(endpoint, False, body)


# -- usage in a stream that stays one -------------------------------------------------------------------------------------

TOLD = b"".join(
    [
        plainly(chunk({"content": "a"}) | {"usage": None}),
        b": comment\n\n",
        plainly(chunk({"content": ',"usage":null'}, "stop") | {"usage": None}),
        plainly({"id": "c", "choices": [], "usage": USAGE}),
        DONE,
    ]
)
SILENT = Transcript("chat", strips_usage=True).read(TOLD)
EVENT = plainly({"id": "c", "choices": [], "usage": USAGE})


def test_usage_is_taken_out_as_the_relay_does() -> None:
    """Its event, and that it is not known yet; nothing else, not even from a text."""
    assert without_usage(TOLD) == SILENT
    assert b'"usage":null' not in SILENT.replace(rb"\"usage\":null", b"")
    assert rb"\"usage\":null" in SILENT


def test_usage_is_put_back_where_it_was() -> None:
    """To the byte: at the end of each event, and before `[DONE]`."""
    assert with_usage(SILENT, EVENT) == TOLD
    assert with_usage(SILENT.replace(b"\n", b"\r\n"), EVENT.replace(b"\n", b"\r\n")) == TOLD.replace(b"\n", b"\r\n")


def test_usage_goes_last_where_nothing_ends_a_stream() -> None:
    """Some providers send no `[DONE]`."""
    assert with_usage(SILENT.removesuffix(DONE), EVENT) == TOLD.removesuffix(DONE)


def test_usage_stands_before_padding_where_the_provider_pads() -> None:
    """As its own event shows."""
    told = b"".join(
        plainly(event | {"obfuscation": "x"})
        for event in [chunk({}, "stop") | {"usage": None}, {"choices": [], "usage": USAGE}]
    )
    event = plainly({"choices": [], "usage": USAGE, "obfuscation": "x"})

    assert with_usage(without_usage(told), event) == told


@rows(
    "frames",
    [
        plainly(chunk({"content": "a"}, usage=USAGE)),
        b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": null}\n\n',
        b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
        b'data: {"choices":[]}\nid: {}\n\n',
        b": comment\n\n",
        plainly({"type": "ping"}),
    ],
)
def test_only_what_the_relay_would_have_stripped_gets_it_back(frames: bytes) -> None:
    """Events that tell their usage, that have blanks between their fields, that are no chunks: they stay as they are."""
    assert with_usage(frames, EVENT) == frames + EVENT
    assert without_usage(frames) == frames


def test_a_stream_whose_provider_told_no_usage_stays_as_it_is() -> None:
    """There is nothing to put back."""
    assert with_usage(SILENT, b"") == SILENT


@rows("name", [name for name in WHOLE if not name.startswith("responses")])
def test_recorded_streams_lose_their_usage_as_on_the_wire(name: str) -> None:
    """Whatever their framing."""
    frames, _ = recorded(name)

    assert without_usage(frames) == Transcript("chat", strips_usage=True).read(frames)


# -- what deserves to be kept ---------------------------------------------------------------------------------------------


def message(*blocks: Json, reason: str = "end_turn") -> bytes:
    return orjson.dumps({"type": "message", "content": [*blocks], "stop_reason": reason, "usage": {}})


def streamed(endpoint: str, whole: bytes) -> bytes:
    return as_stream(endpoint, whole, include_usage=False) or b""


def completed(status: str, *output: Json, **more: Any) -> bytes:
    return orjson.dumps({"id": "r", "object": "response", "status": status, "output": [*output], **more})


def item(*texts: str) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": parts}


def generated(*parts: Json, reason: str = "STOP") -> bytes:
    return orjson.dumps({"candidates": [{"content": {"parts": [*parts], "role": "model"}, "finishReason": reason}]})


TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
MESSAGE_STREAM = streamed("messages", message(TOOL_USE, reason="tool_use"))
TEXT = {"type": "text", "text": "a"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
REASONING = {"id": "x", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
CALL = {"id": "c", "type": "function_call", "name": "f", "arguments": "{}", "call_id": "c", "status": "completed"}
LEFT_OUT = streamed("responses", completed("completed", item("a"))).replace(b'"output":[{', b'"output":[],"rest":[{')
"""A stream whose last event lacks the output: as some providers end it."""
WORD = plainly(chunk({"content": "a"}))


@rows(
    ("endpoint", "is_stream", "body", "does"),
    [
        ("chat", False, chat({"content": "a"}), True),
        ("chat", False, b'{"choices":[]}', False),
        ("chat", False, b'{"choices":[{"finish_reason":"error"}]}', False),
        ("chat", False, b'{"error":{"code":502},"choices":[{"finish_reason":"stop"}]}', False),
        ("chat", False, b"<html>", False),
        ("chat", True, WORD + END + DONE, True),
        ("chat", True, (WORD + END).replace(b'":', b'": ') + DONE, True),
        ("chat", True, END + DONE, False),
        ("chat", False, b'{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}', False),
        ("chat", True, DONE, False),
        ("chat", True, plainly(chunk({"content": '"finish_reason":"stop"'})) + DONE, False),
        ("completions", False, b'{"choices":[{"text":"a","finish_reason":"stop"}]}', True),
        ("completions", False, b'{"choices":[{"text":"a","finish_reason":null}]}', False),
        ("chat", False, b'{"choices":[{"message":{"content":"a"},"finish_reason":null}]}', False),
        ("chat", False, chat({"content": "", "tool_calls": [{"id": "t"}]}), True),
        ("chat", False, chat({"content": None, "refusal": "no"}), True),
        ("chat", False, chat({"content": "", "reasoning_content": "hm", "annotations": []}), False),
        ("chat", False, chat({"content": [{"type": "thinking", "thinking": [TEXT]}, TEXT | {"text": ""}]}), False),
        ("chat", False, chat({"content": [{"type": "thinking", "thinking": [TEXT]}, TEXT]}), True),
        ("chat", True, plainly(chunk({"content": [{"type": "thinking", "thinking": [TEXT]}]})) + END + DONE, False),
        ("chat", False, chat({"content": "", "reasoning_content": "hm", "thinking_blocks": [THINKING]}), False),
        ("chat", True, plainly(chunk({"reasoning_content": "hm"})) + END + DONE, False),
        ("completions", False, b'{"choices":[{"text":"","finish_reason":"stop"}]}', False),
        ("responses", False, completed("completed", item("a"), error=None), True),
        ("responses", False, completed("completed"), False),
        ("responses", False, completed("completed", item("")), False),
        ("responses", False, completed("completed", REASONING, item()), False),
        ("responses", False, completed("completed", REASONING, CALL), True),
        ("responses", False, completed("incomplete"), False),
        ("responses", False, completed("failed"), False),
        ("responses", False, completed("queued"), False),
        ("responses", False, completed("in_progress"), False),
        ("responses", False, completed("completed", item("a"), error={"code": "x"}), False),
        ("responses", True, streamed("responses", completed("completed", item("a"))), True),
        ("responses", True, LEFT_OUT, True),
        ("responses", True, streamed("responses", completed("completed", CALL)), True),
        ("responses", True, streamed("responses", completed("completed", item(""))), False),
        ("responses", True, streamed("responses", completed("completed", REASONING)), False),
        ("responses", True, streamed("responses", completed("completed")), False),
        ("responses", True, streamed("responses", completed("incomplete", item("a"))), False),
        ("responses", True, b"", False),
        ("messages", False, message({"type": "text", "text": "a"}), True),
        ("messages", False, message(TOOL_USE, reason="tool_use"), True),
        ("messages", False, message(), False),
        ("messages", False, message(THINKING, {"type": "text", "text": ""}), False),
        ("messages", False, message(reason="refusal"), True),
        ("messages", True, streamed("messages", message({"type": "text", "text": "a"})), True),
        ("messages", True, streamed("messages", message(THINKING)), False),
        ("messages", True, streamed("messages", message()), False),
        ("messages", True, streamed("messages", message(reason="refusal")), True),
        ("messages", False, b'{"type":"message","content":[],"stop_reason":null}', False),
        ("messages", False, b'{"type":"error","error":{}}', False),
        ("messages", True, MESSAGE_STREAM, True),
        ("messages", True, MESSAGE_STREAM.rpartition(b"event:")[0], False),
        ("messages", True, b"", False),
        ("generate", False, generated({"text": "a"}), True),
        ("generate", False, generated({"functionCall": {"name": "f", "args": {}}}), True),
        ("generate", False, generated({"text": "hm", "thought": True}, {"text": "", "thoughtSignature": "s"}), False),
        ("generate", False, generated(), False),
        ("generate", False, b'{"candidates":[{"finishReason": "STOP"}]}', False),
        (
            "generate",
            False,
            b'{"candidates":[{"content":{"parts":[{"text":"\\"finishReason\\":\\"STOP\\""}]}}]}',
            False,
        ),
        ("generate", False, b'{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}]}', False),
        ("generate", False, b'{"promptFeedback":{"blockReason":"SAFETY"}}', True),
        ("generate", True, b"data: %b\n\n" % generated({"text": "a"}, reason="MAX_TOKENS"), True),
        ("generate", True, b'data: {"candidates":[{"finishReason":"MAX_TOKENS"}]}\n\n', False),
        ("generate", True, b'data: {"candidates":[{"finishReason":"OTHER"}]}\n\n', False),
        ("generate", True, b'data: {"candidates":[{}]}\n\n', False),
        ("embeddings", False, b'{"data":[{"embedding":[0.5]}]}', True),
        ("embeddings", False, b'{"data": []}', False),
        ("embeddings", False, b'{"error":{"message":"m"}}', False),
        ("embeddings", False, b'{"error":null,"data":[{"embedding":[0.5]}]}', True),
        ("speech", True, b"\x00\xff", True),
    ],
)
def test_an_answer_ends_well_when_it_says_so(endpoint: str, is_stream: bool, body: bytes, does: bool) -> None:
    """A completed response, a chat with choices that have ended; never an error in disguise, nor one that says nothing."""
    assert ends_well(endpoint, is_stream, body) is does
