"""What letters are grouped by: messages without what differs from case to case; and failures without secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.products.jobs.calls import failure_of
from gateway.products.jobs.dead_letters.rules import MOST_TEMPLATE, template_of
from tests.rows import rows

WORDS = st.lists(st.sampled_from(["request", "timed", "out", "after", "model", "limit"]), min_size=1, max_size=6)
VARIABLE = st.one_of(
    st.integers(0, 10**12).map(str),
    st.floats(0, 10**6, allow_nan=False).map(lambda number: f"{number:.3f}"),
    st.text("abcdefghij", min_size=1, max_size=12).map(lambda name: f"'{name}'"),
    st.text("0123456789abcdef", min_size=8, max_size=32).map(lambda digits: f"req_{digits}1"),
    st.uuids().map(str),
)


@given(WORDS, st.integers(0, 6), VARIABLE)
def test_a_template_is_a_template_of_itself(words: list[str], at: int, variable: str) -> None:
    """Masking again changes nothing; it has no digit, and no more than so many characters."""
    template = template_of(" ".join([*words[:at], variable, *words[at:]]))

    assert template_of(template) == template
    assert not any(character.isdigit() for character in template)
    assert len(template) <= MOST_TEMPLATE


@given(WORDS, st.integers(0, 6), st.integers(0, 10**9), st.integers(0, 10**9), st.uuids(), st.uuids())
def test_messages_that_differ_in_numbers_ids_and_names_are_one_group(
    words: list[str], at: int, one: int, other: int, id: object, other_id: object
) -> None:
    """Whatever stands around them."""

    def said(number: int, name: object) -> str:
        return " ".join([*words[:at], f"{number} ms for req_{name} of '{name}'", *words[at:]])

    assert template_of(said(one, id)) == template_of(said(other, other_id))


@given(st.lists(WORDS, min_size=2, max_size=2, unique_by=tuple))
def test_messages_of_other_words_are_other_groups(pair: list[list[str]]) -> None:
    """They are not thrown together."""
    assert template_of(" ".join(pair[0])) != template_of(" ".join(pair[1]))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"Incorrect API key provided: sk-proj-abcdef123456"}}', "Incorrect API key provided: …"),
        (b'{"error":"boom at https://user:pass@host/x"}', "boom at https…host/x"),
        (b'{"error":{"message":"Bearer abc.def.ghi was refused"}}', "… was refused"),
    ],
)
def test_a_failure_is_told_in_its_own_words_without_secrets(body: bytes, said: str) -> None:
    """As far as they look like some."""
    assert failure_of(401, body) == f"the answer was 401: {said}"


@rows("body", [b"", b"nonsense", b"[]", b'{"error":{"message":7}}', b'{"error":{"message":" "}}'])
def test_a_failure_without_words_is_its_status(body: bytes) -> None:
    """Whatever the body is."""
    assert failure_of(500, body) == "the answer was 500"
