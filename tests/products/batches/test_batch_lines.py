"""Lines of a batch's input: which are right, what is said of the others, and where they are."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.products.batches.input import (
    ENTRY_BYTES,
    MOST_PROBLEMS,
    CheckedLine,
    IndexEntry,
    InputCheck,
    LineCutter,
    LineProblem,
    LineRules,
    check_line,
    pack_entry,
    read_index,
)
from gateway.products.jobs.lines import read_line
from gateway.products.jobs.rules import BatchRules
from tests.rows import rows


def fault_of_model(name: str) -> LineProblem | None:
    return LineProblem("model_not_found", "no such model", "body.model") if name == "unknown" else None


RULES = LineRules("/chat/completions", fault_of_model)


def line(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi: there"}]}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **changes}


def problem(text: bytes) -> LineProblem:
    found = check_line(text, RULES)
    assert isinstance(found, LineProblem), found
    return found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(
    IDS,
    st.dictionaries(st.text(max_size=8).filter(lambda n: n not in ("model", "stream")), JSON, max_size=4),
    st.booleans(),
)
def test_whatever_a_body_holds_a_good_line_is_good_and_its_body_stays_as_it_is(
    custom_id: str, extra: dict[str, Any], ascii_only: bool
) -> None:
    """However the writer spaces and escapes it."""
    body = json.dumps({"model": "gpt-4o", **extra}, ensure_ascii=ascii_only, separators=(" , ", " :  "))
    said = json.dumps(custom_id, ensure_ascii=ascii_only)
    text = (
        f'{{ "custom_id" : {said},"url":"/chat/completions", "body":{body} ,"method":"POST", "note":{{"body":1}}}}'
    ).encode("utf-8", "surrogatepass")
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:  # a lone surrogate
        return

    checked = check_line(text, RULES)

    assert isinstance(checked, CheckedLine)
    assert checked.model == "gpt-4o"
    assert read_line(text)[:2] == (custom_id, body.encode("utf-8", "surrogatepass"))
    assert read_line(text).parsed == orjson.loads(body)
    last = f'{{"n":-1.5e3,"o":[{{"body":2}}],"custom_id":{said},"body" : {body} }} '.encode("utf-8", "surrogatepass")
    assert read_line(last) == read_line(text)
    assert read_line(last.replace(b'"o":[{"body":2}],', b"")) == read_line(text)


@rows(
    ("changes", "code", "param"),
    [
        ({"custom_id": None}, "invalid_request", "custom_id"),
        ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_request", "custom_id"),
        ({"custom_id": 7}, "invalid_request", "custom_id"),
        ({"method": "GET"}, "invalid_request", "method"),
        ({"method": "post"}, "invalid_request", "method"),
        ({"url": "/v1/embeddings"}, "url_mismatch", "url"),
        ({"url": "/v1/v1/chat/completions"}, "url_mismatch", "url"),
        ({"url": ["/v1/chat/completions"]}, "url_mismatch", "url"),
        ({"body": "text"}, "invalid_request", "body"),
        ({"body": {}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": 4}}, "invalid_request", "body.model"),
        ({"body": {"model": ""}}, "invalid_request", "body.model"),
        ({"body": {"model": "a\nb"}}, "invalid_request", "body.model"),
        ({"body": {"model": "unknown"}}, "model_not_found", "body.model"),
        ({"body": {"model": "gpt-4o", "stream": True}}, "invalid_request", "body.stream"),
        ({"body": {"model": "gpt-4o", "stream": 1}}, "invalid_request", "body.stream"),
    ],
)
def test_what_is_wrong_is_named_by_field(changes: dict[str, Any], code: str, param: str) -> None:
    """With OpenAI's code."""
    found = problem(orjson.dumps(line(**changes)))

    assert (found.code, found.param) == (code, param)


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_a_missing_field_is_named(name: str) -> None:
    """As OpenAI names it."""
    value = line()
    del value[name]

    assert problem(orjson.dumps(value)) == (
        LineProblem("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    )


GOOD = orjson.dumps(line())


@rows(
    "text",
    [
        b"{",
        b"[]",
        b'"a"',
        b"null",
        b"NaN",
        b"\xef\xbb\xbf" + GOOD,
        b"\xff\xfe" + GOOD,
        GOOD.replace(b"there", b"\xff"),
        GOOD + GOOD,
        GOOD.replace(b"there", b"\\ud800"),
        GOOD.replace(b'"method"', b'"url":"/v1/other","method"'),
        GOOD.replace(b'"model"', b'"mod\\u0065l":"other","model"'),
        GOOD.replace(b'"role"', b'"role":"system","role"'),
        GOOD.replace(b'"messages":[', b'"messages":' + b"[" * 200).replace(b"]}}", b"]" * 200 + b"}}"),
        GOOD.replace(b'"messages":[', b'"messages":' + b"[" * 2000).replace(b"]}}", b"]" * 2000 + b"}}"),
    ],
)
def test_what_parsers_might_read_differently_is_no_line(text: bytes) -> None:
    """Also a name that occurs twice in one object, escaped or not, at any depth."""
    assert problem(text).code == "invalid_json_line"


def test_a_stream_that_is_off_is_fine() -> None:
    """It asks for nothing."""
    for off in (False, None):
        assert isinstance(check_line(orjson.dumps(line(body={"model": "m", "stream": off})), RULES), CheckedLine)


@given(st.lists(st.tuples(st.integers(0, 2**40 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1))))
def test_the_index_reads_as_it_was_written(entries: list[tuple[int, int, int]]) -> None:
    """Twelve bytes a line."""
    packed = b"".join(pack_entry(IndexEntry(*entry)) for entry in entries)

    assert len(packed) == ENTRY_BYTES * len(entries)
    assert read_index(packed) == entries


@given(
    st.lists(st.binary(max_size=20).map(lambda text: text.translate(None, b"\r\n")), max_size=8),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_lines_are_cut_whatever_the_pieces(lines: list[bytes], end: bytes, is_ended: bool, size: int) -> None:
    """LF or CRLF, the last one ended or not; each is found at its offset."""
    data = end.join(lines) + (end if is_ended and lines else b"")
    cutter = LineCutter(1000)

    found = [one for at in range(0, len(data), size) for one in cutter.feed(data[at : at + size])]
    found += cutter.end()

    expected = lines if not lines or lines[-1] or is_ended else lines[:-1]
    assert [text for _, text in found] == expected
    assert all(data[offset:].startswith(text or b"") for offset, text in found)


def test_a_line_without_end_is_not_held() -> None:
    """A file may be one line of half a gigabyte."""
    cutter = LineCutter(1000)
    for _ in range(100):
        assert list(cutter.feed(b"x" * 500)) == []
        assert sum(map(len, cutter._parts)) <= 1000

    assert list(cutter.feed(b"\nshort\n")) == [(0, None), (50_001, b"short")]


def check(data: bytes, **rules: Any) -> InputCheck:
    found = InputCheck(RULES, BatchRules(**rules), 10_000)
    cutter = LineCutter(10_000)
    for at in range(0, len(data), 77):
        for offset, text in cutter.feed(data[at : at + 77]):
            found.add(offset, text)
    for offset, text in cutter.end():
        found.add(offset, text)
    found.end()
    return found


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for one in lines)


def test_a_good_file_has_its_index_and_its_models() -> None:
    """Empty lines at the end are nobody's fault."""
    body = {"model": "small"}
    data = jsonl(line("a"), line("b", body=body), line("c")).replace(b"\n", b"\r\n") + b"\r\n \n"

    found = check(data)
    index = read_index(found.take_index())

    assert not found.problems
    assert found.total == 3
    assert found.models == ["gpt-4o", "small"]
    assert [entry.model for entry in index] == [0, 1, 0]
    assert [read_line(data[entry.offset :][: entry.length]).custom_id for entry in index] == ["a", "b", "c"]
    assert found.take_index() == b""


def test_problems_are_told_by_line() -> None:
    """From 1 on, empty lines counted."""
    data = jsonl(line("a")) + b"\n" + jsonl(line("a"), line("b", method="PUT")) + b"x" * 20_000 + b"\n{"

    found = check(data)

    assert [(one.line, one.code) for one in found.problems] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_request"),
        (5, "invalid_request"),
        (6, "invalid_json_line"),
    ]


def test_of_many_problems_a_hundred_are_kept_and_the_others_counted() -> None:
    """A file of garbage makes no answer of megabytes."""
    found = check(b"{\n" * 1234)

    assert len(found.problems) == MOST_PROBLEMS + 1
    assert found.problems[-1].message == "1134 more lines have problems."


def test_a_line_of_millions_of_values_is_not_read() -> None:
    """It would keep the loop for seconds; commas in a text are none of them."""
    crowded = orjson.dumps(line()).replace(b'"hi: there"', b"[" + b",".join([b"0"] * 1_000_100) + b"]")
    text = orjson.dumps(line()).replace(b"hi: there", b"a," * 1_000_100)

    assert problem(crowded).code == "invalid_request"
    assert isinstance(check_line(text, RULES), CheckedLine)


def test_a_file_of_empty_lines_is_neither_remembered_nor_read_to_its_end() -> None:
    """There may be hundreds of millions of them in one file."""
    found = check(b"\n" * 450 + jsonl(line("a")), max_lines=500)
    endless = InputCheck(RULES, BatchRules(max_lines=500), 10_000)
    for at in range(501):
        assert not endless.is_hopeless
        endless.add(at, b"")

    assert (len(found.problems), found.problems[-1].message) == (MOST_PROBLEMS + 1, "350 more lines have problems.")
    assert endless.is_hopeless
    assert [one.code for one in endless.problems] == ["invalid_json_line"]
    assert len(endless._blank) <= MOST_PROBLEMS


def test_bounds_of_the_whole_file() -> None:
    """Too many lines, none at all, several models where one is wanted."""
    lines = [line(str(number)) for number in range(4)]
    other = line("other", body={"model": "other"})

    assert [one.code for one in check(jsonl(*lines), max_lines=3).problems] == ["too_many_tasks"]
    assert check(jsonl(*lines), max_lines=3).is_hopeless
    assert [one.code for one in check(b"").problems] == ["empty_file"]
    assert [one.code for one in check(b" \n\r\n").problems] == ["empty_file"]
    assert [one.code for one in check(jsonl(*lines, other), mixed_models=False).problems] == ["model_mismatch"]
    assert not check(jsonl(*lines, other)).problems
