"""Large bodies are read without being parsed: what is found is what a parser finds, and no piece of work is long."""

from __future__ import annotations

import json
from collections.abc import Generator
from hashlib import sha256
from typing import Any, TypeVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import BodyTooComplex
from gateway.core.openai import json_edit
from gateway.core.openai.json_edit import (
    MAX_DEPTH,
    MAX_FIELDS,
    UNREAD,
    MalformedJson,
    Outline,
    is_too_deep,
    read_contents,
    read_outline,
)
from tests.rows import rows

T = TypeVar("T")
BOUND = 1_000_000


def done(work: Generator[None, None, T]) -> T:
    """What the work returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value


def outline_of(body: bytes, max_values: int = BOUND, *, counts_numbers: bool = True) -> Outline:
    """The outline of a body."""
    return done(read_outline(body, max_values, counts_numbers=counts_numbers))


def values_in(value: Any) -> int:
    """How many values there are, this one included."""
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))
    return 1


def depth_of(value: Any) -> int:
    """How deep objects and lists stand in each other."""
    if isinstance(value, dict | list):
        return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)
    return 0


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', "\\", '\\"', "{", "}]", '":"', "model", "\\u006d", "a" * 50, "\0", "é漢😀"]
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object, written in one of the ways in which JSON may be written."""
    value = draw(st.dictionaries(texts | st.sampled_from(sorted(json_edit.READ)), values, max_size=6))
    indent, ascii_only = draw(st.sampled_from([None, 0, 2])), draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r\n:")]))
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)
    return draw(st.sampled_from([b"", b" \n"])) + text.encode("utf-8", "replace") + draw(st.sampled_from([b"", b"\t "]))


@pytest.fixture(params=[(1, 2), (3, 7), (1_024, 32_768)], ids=str)
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so short that every boundary falls everywhere, and the real ones."""
    first, size = request.param
    for module in (json_edit, json_edit):
        monkeypatch.setattr(module, "PIECE_BYTES", max(2, size))
        monkeypatch.setattr(json_edit, "FIRST_PIECE_BYTES", max(2, first))


@pytest.mark.usefixtures("_pieces")
def test_the_outline_is_what_a_parser_finds() -> None:
    """Fields, where they stand, how many values there are: wherever pieces end."""

    @given(bodies())
    @settings(deadline=None)
    def check(body: bytes) -> None:
        parsed = orjson.loads(body)
        found = outline_of(body)

        assert set(found.fields) == set(parsed)
        assert found.tally.values + 1 == values_in(parsed)
        assert not found.repeated
        for name, span in found.spans.items():
            assert orjson.loads(body[span.start : span.end]) == parsed[name]
            assert orjson.loads(body[span.key : span.start].rstrip().removesuffix(b":")) == name
            assert found.fields[name] == (parsed[name] if name in json_edit.READ else UNREAD)

    check()


@pytest.mark.usefixtures("_pieces")
def test_depth_is_counted_exactly_wherever_pieces_end() -> None:
    """One level more than may be is one too many, be it of lists or objects, beside others or alone."""
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'["[{",', b"]")):
        for beside in (b"", b"[[[]]],", b'"]]]",'):
            for levels, is_ok in ((MAX_DEPTH - 2, True), (MAX_DEPTH - 1, False)):
                body = b'{"x":[' + beside + opening * levels + b"1" + closing * levels + b"]}"
                assert is_too_deep(body) is not is_ok
                if is_ok:
                    assert outline_of(body).spans["x"].end == len(body) - 1
                else:
                    with pytest.raises(BodyTooComplex, match="128"):
                        outline_of(body)


@given(values)
def test_small_bodies_are_measured_the_same(value: Any) -> None:
    """By the depth that they have, whatever their strings look like."""
    for levels in (0, MAX_DEPTH - 5, MAX_DEPTH - 1, MAX_DEPTH):
        wrapped = b"[" * levels + orjson.dumps(value) + b"]" * levels
        assert is_too_deep(wrapped) == (levels + depth_of(value) > MAX_DEPTH)


@rows("unit", [b"{}", b"[]", b"1", b'""', b"null", b'{"a":1}', b" [ ] ", b'{"a":{}}'])
def test_values_are_counted_exactly(unit: bytes) -> None:
    """As many as may be pass, one more does not; the bound and its field are named."""
    body = b'{"messages":[' + b",".join([unit] * 5_000) + b"]}"
    count = values_in(orjson.loads(body)) - 1

    assert outline_of(body, count).tally.values == count
    with pytest.raises(BodyTooComplex, match=rf"{count - 1:,} JSON values.*server\.max_json_values"):
        outline_of(body, count - 1)


def test_commas_and_brackets_in_strings_are_no_values() -> None:
    """A table in one string is one value."""
    body = b'{"prompt":"' + b"1,2,[3],{4}\\n" * 200_000 + b'"}'

    assert outline_of(body, 1).tally.values == 1


def test_token_numbers_count_as_their_list() -> None:
    """Where texts may be lists of tokens, 2,048 of 512 each pass; other values are counted there as everywhere."""
    body = b'{"input":[' + b",".join([b"[" + b",".join([b"50256"] * 512) + b"]"] * 2_048) + b"]}"

    assert outline_of(body, counts_numbers=False).tally.values < 10_000
    with pytest.raises(BodyTooComplex):
        outline_of(body)
    with pytest.raises(BodyTooComplex):
        outline_of(b'{"input":[' + b"{}," * BOUND + b"1]}", counts_numbers=False)
    with pytest.raises(BodyTooComplex):
        outline_of(b'{"input":[' + b'"",' * BOUND + b"1]}", counts_numbers=False)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', '{,"a":1}', '{"a" 1}', '{a:1}', "{'a':1}",
        '{"a":tru}', '{"a":01}', '{"a":+1}', '{"a":1 2}', '{"a":1}{}', '{"a":1}x', '{"a":"', '{"a":"\\"}', '{"a":[}',
        '{"a":["x" "y"]}', '{"a":["x""y"]}', '{"a":[/*"*/"b"]}', '{"a":[//"\n"b"]}', "{\"a\":['\"']}", '{"a":[#"\n]}',
        '{"a":[\\"b\\"]}', '{"a":[NaN]}', '{"a":[\0]}', '{"a":\v1}', '{"\\x":1}', '{"\\ud800":1}', '{"a":{"b":1}"c":1}',
        '{/**/"a":1}', '{"n":1e999x}',
    ],
)  # fmt: skip
@pytest.mark.usefixtures("_pieces")
def test_what_is_no_json_is_refused(text: str) -> None:
    """Whatever would let another parser see other fields than were seen here: comments, other quotes, missing commas."""
    with pytest.raises(MalformedJson):
        outline_of(text.encode())


def test_repeated_fields_are_told_however_they_are_spelled() -> None:
    """The last one counts, as for parsers; what stands deeper is no field."""
    found = outline_of(rb'{"model":"a","x":{"model":"b"},"mod\u0065l":"c","\u006d":1,"m":2,"m ":3}')

    assert found.fields["model"] == "c"
    assert found.repeated == {"model", "m"}


def test_only_so_many_fields_and_short_values_are_read() -> None:
    """A long value is passed over, and thousands of keys are refused: each is a step of its own."""
    long = b'{"stream_options":{"a":"' + b"x" * json_edit.MAX_VALUE_BYTES + b'"},"model":"m"}'

    assert outline_of(long).fields == {"stream_options": UNREAD, "model": "m"}
    outline_of(b"{" + b",".join([b'"model":1'] * MAX_FIELDS) + b"}")
    with pytest.raises(BodyTooComplex, match="4,096 fields"):
        outline_of(b"{" + b",".join([b'"model":1'] * (MAX_FIELDS + 1)) + b"}")


def test_long_base64_is_told_from_text() -> None:
    """A picture is no text, whether the slash is escaped or not; neither are words, tables or escapes pictures."""
    data = b"QUJD/0+z" * 40_000
    shape = b'{"messages":[{"content":"%b"}]}'

    for written in (data, data.replace(b"/", rb"\/")):
        tally = outline_of(shape % (b"data:image/png;base64," + written + b"==")).tally
        assert tally.data_strings == 1
        assert tally.data_bytes > 0.75 * len(written)
    for text in (
        b"hello world " * 40_000,
        b"1,2,3\\n" * 60_000,
        rb"\u00e9" * 60_000,
        rb"\"" * 200_000,
        b"QUJD" * 1_000,
    ):
        assert outline_of(shape % text).tally.data_bytes == 0


def test_what_a_pass_over_all_bytes_shows() -> None:
    """The digest of it, and whether a picture may be shown: not by a text that speaks of one."""
    for words, shows in (
        (b'{"type":"image_url"}', True),
        (b'{"type" : "input_image"}', True),
        (b'{"type":"computer_screenshot"}', True),
        (b'{"text":"\\"image_url\\" image"}', False),
        (b'{"text":"images"}', False),
    ):
        for pad in range(262_144 - 40, 262_144 + 4, 7):
            body = b'{"p":"' + b" " * pad + b'","m":[' + words + b"]}"
            contents = done(read_contents(body))
            assert contents.digest == sha256(body).digest()
            assert contents.may_show_images == shows


def test_text_that_is_not_utf8_is_refused_wherever_it_is_cut() -> None:
    """A character may be cut in two by a piece; half of one at the end is none."""
    body = b'{"a":"' + "é漢😀".encode() * 60_000 + b'"}'

    done(read_contents(body))
    for broken in (body[:-3], body.replace(b"\xa9", b"\xff", 1), b'{"a":"\xed\xa0\x80"}'):
        with pytest.raises(MalformedJson, match="UTF-8"):
            done(read_contents(broken))
