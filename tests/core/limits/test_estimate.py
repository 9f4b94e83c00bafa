"""Token estimates: right in size for every script and shape, corrected by what really was used, and charged by rule."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.times import Calibration
from gateway.core.limits.bucket import ChargeRule, Cost, charge
from gateway.core.openai.usage import estimate_input_tokens
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20)
words = st.sampled_from(
    [
        *("messages", "role", "content", "type", "text", "image_url", "detail", "tools", "tool_calls", "function"),
        *("arguments", "input", "prompt", "response_format", "instructions", "output"),
        *("tool_use", "tool_result", "document", "thinking", "source", "data", "system"),
    ]
)
json_values = st.recursive(
    plain | words, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=20
)
json_objects = st.dictionaries(words, json_values, max_size=5)

ENGLISH = "The quick brown fox jumps over the lazy dog. "
RUSSIAN = "Съешь же ещё этих мягких французских булок. "  # Cyrillic is the point
CHINESE = "敏捷的棕色狐狸跳过懒狗。"  # so is this
MILLION = 10**6


def estimate(**fields: Any) -> int:
    return estimate_input_tokens(orjson.dumps(fields), fields)


def said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@rows(
    ("text", "tokens"),
    [
        pytest.param(ENGLISH * 20, 225, id="English: four bytes"),
        pytest.param(CHINESE * 20, 360, id="Chinese: two bytes"),
        pytest.param("🙂" * 100, 200, id="emoji"),
        pytest.param(ENGLISH * 20 + CHINESE * 20, 225 + 360, id="mixed"),
        pytest.param("", 0, id="empty"),
    ],
)
def test_text_is_counted_by_its_script(text: str, tokens: int) -> None:
    """Plus four tokens for the message and three for the reply."""
    assert estimate(messages=said(text)) == tokens + 7
    assert estimate(messages=said([{"type": "text", "text": text}])) == tokens + 7


def test_two_byte_scripts_lie_between() -> None:
    """Three bytes to a token, spaces apart."""
    assert 7 + len(RUSSIAN) / 2 < estimate(messages=said(RUSSIAN)) < 7 + len(RUSSIAN)


@rows(
    ("fields", "tokens"),
    [
        pytest.param({"input": "abcd" * 10}, 10, id="one text to embed"),
        pytest.param({"input": ["abcd" * 10, "abcd"]}, 11, id="several texts"),
        pytest.param({"input": [1, 2, 3]}, 3, id="token numbers"),
        pytest.param({"input": [[1, 2, 3], [4]]}, 4, id="lists of token numbers"),
        pytest.param({"prompt": "abcd" * 10}, 10, id="a completion"),
        pytest.param({"instructions": "abcd", "input": said("abcd")}, 6, id="a response"),
        pytest.param(
            {"input": [{"role": "user", "content": [{"type": "input_image", "detail": "low"}]}]},
            89,
            id="a response with a picture",
        ),
        pytest.param({"input": [{"type": "function_call_output", "output": "abcd" * 8}]}, 8, id="a tool's output"),
        pytest.param({"model": "m", "thing": "x" * 26}, 13, id="an unknown shape: the whole body"),
        pytest.param({"input": ""}, 3, id="nothing at all"),
    ],
)
def test_every_endpoints_input_is_counted(fields: dict[str, Any], tokens: int) -> None:
    """Texts, items, token numbers; what is not known goes by size."""
    assert estimate(**fields) == tokens


def test_pictures_go_by_their_detail_not_by_their_bytes() -> None:
    """85 tokens when it is low, 765 otherwise."""
    url = {"url": "data:image/png;base64," + "A" * 100_000}

    assert estimate(messages=said([{"type": "image_url", "image_url": {**url, "detail": "low"}}])) == 85 + 7
    assert estimate(messages=said([{"type": "image_url", "image_url": url}])) == 765 + 7
    assert estimate(messages=said([{"type": "image", "source": {"data": "A" * 1000}}])) == 765 + 7


def test_the_blocks_of_messages_are_input_too() -> None:
    """Calls, results and what is in them, thoughts, documents that are text; of others a page's worth."""
    empty = estimate(messages=said(""))
    picture = {"type": "image", "source": {"type": "base64", "data": "A" * 9999}}
    text = {"type": "text", "text": "abcd" * 10}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text, picture]}
    for block, tokens in (
        ({"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x" * 100}}, 4 + 31),
        ({"type": "tool_result", "tool_use_id": "t", "content": "abcd" * 10}, 4 + 10),
        (result, 4 + 10 + 765),
        ({"type": "tool_result", "tool_use_id": "t", "content": [result]}, 4),
        ({"type": "thinking", "thinking": "abcd" * 5, "signature": "s" * 999}, 4 + 5),
        ({"type": "document", "source": {"type": "text", "data": "abcd" * 7}}, 4 + 7),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 9999}}, 765),
    ):
        assert estimate(messages=said([block])) == empty + tokens, block
    assert estimate(messages=said(""), system=[text]) == empty + 10
    odds: tuple[dict[str, Any], ...] = ({"type": []}, {"type": {}}, {"type": "tool_result", "content": [{"type": []}]})
    for odd in odds:
        assert estimate(messages=said([odd])) == empty + 4 + 4 * ("content" in odd), odd


def test_tools_and_their_calls_are_input_too() -> None:
    """Definitions by the size of their JSON, earlier calls by their arguments."""
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 300}}]
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "a" * 400}}]}]

    assert estimate(messages=said("")) == 7
    assert estimate(messages=said(""), tools=tools) == 7 + ceil(len(orjson.dumps(tools)) / 3.5)
    assert estimate(messages=calls) == 7 + 104


PLACES: list[Callable[[Any], dict[str, Any]]] = [
    lambda value: {"messages": value},
    lambda value: {"messages": said(value)},
    lambda value: {"messages": said([{"type": "tool_result", "content": value}])},
    lambda value: {"messages": [{"role": "assistant", "tool_calls": value}]},
    lambda value: {"contents": [{"parts": value}], "systemInstruction": value},
    lambda value: {"input": [{"type": "reasoning", "summary": value, "content": value}]},
    lambda value: {"system": value, "tools": value},
]


@BOUNDED
@given(json_objects | st.builds(lambda put, value: put(value), st.sampled_from(PLACES), json_values))
def test_an_estimate_is_total(fields: dict[str, Any]) -> None:
    """On any JSON object, and at least 1."""
    assert estimate(**fields) >= 1


@rows("value", [None, [], {}, "", 0, [[]], [None]])
def test_an_estimate_is_total_where_there_is_nothing(value: Any) -> None:
    """A message's content may be an empty list, as may a reasoning item's summary."""
    for put in PLACES:
        assert estimate(**put(value)) >= 1


@rows(
    ("body", "low", "high"),
    [
        pytest.param(lambda: {"messages": said("abcd" * MILLION)}, MILLION, MILLION + 7, id="one long text"),
        pytest.param(
            lambda: {"messages": said((ENGLISH + CHINESE) * 50_000)},
            1_300_000,
            1_600_000,
            id="one long text, scripts mixed",
        ),
        pytest.param(lambda: {"messages": said("hello") * 200_000}, 800_000, 2_500_000, id="very many messages"),
        pytest.param(lambda: {"input": ["abcd" * 4] * 200_000}, 800_000, 1_100_000, id="very many texts"),
        pytest.param(lambda: {"input": [[1, 2, 3]] * 200_000}, 600_000, 600_000, id="very many token lists"),
        pytest.param(
            lambda: {"messages": said([{"type": "text", "text": "abcd" * 4}] * 100_000)},
            390_000,
            410_000,
            id="very many parts",
        ),
    ],
)
def test_a_large_body_is_estimated_from_samples(body: Callable[[], dict[str, Any]], low: int, high: int) -> None:
    """As well as from all of it."""
    assert low <= estimate(**body()) <= high


def test_what_is_nested_too_deep_to_write_goes_by_the_body() -> None:
    """It was read, but cannot be written again."""
    body = b'{"tools":' + b"[" * 300 + b"]" * 300 + b"}"

    assert estimate_input_tokens(body, orjson.loads(body)) == ceil(len(body) / 3.5)


@rows(
    ("rule", "max_tokens", "expected"),
    [
        ("max", 400, Cost(1, 100, 300)),
        ("max", 50, Cost(1, 100, 0)),
        ("max", None, Cost(1, 100, 150)),
        ("sum", 400, Cost(1, 100, 400)),
        ("sum", None, Cost(1, 100, 250)),
        ("input", 400, Cost(1, 100, 0)),
    ],
)
def test_a_call_is_charged_by_the_providers_rule(rule: ChargeRule, max_tokens: int | None, expected: Cost) -> None:
    """What is expected stands in where the caller set no `max_tokens`."""
    assert charge(rule, 100, max_tokens, 250) == expected


def test_cached_tokens_count_only_where_the_provider_counts_them() -> None:
    """Never below zero."""
    assert charge("input", 100, None, 0, cached=80) == Cost(1, 100, 0)
    assert charge("input", 100, None, 0, cached=80, excludes_cached=True) == Cost(1, 20, 0)
    assert charge("max", 100, 90, 0, cached=200, excludes_cached=True) == Cost(1, 0, 90)


@BOUNDED
@given(st.lists(st.tuples(st.integers(-5, 10**6), st.integers(-5, 10**6), st.integers(-5, 10**7)), max_size=50))
def test_a_correction_stays_within_a_factor_of_four(seen: list[tuple[int, int, int]]) -> None:
    """Whatever a provider reports."""
    calibration = Calibration()

    for estimated, real_input, real_output in seen:
        calibration.observe(estimated, real_input, real_output)
        assert 0.25 - 1e-9 <= calibration.ratio <= 4.0 + 1e-9
        assert calibration.input_estimate(100) in range(25, 401)
        assert calibration.output_estimate(1000) in range(1, 1001)
        assert calibration.error >= 0.0


def test_estimates_follow_what_a_model_really_uses() -> None:
    """And follow again when its text changes."""
    calibration = Calibration()
    assert calibration.input_estimate(100) == 100

    calibration.observe(100, 150, 10)
    assert calibration.input_estimate(100) == 150

    for _ in range(100):
        calibration.observe(100, 80, 10)
    assert calibration.input_estimate(100) in (80, 81)
    assert calibration.count == 101
    assert calibration.error < 0.05


def test_the_error_is_that_of_the_corrected_estimate() -> None:
    """Before it learns from the same call."""
    calibration = Calibration()

    calibration.observe(100, 200, 10)
    assert (calibration.count, calibration.ratio, calibration.error) == pytest.approx((1, 2.0, 0.5))

    calibration.observe(100, 200, 10)
    assert (calibration.count, calibration.ratio, calibration.error) == pytest.approx((2, 2.0, 0.25))


def test_output_is_what_nine_of_ten_answers_stay_under() -> None:
    """But never more than the caller allows; before any answer, a default."""
    calibration = Calibration(first_output=300)
    assert calibration.output_estimate(None) == 300
    assert calibration.output_estimate(100) == 100

    for tokens in [100] * 95 + [4000] * 5:
        calibration.observe(10, 10, tokens)

    assert calibration.output_estimate(None) in range(100, 120)
    assert calibration.output_estimate(50) == 50


def test_contents_of_geminis_count_by_their_words() -> None:
    """Not by the bytes of their pictures."""
    parts: list[Any] = [{"text": "x" * 400}, {"inlineData": {"data": "A" * 90_000}}]
    words = {"contents": [{"parts": parts[:1]}], "systemInstruction": {"parts": [{"text": "y" * 400}]}}
    shown = {"contents": [{"parts": parts}]}
    assert estimate_input_tokens(orjson.dumps(words), words) in range(200, 215)
    assert estimate_input_tokens(orjson.dumps(shown), shown) in range(800, 900)


def test_a_call_of_two_words_does_not_make_large_estimates_doubtful() -> None:
    """Seven tokens estimated and one counted is an error of six, not of six times as many."""
    calibration = Calibration()
    for _ in range(5):
        calibration.observe(11_250, 9000, 10)
    before = calibration.error

    calibration.observe(7, 1, 10)

    assert calibration.error <= before + 0.01
