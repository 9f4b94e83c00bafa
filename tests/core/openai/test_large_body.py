"""What is remembered of a large body, and the changes that are made with it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai import json_edit
from gateway.core.openai.bodies import Large, Needs, edited, is_parsed, large_of
from gateway.core.openai.json_edit import read_contents, read_outline
from gateway.core.openai.usage import estimate_input_tokens
from gateway.core.types import Spliced, pieces_of
from tests.core.openai.test_outline import done, outline_of
from tests.rows import rows

OPTIONS: list[Any] = [
    None,
    {},
    {"include_usage": None},
    {"include_obfuscation": False},
    {"include_usage": None, "x": [1]},
]


def remembered(body: bytes, *, is_peeked: bool = True) -> Large:
    """What is remembered of the body; `is_peeked`: it is not parsed."""
    return large_of(body, outline_of(body), done(read_contents(body)) if is_peeked else None)


@given(
    order=st.permutations(["model", "stream", "stream_options", "messages"]),
    options=st.sampled_from(OPTIONS),
    is_there=st.booleans(),
    renames=st.booleans(),
)
def test_changes_are_those_of_small_bodies(order: list[str], options: Any, *, is_there: bool, renames: bool) -> None:
    """The model's name and the wish for usage, as the surgery on small bodies makes them; all other bytes stay."""
    fields = {
        "model": "m\u00e9",
        "stream": True,
        "stream_options": options,
        "messages": [{"model": "m", "stream_options": 1}],
    }
    body = orjson.dumps({name: fields[name] for name in order if is_there or name != "stream_options"})
    given_options = options if is_there else None
    wanted = json_edit.with_model(body, "other") if renames else body
    wanted = json_edit.with_include_usage(wanted, given_options)

    found = edited(body, remembered(body), "other" if renames else None, given_options, adds_usage=True)

    assert bytes(found) == wanted
    assert len(found) == len(wanted)
    assert bytes(edited(body, remembered(body), None, given_options, adds_usage=False)) == body


def test_escaped_names_are_found_where_they_stand() -> None:
    """The last of several options is the one that was parsed."""
    body = rb'{"messages":[],"stream\u005foptions":{"include_usage":null},"mod\u0065l":"a"}'

    found = edited(body, remembered(body), "b", {"include_usage": None}, adds_usage=True)

    assert orjson.loads(bytes(found)) == {"messages": [], "stream_options": {"include_usage": True}, "model": "b"}


def test_long_or_crowded_bodies_are_not_parsed() -> None:
    """By their length, or by their values."""
    assert is_parsed(b'{"a":1}', outline_of(b'{"a":1}'))
    crowded = b'{"a":[' + b"{}," * 60_000 + b"1]}"
    assert not is_parsed(crowded, outline_of(crowded))
    long = b'{"a":"' + b" " * 4_000_000 + b'"}'
    assert not is_parsed(long, outline_of(long))


def test_choices_are_known() -> None:
    """A sane number, or one."""
    for written, choices in ((b"3", 3), (b"128", 128), (b"129", 1), (b"0", 1), (b'"2"', 1), (b"true", 1)):
        assert remembered(b'{"n":%b}' % written).choices == choices


def test_paid_answers_are_known() -> None:
    """Those of the prompts, at least."""
    for written, least, most in (
        (b'"prompt":"a","best_of":3', 3, 3),
        (b'"prompt":["a","b"],"n":4', 8, 20),
        (b'"prompt":[' + b'"a",' * 5000 + b'"a"]', 5001, 5010),
        (b'"prompt":[[1,2],[3]]', 2, 10),
        (b'"messages":[{},{}]', 1, 1),
    ):
        assert least <= remembered(b"{%b}" % written).answers <= most


@rows(
    ("fields", "needs"),
    [
        ('"messages":[]', Needs()),
        ('"tools":[],"functions":null,"response_format":{"type":"json_object"}', Needs()),
        ('"tools":[{}]', Needs(tools=True)),
        ('"tools":[' + "{}," * 20_000 + "{}]", Needs(tools=True)),
        ('"functions":[{}]', Needs(tools=True)),
        ('"messages":[{"content":[{"type":"image_url"}]}]', Needs(images=True)),
        ('"response_format":{"type":"json_schema"}', Needs(structured_output=True)),
        ('"response_format":{"type":"json_schema","x":"' + "x" * 40_000 + '"}', Needs(structured_output=True)),
        ('"text":{"format":{"type":"json_schema"}}', Needs(structured_output=True)),
        ('"text":"' + "x" * 40_000 + '"', Needs(structured_output=True)),
    ],
)
def test_what_was_not_read_is_taken_to_be_needed(fields: str, needs: Needs) -> None:
    """A target that may lack something is not tried with a call that may need it."""
    assert remembered(b"{%b}" % fields.encode()).needs == needs


def test_tokens_are_estimated_from_the_length() -> None:
    """About what counting would find, for text in two scripts; a picture costs what a picture does."""
    for words in ("hello there world ", "привет мир "):
        body = orjson.dumps({"messages": [{"role": "user", "content": words * 100_000}]})
        counted = estimate_input_tokens(body, orjson.loads(body))
        assert remembered(body).tokens == pytest.approx(counted, rel=0.15)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 500_000}}
    body = orjson.dumps({"messages": [{"role": "user", "content": [picture, picture]}]})
    assert 1_000 < remembered(body).tokens < 50_000
    assert remembered(body, is_peeked=False).tokens < 0


def test_steps_are_many_and_short() -> None:
    """The work on a large body is cut into pieces: none passes over more than some tens of kilobytes."""
    body = b'{"a":[' + b'"x",' * 400_000 + b'1],"b":"' + b"y" * 2_000_000 + b'"}'

    steps = sum(1 for _ in read_outline(body, 1_000_000)) + sum(1 for _ in read_contents(body))

    assert steps > len(body) / 40_000


@given(
    body=st.binary(max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    texts=st.lists(st.binary(max_size=5), min_size=3, max_size=3),
    size=st.integers(1, 20),
)
def test_a_body_is_spliced_as_bytes_would_be(body: bytes, cuts: list[int], texts: list[bytes], size: int) -> None:
    """Whatever is replaced, and in whatever pieces it is written."""
    bounds = sorted({min(cut, len(body)) for cut in cuts})
    edits = [(*span, text) for span, text in zip(batched(bounds), texts, strict=False)]
    wanted = body
    for start, end, text in reversed(edits):
        wanted = wanted[:start] + text + wanted[end:]

    spliced = Spliced(body, [*reversed(edits)])

    assert bytes(spliced) == b"".join(pieces_of(spliced, size)) == b"".join(pieces_of(wanted, size)) == wanted
    assert len(spliced) == len(wanted)
    assert b"head" + spliced == b"head" + wanted
    assert all(0 < len(piece) <= size for piece in pieces_of(spliced, size))


def batched(bounds: list[int]) -> list[tuple[int, int]]:
    return [*zip(bounds[::2], bounds[1::2], strict=False)]
