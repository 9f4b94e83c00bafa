"""Tokens, read from the end of an answer: the right numbers or none, never an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.usage import (
    ABSURD,
    CONTRADICTS,
    FIELDS,
    LONGEST_ANSWER,
    MOST_TOKENS,
    estimate_answer,
    estimate_tokens,
    filled,
    find_usage,
    most_output,
    plausible,
    read_usage,
)
from gateway.core.retry import Attempt, usage_in_all
from gateway.core.types import Usage, UsageParts
from gateway.dialects.base import chat_usage, generated_usage, message_usage, response_usage
from tests.core.openai.usage_examples import EXAMPLES, Example
from tests.rows import rows
from tests.support.targets import target_named

BOUNDED = settings(deadline=None, derandomize=True)
ODD_NUMBERS = st.one_of(
    st.integers(-9, 1 << 20), st.sampled_from([None, "7", True, 2**53, 2**70, 7.0, 7.5, float("nan"), float("inf")])
)
ODD_DETAILS = st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "audio_tokens", "image_tokens", "reasoning_tokens", "1h"]),
    ODD_NUMBERS,
)
ODD_KINDS = st.lists(
    st.fixed_dictionaries({"modality": st.sampled_from(["AUDIO", "IMAGE", None]), "tokenCount": ODD_NUMBERS})
)
ODD_STEPS = st.lists(
    st.fixed_dictionaries({"type": st.just("compaction"), "input_tokens": ODD_NUMBERS, "output_tokens": ODD_NUMBERS})
)
ODD_VALUES = st.one_of(ODD_NUMBERS, ODD_DETAILS, ODD_KINDS, ODD_STEPS)

CHAT = {
    "prompt_tokens": 1200,
    "completion_tokens": 345,
    "total_tokens": 1545,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 64},
}
RESPONSES = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 87,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 123,
}
READ = Usage(1200, 345, 1024, parts=UsageParts(reasoning=64))
LIE = '"usage":{"prompt_tokens":1,"completion_tokens":1}'

TAILS: dict[str, tuple[bytes, Usage]] = {
    "chat": (
        orjson.dumps({"id": "c", "choices": [{"message": {"content": LIE}}], "usage": CHAT, "system_fingerprint": "f"}),
        READ,
    ),
    "pretty": (
        orjson.dumps({"choices": [{"message": {"content": LIE}}], "usage": CHAT}, option=orjson.OPT_INDENT_2),
        READ,
    ),
    "stream": (
        b'data: {"choices":[{"delta":{"content":"usage"}}],"usage":null}\n\n'
        b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % orjson.dumps(CHAT),
        READ,
    ),
    "responses": (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"output":[%s],"usage":%s,"user":null}}'
        b"\n\n" % (orjson.dumps(LIE), orjson.dumps(RESPONSES)),
        Usage(36, 87, 8),
    ),
    "embeddings": (b'{"data":[],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}\n', Usage(8, 0)),
}


@rows(("tail", "usage"), TAILS.values(), ids=TAILS.keys())
def test_usage_at_the_end_of_an_answer_is_found(tail: bytes, usage: Usage) -> None:
    """Chat, Responses and embeddings, whole or streamed; text that looks like it is passed by."""
    assert find_usage(tail) == usage


@rows(("tail", "usage"), TAILS.values(), ids=TAILS.keys())
def test_a_cut_tail_gives_the_right_usage_or_none(tail: bytes, usage: Usage) -> None:
    """Cut at every byte, from the front and from the end."""
    for at in range(len(tail)):
        assert find_usage(tail[at:]) in (usage, None)
        assert find_usage(tail[:at]) in (usage, None)


@BOUNDED
@given(st.lists(st.sampled_from([b'"usage"', b":", b"{", b"}", b'"prompt_tokens":', b"7", b",", b"null", b"\\", b" "])))
def test_no_bytes_make_it_fail(pieces: list[bytes]) -> None:
    """Broken JSON means that there is no usage to read."""
    usage = find_usage(b"".join(pieces))

    assert usage in (None, Usage(7, 0), Usage(77, 0), Usage(777, 0))


def test_an_answer_full_of_the_word_is_searched_only_so_often() -> None:
    """A long log of tokens that read "usage" ends the search, not the process."""
    assert find_usage(b'{"usage":{"prompt_tokens":7},"tokens":[' + b'"usage",' * 100_000 + b'"x"]}') is None


@rows(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5}, Usage(5, 0)),
        ({"output_tokens": 5}, Usage(0, 5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": []}, Usage(5, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(5, 0, 5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -9}}, Usage(5, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": None}, Usage(5, 0)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}},
            Usage(9, 0, 4, cache_written=3),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 8}},
            Usage(9, 0, 4, cache_written=5),
        ),
        (
            {"input_tokens": 9, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 300, "output_tokens": 2},
            Usage(349, 2, 40, cache_written=300),
        ),
        (
            {"input_tokens": 9, "cache_creation_input_tokens": 300, "output_tokens": 2}
            | {"cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}},
            Usage(309, 2, cache_written=300, cache_written_1h=100),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {
                    "cache_write_tokens": 3,
                    "cache_creation_token_details": {"ephemeral_1h_input_tokens": 8},
                },
            },
            Usage(9, 0, cache_written=3, cache_written_1h=3),
        ),
        ({"input_tokens": 9, "cache_read_input_tokens": None, "output_tokens": 2}, Usage(9, 2)),
        (
            {"prompt_tokens": 100, "completion_tokens": 3, "cache_read_input_tokens": 90}
            | {"cache_creation_input_tokens": 0, "prompt_tokens_details": {"cached_tokens": 90}},
            Usage(100, 3, 90),
        ),
        ({"input_tokens": 9, "output_tokens": 2, "estimated": True}, Usage(9, 2, estimated=True)),
        (
            {"promptTokenCount": 9, "toolUsePromptTokenCount": 1, "totalTokenCount": 15, "cachedContentTokenCount": 4},
            Usage(10, 5, 4),
        ),
        (
            {"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 14},
            Usage(9, 5, parts=UsageParts(reasoning=3)),
        ),
        ({"totalTokenCount": "x"}, None),
        ({"totalTokenCount": 99}, None),
        ({"total_tokens": 99}, None),
        ({"prompt_tokens": 90, "completion_tokens": None, "total_tokens": 99}, Usage(90, 9)),
        ({"prompt_tokens": None, "completion_tokens": 9, "total_tokens": 99}, Usage(90, 9)),
        ({"prompt_tokens": 12.0, "completion_tokens": 3.0, "total_tokens": 15.0}, Usage(12, 3)),
        ({"prompt_tokens": 12.5, "completion_tokens": 3}, Usage(0, 3)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, None),
        ({"prompt_tokens": -5, "completion_tokens": 3}, Usage(0, 3)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": [5], "completion_tokens": {"x": 3}}, None),
        ({"promptTokenCount": 9, "promptTokensDetails": [{"modality": [], "tokenCount": 1}, 7, None]}, Usage(9, 0)),
        ({"prompt_tokens": 9, "prompt_tokens_details": [{"cached_tokens": 4}]}, Usage(9, 0)),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": "5", "completion_tokens": True}, None),
        ({"prompt_tokens": 2**53}, None),
        ({"type": "duration", "seconds": 9}, Usage(0, 0, parts=UsageParts(audio_s=9.0))),
        ({"type": "duration", "seconds": "x"}, None),
        ({}, None),
    ],
)
def test_only_plausible_numbers_count(usage: dict[str, Any], expected: Usage | None) -> None:
    """A count is a whole number that is not negative, and no more can be cached than was sent."""
    assert read_usage(usage) == expected


@rows("example", EXAMPLES)
def test_a_provider_s_usage_is_read(example: Example) -> None:
    """Each as its documentation, or an answer of it, has it."""
    assert read_usage(example.told) == example.usage


def test_each_field_has_an_example_that_needs_it() -> None:
    """Without the field the same object is read otherwise: no name is in the table for nothing."""
    proven = {
        quantity
        for path, quantity in paths(FIELDS)
        for example in EXAMPLES
        if read_usage(without(example.told, path)) != example.usage
    }

    assert [path for path, quantity in paths(FIELDS) if quantity not in proven] == []


def paths(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[int, str]]]:
    """Yield the way to each quantity of a table of fields, and its place in a table that several fields may share."""
    for name, inside in table.items():
        if isinstance(inside, dict):
            yield from paths(inside, (*above, name))
        else:
            yield (*above, name), (id(table), name)


def without(told: Any, path: tuple[str, ...]) -> Any:
    """Return the object without what stands at the path; of a list without the entries of that kind."""
    name, *rest = path
    if isinstance(told, list):
        return [one for one in told if name not in one.values()]
    if not isinstance(told, dict) or name not in told:
        return told
    inside = without(told[name], (*rest,)) if rest else None
    return {one: value for one, value in told.items() if one != name} | ({} if inside is None else {name: inside})


MONEY: dict[str, tuple[dict[str, Any], float]] = {
    "reasoning beside the completion": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1400,
            "prompt_tokens_details": {"cached_tokens": 600},
            "completion_tokens_details": {"reasoning_tokens": 300},
        },
        4.46,
    ),
    "reasoning inside of it": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 400,
            "total_tokens": 1400,
            "prompt_tokens_details": {"cached_tokens": 600},
            "completion_tokens_details": {"reasoning_tokens": 300},
        },
        4.46,
    ),
    "reasoning beside the output, in responses": (
        {
            "input_tokens": 1000,
            "output_tokens": 100,
            "total_tokens": 1400,
            "input_tokens_details": {"cached_tokens": 600},
            "output_tokens_details": {"reasoning_tokens": 300},
        },
        4.46,
    ),
    "Gemini's thoughts": (
        {
            "promptTokenCount": 1000,
            "candidatesTokenCount": 100,
            "thoughtsTokenCount": 300,
            "totalTokenCount": 1400,
            "cachedContentTokenCount": 600,
        },
        4.46,
    ),
    "Anthropic's thinking, which is inside": (
        {
            "input_tokens": 400,
            "cache_read_input_tokens": 600,
            "output_tokens": 400,
            "output_tokens_details": {"thinking_tokens": 300},
        },
        4.46,
    ),
    "a cache hit at the top": ({"prompt_tokens": 1000, "completion_tokens": 100, "cached_tokens": 600}, 1.46),
    "a cache hit by DeepSeek's name": (
        {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_cache_hit_tokens": 600},
        1.46,
    ),
    "a compaction": (
        {
            "input_tokens": 400,
            "output_tokens": 100,
            "iterations": [
                {"type": "compaction", "input_tokens": 3000, "output_tokens": 500},
                {"type": "message", "input_tokens": 400, "output_tokens": 100},
            ],
        },
        9.40,
    ),
    "a compaction alone, behind which the model paused": (
        {
            "input_tokens": 0,
            "output_tokens": 0,
            "iterations": [{"type": "compaction", "input_tokens": 3000, "output_tokens": 500}],
        },
        8.00,
    ),
}


@rows(("told", "usd"), MONEY.values(), ids=MONEY.keys())
def test_a_usage_costs_what_its_provider_bills(told: dict[str, Any], usd: float) -> None:
    """At $1,000 a million tokens of input, $100 from the cache, and $10,000 of output; the same in every language."""
    for language in (lambda _: told, chat_usage, response_usage, message_usage, generated_usage):
        usage = read_usage(language(read_usage(told) or Usage(0, 0)))
        assert usage is not None
        assert abs((usage.input - usage.cached) * 1e-3 + usage.cached * 1e-4 + usage.output * 1e-2 - usd) < 1e-9


@rows(
    "told, cached, sound_cached, seen_cached",
    [
        ({"prompt_tokens_details": {"audio_tokens": 900, "cached_tokens": 600}}, 600, 500, 0),
        ({"prompt_tokens_details": {"audio_tokens": 300, "image_tokens": 600, "cached_tokens": 900}}, 900, 300, 500),
        ({"prompt_tokens_details": {"audio_tokens": 300, "cached_tokens": 600}}, 600, 0, 0),
    ],
)
def test_what_a_cache_held_beyond_all_text_was_sound_or_pictures(
    told: dict[str, Any], cached: int, sound_cached: int, seen_cached: int
) -> None:
    """Where nobody says what of it: else these tokens would be billed twice, and the text's would be less than none."""
    usage = read_usage({"prompt_tokens": 1000, "completion_tokens": 1, **told})

    assert usage is not None
    assert (usage.cached, usage.parts.audio_cached, usage.parts.image_cached) == (cached, sound_cached, seen_cached)


COUNTS = st.integers(0, 1 << 21)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Draw a usage whose parts are parts."""
    made, rest = draw(COUNTS), draw(COUNTS)
    sound, seen = draw(COUNTS), draw(COUNTS)
    sound_cached, seen_cached = draw(st.integers(0, sound)), draw(st.integers(0, seen))
    cached = sound_cached + seen_cached + draw(st.integers(0, rest))
    read = sound + seen + rest
    written = draw(st.integers(0, read - cached))
    spoken = draw(st.integers(0, made))
    parts = UsageParts(
        audio_input=sound,
        audio_output=spoken,
        audio_cached=sound_cached,
        image_input=seen,
        image_output=draw(st.integers(0, made - spoken)),
        image_cached=seen_cached,
        video_input=draw(st.integers(0, rest)),
        reasoning=draw(st.integers(0, made)),
        searches=draw(st.integers(0, 99)),
    )
    hourly = draw(st.integers(0, written))
    tier = draw(st.sampled_from(["", "flex", "priority", "fast", "batch"]))
    return Usage(read, made, cached, draw(st.booleans()), written, hourly, parts, tier)


@BOUNDED
@given(usages())
def test_a_usage_is_the_same_in_every_language(usage: Usage) -> None:
    """What a caller is told is what is billed, and no count is lost on the way, nor from one language by another."""
    if not usage.input and not usage.output:
        return
    for write in (chat_usage, response_usage, message_usage, generated_usage):
        assert read_usage(orjson.loads(orjson.dumps(write(usage)))) == usage


@pytest.mark.parametrize(
    "answer",
    [
        b'{"content":[{"type":"tool_use","input":{"service_tier":"flex"}}],"usage":{"input_tokens":9,"output_tokens":7,'
        b'"service_tier":"standard"}}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"args":{"service_tier":"flex"}}}]}}],"usageMetadata":'
        b'{"promptTokenCount":9,"candidatesTokenCount":7,"totalTokenCount":16}}',
    ],
)
def test_what_a_tool_is_called_with_names_no_tier(answer: bytes) -> None:
    """Of an answer that is too long to be parsed: the usage itself has the tier there."""
    assert find_usage(answer) == Usage(9, 7)
    told = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7},"service_tier":"flex"}'
    assert find_usage(told) == Usage(9, 7, tier="flex")


@pytest.mark.parametrize("name", ["iterations", "steps"])
@pytest.mark.parametrize(
    "odd",
    [{"input_tokens": 1 << 40}, {"output_tokens": 1 << 40}, {"server_tool_use": {"web_search_requests": 1 << 40}}],
)
def test_requests_that_come_to_more_than_their_call_are_none_of_it(name: str, odd: dict[str, Any]) -> None:
    """Each is priced by its length: one of 2^40 tokens would cost millions of dollars, whatever the call has used."""
    step = {"type": "message", "input_tokens": 150_000, "output_tokens": 10}
    usage = read_usage({"input_tokens": 300_000, "output_tokens": 20, name: [step, step | odd]})

    assert usage == Usage(300_000, 20, doubt=CONTRADICTS)


@BOUNDED
@given(st.dictionaries(st.sampled_from([*FIELDS, "iterations"]), ODD_VALUES, max_size=8))
def test_no_usage_object_makes_it_fail(told: dict[str, Any]) -> None:
    """Nor are parts ever more than what they are parts of."""
    usage = read_usage(told)
    if usage is None:
        return
    parts = usage.parts
    assert 0 <= usage.cached + usage.cache_written <= usage.input
    assert usage.cache_written_1h <= usage.cache_written
    assert parts.audio_input + parts.image_input + parts.video_input <= usage.input
    assert parts.audio_output + parts.image_output + parts.video_output <= usage.output
    assert parts.audio_cached + parts.image_cached <= usage.cached
    assert parts.reasoning <= usage.output


def test_an_estimate_takes_four_bytes_to_a_token() -> None:
    assert estimate_tokens(b"x" * 43) == 10


def said_in_each_language(text: str, thought: str = "", arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return whole answers that say the same, by language."""
    call = {"name": "f", "arguments": orjson.dumps(arguments).decode()}
    return {
        "chat": {"choices": [{"message": {
            "role": "assistant", "content": text,
            **({"reasoning_content": thought, "reasoning": thought} if thought else {}),
            **({"tool_calls": [{"id": "c" * 40, "type": "function", "function": call}]} if arguments else {}),
        }}]},
        "completions": {"choices": [{"text": text + thought + (call["name"] + call["arguments"] if arguments else "")}]},
        "responses": {"output": [
            *([{"type": "reasoning", "id": "r" * 40, "summary": [{"text": thought}]}] if thought else []),
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]},
            *([{"type": "function_call", "id": "i" * 40, "call_id": "c" * 40, **call}] if arguments else []),
        ]},
        "messages": {"role": "assistant", "content": [
            *([{"type": "thinking", "thinking": thought, "signature": "s" * 400}] if thought else []),
            {"type": "text", "text": text},
            *([{"type": "tool_use", "id": "c" * 40, "name": "f", "input": arguments}] if arguments else []),
        ]},
        "generate": {"candidates": [{"content": {"role": "model", "parts": [
            *([{"text": thought, "thought": True, "thoughtSignature": "s" * 400}] if thought else []),
            {"text": text},
            *([{"functionCall": {"name": "f", "args": arguments}}] if arguments else []),
        ]}}]},
        "converse": {"output": {"message": {"role": "assistant", "content": [
            *([{"reasoningContent": {"reasoningText": {"text": thought, "signature": "s" * 400}}}] if thought else []),
            {"text": text},
            *([{"toolUse": {"toolUseId": "c" * 40, "name": "f", "input": arguments}}] if arguments else []),
        ]}}},
    }  # fmt: skip


@pytest.mark.parametrize("language", said_in_each_language(""))
def test_an_answer_is_estimated_by_its_words_alone(language: str) -> None:
    """In each language alike, whatever else is in it: ids, signatures, logs, a padded object of 100 kB."""
    said = said_in_each_language("FINE")[language]
    full = said_in_each_language("Ä" * 100, "x" * 80, {"city": "Oslo"})[language]

    assert estimate_answer(orjson.dumps(said)) == 1
    assert (
        estimate_answer(orjson.dumps(said | {"padding": {"x": "y" * 100_000}, "metadata": {"content": "z" * 99}})) == 1
    )
    assert estimate_answer(orjson.dumps(full)) == -(-(200 + 80 + len('f{"city":"Oslo"}')) // 4)


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": "A" * 9999}}]}}]}, 1290),
        ({"candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "audio/pcm", "data": "A" * 25600}}]}}]}, 10),
        ({"choices": [{"message": {"audio": {"data": "A" * 32000, "transcript": "x" * 400}}}]}, 110),
        ({"choices": [{"message": {"content": None, "refusal": "x" * 40}}]}, 10),
        ({"choices": [{"message": {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "x" * 40}]}}]}, 10),
        ({"reasoning": {"summary": "auto"}, "text": {"format": {"name": "x" * 40}}, "output": []}, 0),
    ],
)  # fmt: skip
def test_a_whole_answer_is_estimated_as_its_stream_would_be(answer: dict[str, Any], tokens: int) -> None:
    """Sound by its time, pictures as such, refusals and thoughts by their words; what repeats the request is no output."""
    assert estimate_answer(orjson.dumps(answer)) == tokens


def test_what_is_no_answer_is_estimated_by_its_bytes() -> None:
    """Or what nests too deeply to be looked through."""
    assert estimate_answer(b"x" * 43) == 10
    assert estimate_answer(b'{"content":' + b"[" * 200 + b'"words"' + b"]" * 200 + b"}") == 0


@rows(
    ("told", "expected"),
    [
        (None, Usage(100, 7, estimated=True)),
        (Usage(90, 0), Usage(90, 7, estimated=True)),
        (Usage(0, 9), Usage(100, 9, estimated=True)),
        (Usage(90, 9, 40), Usage(90, 9, 40)),
    ],
)
def test_what_is_not_told_is_taken_from_an_estimate(told: Usage | None, expected: Usage) -> None:
    """And marked; where the estimate knows nothing either, what is told stands."""
    assert filled(told, Usage(100, 7, estimated=True)) == expected
    assert filled(Usage(8, 0), Usage(9, 0, estimated=True)) == Usage(8, 0)


@given(
    st.lists(st.none() | st.builds(Usage, st.integers(0, 99), st.integers(0, 99), estimated=st.booleans()), min_size=1)
)
def test_what_was_discarded_is_part_of_what_a_call_has_used(used: list[Usage | None]) -> None:
    """Without that, and without an answer, nobody knows what it has used."""
    *discarded, last = used
    total = usage_in_all([Attempt(target_named("p/t"), 0.0, discarded=usage) for usage in discarded], last)
    known = [one for one in used if one is not None]
    if total is None:
        assert not known
    else:
        assert (total.input, total.output) == (sum(one.input for one in known), sum(one.output for one in known))
        assert total.estimated == any(one.estimated for one in known)


def test_the_requests_of_a_call_are_known_to_callers_of_every_language() -> None:
    """Of Anthropic's iterations; the sum is what it was."""
    message = {"type": "message", "input_tokens": 23_000, "cache_read_input_tokens": 500, "output_tokens": 1_000}
    compaction = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
    told = {**message, "service_tier": "priority", "iterations": [compaction, message, "odd", {"type": "message"}]}
    usage = read_usage(told)

    assert usage == Usage(
        203_500, 4_500, 500, tier="priority", steps=(Usage(180_000, 3_500), Usage(23_500, 1_000, 500))
    )
    for write in (chat_usage, response_usage, message_usage, generated_usage):
        assert read_usage(orjson.loads(orjson.dumps(write(usage)))) == usage


@rows(
    ("told", "output", "doubt"),
    [
        ({"total_tokens": 15}, 14, CONTRADICTS),
        ({}, 14, ""),
        ({"total_tokens": 24}, 14, ""),
        ({"total_tokens": 15, "citation_tokens": 3}, 14, ""),
        ({"total_tokens": 15, "completion_tokens": 9}, 9, CONTRADICTS),
    ],
)
def test_reasoning_that_its_total_has_no_room_for_is_billed_and_marked(
    told: dict[str, Any], output: int, doubt: str
) -> None:
    """It is more than the output, so it stands beside; Perplexity leaves it out of its totals."""
    details = {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 9}}
    usage = read_usage(details | told)

    assert usage is not None
    assert (usage.output, usage.doubt) == (output, doubt)


SOUND = UsageParts(audio_input=3, audio_output=5, image_input=2, reasoning=7, searches=2)


@rows(
    ("told", "most", "expected"),
    [
        (Usage(2**31, 2**31), MOST_TOKENS, Usage(0, 0, estimated=True, doubt=ABSURD)),
        (
            Usage(20, 2**31, 10, parts=SOUND),
            MOST_TOKENS,
            Usage(20, 0, 10, True, parts=UsageParts(audio_input=3, image_input=2, searches=2), doubt=ABSURD),
        ),
        (
            Usage(2**31, 9, 2**30, cache_written=7, parts=SOUND),
            MOST_TOKENS,
            Usage(0, 9, estimated=True, parts=UsageParts(audio_output=5, reasoning=7, searches=2), doubt=ABSURD),
        ),
        (Usage(MOST_TOKENS, MOST_TOKENS), MOST_TOKENS, Usage(MOST_TOKENS, MOST_TOKENS)),
        (Usage(9, 501), 500, Usage(9, 0, estimated=True, doubt=ABSURD)),
        (Usage(9, 5, parts=UsageParts(searches=2**31)), 500, Usage(9, 5, estimated=True, doubt=ABSURD)),
    ],
)
def test_a_number_that_no_call_can_have_used_counts_as_missing(told: Usage, most: int, expected: Usage) -> None:
    """With its parts; the other number keeps its own. Millions are believed."""
    assert plausible(told, most) == expected


@rows(
    ("max_tokens", "answers", "most"),
    [
        (None, 1, MOST_TOKENS),
        (100, 1, 100 + LONGEST_ANSWER),
        (200, 2, 200 + 2 * LONGEST_ANSWER),
        (10**9, 1, MOST_TOKENS),
    ],
)
def test_an_output_is_believed_up_to_its_bound_and_the_longest_reasoning_beside_it(
    max_tokens: int | None, answers: int, most: int
) -> None:
    """Which some providers leave out of the bound."""
    assert most_output(max_tokens, answers) == most


@rows(
    ("told", "expected"),
    [
        ({"prompt_tokens": 2**31, "completion_tokens": 9, "total_tokens": 2**31 + 9}, (0, 9)),
        ({"input_tokens": 9, "output_tokens": 2**31}, (9, 0)),
        ({"input_tokens": 1 << 23, "cache_read_input_tokens": 1 << 24, "output_tokens": 1}, (0, 1)),
        ({"promptTokenCount": 2**31, "candidatesTokenCount": 2**31}, (0, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2**31}},
            (5, 0),
        ),
        (
            {
                "input_tokens": 9,
                "iterations": [{"type": "compaction", "input_tokens": 1 << 23, "output_tokens": 1}] * 3,
            },
            (0, 3),
        ),
    ],
)
def test_a_report_of_such_a_number_is_marked_in_every_language(told: dict[str, Any], expected: tuple[int, int]) -> None:
    """And is so still when it has been told to a caller of another language."""
    usage = read_usage(told)
    assert usage is not None
    assert (usage.input, usage.output, usage.estimated, usage.doubt) == (*expected, True, ABSURD)
    for write in (chat_usage, response_usage, message_usage, generated_usage):
        assert read_usage(orjson.loads(orjson.dumps(write(usage)))) == usage


def test_a_usage_object_of_any_length_is_not_read() -> None:
    """The search for its end stops: what opens a million braces has no usage."""
    counts = b'{"prompt_tokens":1,"completion_tokens":2,"x":%b}'

    assert find_usage(b'"usage":' + counts % (b'{"y":' * 1_000 + b"0" + b"}" * 1_000)) == Usage(1, 2)
    assert find_usage(b'"usage":' + counts % (b'{"y":' * 100_000 + b"0" + b"}" * 100_000)) is None
