"""Tokens, read from the end of an answer: the right numbers or none, never an error."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.usage import estimate_tokens, estimate_usage, find_usage, read_usage
from gateway.core.types import Usage, UsageParts
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

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
LIE = '"usage":{"prompt_tokens":1,"completion_tokens":1}'

TAILS: dict[str, tuple[bytes, Usage]] = {
    "chat": (
        orjson.dumps({"id": "c", "choices": [{"message": {"content": LIE}}], "usage": CHAT, "system_fingerprint": "f"}),
        Usage(1200, 345, 1024),
    ),
    "pretty": (
        orjson.dumps({"choices": [{"message": {"content": LIE}}], "usage": CHAT}, option=orjson.OPT_INDENT_2),
        Usage(1200, 345, 1024),
    ),
    "stream": (
        b'data: {"choices":[{"delta":{"content":"usage"}}],"usage":null}\n\n'
        b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % orjson.dumps(CHAT),
        Usage(1200, 345, 1024),
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
            Usage(9, 5),
        ),
        ({"totalTokenCount": "x"}, None),
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


def test_an_estimate_takes_four_bytes_to_a_token_and_says_so() -> None:
    """Nobody counted: the numbers are marked."""
    assert estimate_usage(b"x" * 400, 7) == Usage(100, 7, estimated=True)
    assert estimate_tokens(b"x" * 43) == 10


def test_a_usage_object_of_any_length_is_not_read() -> None:
    """The search for its end stops: what opens a million braces has no usage."""
    counts = b'{"prompt_tokens":1,"completion_tokens":2,"x":%b}'

    assert find_usage(b'"usage":' + counts % (b'{"y":' * 1_000 + b"0" + b"}" * 1_000)) == Usage(1, 2)
    assert find_usage(b'"usage":' + counts % (b'{"y":' * 100_000 + b"0" + b"}" * 100_000)) is None


@rows(
    "picture",
    [
        {"image_url": {"url": "data:image/png;base64," + "A" * 9999}},
        {"source": {"type": "base64", "media_type": "image/png", "data": "A" * 9999}},
        {"inlineData": {"mimeType": "image/png", "data": "A" * 9999}},
    ],
)
def test_a_picture_is_not_estimated_by_its_bytes(picture: dict[str, Any]) -> None:
    """In no caller's language; a long word of data that is no picture still counts."""
    for body in (orjson.dumps(picture), json.dumps(picture).encode()):
        assert estimate_usage(body, 0).input < 50
    assert estimate_usage(orjson.dumps({"text": "A" * 9999}), 0).input > 2000
