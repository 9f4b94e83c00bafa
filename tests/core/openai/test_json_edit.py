"""Surgery on JSON bodies: exactly one value changes, in whatever way the body is spelled."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai import sse
from gateway.core.openai.json_edit import (
    find_fields,
    has_lone_surrogate,
    insert_field,
    is_written_once,
    replace_field,
    with_include_usage,
    with_model,
)
from gateway.core.request_fields import json_value
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

HOLE = "\0"  # never in JSON, where it is escaped
SPACES = ("", "", "", " ", "\n", "\t", "\r\n  ")
TRICKY = (
    "model",
    '"model"',
    '"model":',
    'a\\"model',
    "\\",
    '"',
    "{",
    "}",
    "]",
    "[{",
    ",",
    ":",
    "stream_options",
    "é",
    "😀",
)

texts = st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)
seeds = st.integers(0, 2**32)


class Writer:
    """Writes JSON in one of its many spellings: white space anywhere, characters plain or escaped."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, value: str) -> str:
        return '"' + "".join(map(self._character, value)) + '"'

    def value(self, value: Any) -> str:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return "[" + ",".join(self._spaced(self.value(item)) for item in value) + self._space() + "]"
        if isinstance(value, dict):
            return self.members([(key, self.value(item)) for key, item in value.items()])
        return json.dumps(value)

    def members(self, members: list[tuple[str, str]]) -> str:
        written = (f"{self._spaced(self.text(key))}:{self._spaced(value)}" for key, value in members)
        return "{" + ",".join(written) + self._space() + "}"

    def around(self, fields: dict[str, Any], name: str, copies: int = 1) -> list[bytes]:
        """The pieces of a body in which `name` occurs that often, cut where its values belong."""
        members = [(key, self.value(value)) for key, value in fields.items() if key != name]
        for _ in range(copies):
            members.insert(self._random.randint(0, len(members)), (name, HOLE))
        return self._spaced(self.members(members)).encode().split(HOLE.encode())

    def _character(self, character: str) -> str:
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        if self._random.random() > 0.2 or ord(character) > 0xFFFF:
            return plain
        return f"\\u{ord(character):04x}"

    def _space(self) -> str:
        return self._random.choice(SPACES)

    def _spaced(self, text: str) -> str:
        return self._space() + text + self._space()


@BOUNDED
@given(objects, texts, texts, seeds)
def test_with_model_changes_the_models_value_and_no_other_byte(
    fields: dict[str, Any], old: str, new: str, seed: int
) -> None:
    """Whatever stands around it: nesting, escapes, white space, strings that look like the field."""
    writer = Writer(seed)
    before, after = writer.around(fields, "model")
    body = before + writer.text(old).encode() + after

    changed = with_model(body, new)

    assert changed == before + orjson.dumps(new) + after
    assert orjson.loads(changed) == {**orjson.loads(body), "model": new}


@BOUNDED
@given(objects, values, texts, seeds)
def test_replace_field_changes_a_value_of_any_kind(fields: dict[str, Any], old: Any, name: str, seed: int) -> None:
    """Scalars, strings and containers, under any name."""
    writer = Writer(seed)
    before, after = writer.around(fields, name)

    changed = replace_field(before + writer.value(old).encode() + after, name, b"[1]")

    assert changed == before + b"[1]" + after


@BOUNDED
@given(objects, st.lists(values, min_size=1, max_size=3), seeds)
def test_every_spelling_of_a_repeated_field_is_found(fields: dict[str, Any], copies: list[Any], seed: int) -> None:
    """Decoys deeper down or inside strings do not count; each one that counts is found with its value."""
    writer = Writer(seed)
    pieces = writer.around(fields, "model", len(copies))
    written = [writer.value(value).encode() for value in copies]
    body = pieces[0] + b"".join(value + piece for value, piece in zip(written, pieces[1:], strict=True))

    found = find_fields(body, "model")

    assert [body[field.start : field.end] for field in found] == written
    assert all(orjson.loads(b"{" + body[field.key : field.end] + b"}").keys() == {"model"} for field in found)
    assert is_written_once(body, "model") == (len(copies) == 1)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"a","mod\u0065l":"b"}',
        rb'{"mod\u0065l":"a","\u006dodel":"b"}',
        b'{"model":{"a":1},"x":[],"model" : "b"}',
        b'{"model":"a","messages":[{"model":"x"}],\n"model"\t:"b"}',
    ],
)
def test_two_models_are_seen_in_any_spelling(body: bytes) -> None:
    """Two parsers may disagree about which of two wins."""
    assert not is_written_once(body, "model")


@rows(
    "body",
    [
        b'{"model":"model"}',
        b'{"model":"a","messages":[{"model":"x"}],"tools":{"model":["model"]}}',
        rb'{"mod\u0065l":"a"}',
        rb'{"model":"a","x":"\"model\": \"b\"","y":"\"model"}',
        rb'{"model":"a","x":"caf\u00e9 model"}',
    ],
)
def test_one_model_among_decoys_is_one(body: bytes) -> None:
    """Only keys of the outermost object count."""
    assert is_written_once(body, "model")


@BOUNDED
@given(objects, seeds)
def test_asking_for_usage_adds_a_field_where_there_was_none(fields: dict[str, Any], seed: int) -> None:
    """The rest of the body stays as it came, in one piece."""
    fields.pop("stream_options", None)
    body = Writer(seed).value(fields).encode()

    changed = with_include_usage(body, None)

    assert orjson.loads(changed) == {**orjson.loads(body), "stream_options": {"include_usage": True}}
    assert changed.endswith(body.partition(b"{")[2])


@BOUNDED
@given(objects, scalars, seeds)
def test_asking_for_usage_replaces_options_that_are_none(fields: dict[str, Any], old: Any, seed: int) -> None:
    """`null`, in any spelling of its key, gives way."""
    writer = Writer(seed)
    before, after = writer.around(fields, "stream_options")

    changed = with_include_usage(before + writer.value(old).encode() + after, None)

    assert changed == before + b'{"include_usage":true}' + after


@BOUNDED
@given(objects, objects, st.booleans(), seeds)
def test_asking_for_usage_keeps_the_callers_other_options(
    fields: dict[str, Any], options: dict[str, Any], has_null: bool, seed: int
) -> None:
    """An `include_usage` of null counts as not said; its neighbours stay."""
    writer = Writer(seed)
    if has_null:
        options["include_usage"] = None
    before, after = writer.around(fields, "stream_options")

    changed = with_include_usage(before + writer.value(options).encode() + after, options)

    assert changed.startswith(before)
    assert changed.endswith(after)
    asked = orjson.loads(changed)["stream_options"]
    assert asked == {**orjson.loads(orjson.dumps(options)), "include_usage": True}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"stream_options":null,"stream_options":{"a":1}}', {"a": 1}),
        (b'{"stream_options":{"a":1},"stream_options":null}', None),
        (b'{"stream_options":{"b":{}},"stream_options":{"include_usage":null,"a":1}}', {"include_usage": None, "a": 1}),
    ],
)
def test_of_repeated_options_the_last_counts_as_it_does_for_the_parser(body: bytes, options: object) -> None:
    """What was parsed and what is edited are the same one."""
    asked = orjson.loads(with_include_usage(body, options))["stream_options"]

    assert asked == {**(options if isinstance(options, dict) else {}), "include_usage": True}


@pytest.mark.parametrize("body", [b"{}", b" { } ", b"\n{\r\n\t}"])
def test_the_first_field_of_an_empty_object_gets_no_comma(body: bytes) -> None:
    """White space does not make an object less empty."""
    assert orjson.loads(insert_field(body, "a", b"1")) == {"a": 1}


def test_walking_over_a_long_string_takes_no_memory() -> None:
    """An image in a message is a string of megabytes; passing it must not cost a multiple of that."""
    body = b'{"a":"model","image":"%s","model":"m"}' % (b"A" * 2_000_000)
    tracemalloc.start()

    assert is_written_once(body, "model")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


HALVES = st.lists(
    st.text(max_size=3) | st.sampled_from(["\ud83d", "\ude00", "\\", "\\u", "ud83d", '"', "\U0001f600"]), max_size=8
)


@given(HALVES.map("".join))
def test_half_of_a_surrogate_pair_is_read_as_a_replacement(text: str) -> None:
    """As decoders do that cannot keep it; whole pairs, and backslashes that are text, are left alone."""
    written = json.dumps({"a": text}).encode()
    joined = json.loads(written)["a"]  # halves that meet are a pair
    assert sse.json_object(written) == {"a": re.sub("[\ud800-\udfff]", "\ufffd", joined)}
    assert has_lone_surrogate(written) is (re.search("[\ud800-\udfff]", joined) is not None)
    assert sse.json_object(written[:-1]) is None
    assert json_value(written) == sse.json_object(written), "a client sends back what it was given"
