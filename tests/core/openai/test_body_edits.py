"""What a target's config changes in a body: those fields as they are written, and no other byte of what they mean."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.bodies import BodyEdits
from tests.rows import rows

NAMES = st.sampled_from(["a", "b", "top_p", "é", "x-y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\,:{}é', max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=4)


@rows(
    ("body", "edits", "made", "dropped"),
    [
        (b"{}", BodyEdits(drop=("a",)), b"{}", ()),
        (b'{"a":1}', BodyEdits(drop=("a",)), b"{}", ("a",)),
        (b'{ "a" : [1, 2] , "b": 2}', BodyEdits(drop=("a",)), b'{ "b": 2}', ("a",)),
        (b'{"b": 2 , "a": "x"}', BodyEdits(drop=("a",)), b'{"b": 2 }', ("a",)),
        (b'{"a":1,"b":2,"a":3}', BodyEdits(drop=("a",)), b'{"b":2}', ("a",)),
        (b'{"\\u0061":1,"b":2}', BodyEdits(drop=("a",)), b'{"b":2}', ("a",)),
        (b'{"b":{"a":1}}', BodyEdits(drop=("a",)), b'{"b":{"a":1}}', ()),
        (b'{"a":1,"b":2}', BodyEdits(set=(("a", b"9"),)), b'{"a":9,"b":2}', ()),
        (b'{"a":1,"b":2,"a":3}', BodyEdits(set=(("a", b"9"),)), b'{"b":2,"a":9}', ()),
        (b'{"b":2}', BodyEdits(set=(("a", b"null"),)), b'{"a":null,"b":2}', ()),
        (b'{"b":2}', BodyEdits(set=(("a", b"1"),), drop=("b",)), b'{"a":1}', ("b",)),
    ],
)
def test_only_the_fields_that_are_named_change(
    body: bytes, edits: BodyEdits, made: bytes, dropped: tuple[str, ...]
) -> None:
    assert edits.apply(body) == (made, dropped)


def test_a_question_for_tokens_gets_no_field_that_it_cannot_have() -> None:
    edits = BodyEdits((("max_tokens", b"5"), ("thinking", b"{}"), ("temperature", b"1")), ("user",))
    assert edits.of_count() == BodyEdits((("thinking", b"{}"),), ("user",))


@given(BODIES, st.dictionaries(NAMES, VALUES, max_size=2), st.sets(NAMES, max_size=2), st.booleans(), st.booleans())
def test_any_body_is_what_it_was_but_for_the_edits(
    body: dict[str, Any], put: dict[str, Any], drop: set[str], escaped: bool, spaced: bool
) -> None:
    put = {name: value for name, value in put.items() if name not in drop}
    text = json.dumps(body, ensure_ascii=escaped, indent=1 if spaced else None).encode()
    edits = BodyEdits(tuple((name, orjson.dumps(value)) for name, value in put.items()), tuple(sorted(drop)))

    made, dropped = edits.apply(text)

    assert orjson.loads(made) == {**{name: value for name, value in body.items() if name not in drop}, **put}
    assert set(dropped) == drop & body.keys()
