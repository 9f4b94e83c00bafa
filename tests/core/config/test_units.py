"""Durations and sizes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config.fields import parse_duration, parse_size
from tests.rows import rows


@rows(
    ("text", "seconds"),
    [("300ms", 0.3), ("30s", 30), ("5m", 300), ("6h", 21600), ("1d", 86400), ("1.5s", 1.5), ("0s", 0), ("5 m", 300)],
)
def test_duration_with_a_unit_is_seconds(text: str, seconds: float) -> None:
    """Every unit, whole and in part."""
    assert parse_duration(text) == pytest.approx(seconds)


@rows(
    ("text", "size"),
    [
        ("20MB", 20_000_000),
        ("512MiB", 2**29),
        ("1kB", 1000),
        ("1KB", 1000),
        ("2GiB", 2**31),
        ("7B", 7),
        ("1.5MB", 1_500_000),
    ],
)
def test_size_with_a_unit_is_bytes(text: str, size: int) -> None:
    """Powers of ten and of two are told apart; case does not matter."""
    assert parse_size(text) == size


@rows(
    ("text", "words"),
    [
        (30, "has no unit"),
        (1.5, "has no unit"),
        ("30", "has no unit"),
        ("30x", "is not a duration"),
        ("-5s", "is not a duration"),
        ("", "is not a duration"),
        ("s", "is not a duration"),
        ("٣s", "is not a duration"),
        ("1h30m", "is not a duration"),
        (True, "is not a duration"),
        (None, "is not a duration"),
        (["5s"], "is not a duration"),
        ("367d", "is too long"),
    ],
)
def test_what_is_no_duration_says_why(text: object, words: str) -> None:
    """A missing unit is told apart from nonsense."""
    with pytest.raises(ValueError, match=words):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [(20, "has no unit"), ("20", "has no unit"), ("20XB", "is not a size"), ("2000GiB", "is too large")],
)
def test_what_is_no_size_says_why(text: object, words: str) -> None:
    """A missing unit is told apart from nonsense."""
    with pytest.raises(ValueError, match=words):
        parse_size(text)


@given(st.integers(0, 366 * 86_400_000))
def test_milliseconds_come_back_exactly(ms: int) -> None:
    """No rounding that a person would notice."""
    assert parse_duration(f"{ms}ms") == pytest.approx(ms / 1000, rel=1e-12)


@given(st.text())
def test_parsing_is_total(text: str) -> None:
    """Any text is a quantity or a ValueError."""
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0
