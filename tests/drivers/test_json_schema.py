"""JSON Schemas: what cannot be used as one, and which of them may take long over a text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drivers.json_schema import MOST_BYTES, JsonSchema, SchemaUnusable, compile_schema, depth_of

Json = dict[str, Any]
values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["", "a", "secret"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abz"), inner, max_size=3)),
    max_leaves=8,
)
TREE = {
    "anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["x"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["y"]},
    ]
}


def schema(value: object) -> JsonSchema:
    return compile_schema(orjson.dumps(value))


def twice(ref: str, other: str | None = None) -> Json:
    """A subschema whose work doubles with every level, if the references lead to it."""
    ways = [{"properties": {"x": {"$ref": one}}} for one in (ref, other or ref)]
    return {"anyOf": ways, "properties": {"y": {"type": "integer"}}}


def test_references_that_are_written_otherwise_are_never_taken_for_cheap() -> None:
    names = {"$id": "http://a/b", "$ref": "c"}
    entangled: list[Json] = [
        {"$defs": {"a b": twice("#/$defs/a%20b")}, "$ref": "#/$defs/a%20b"},
        *(names | {"$defs": {"n": {"$id": "c"} | twice(ref)}} for ref in ("c", "./c", "/c", "http://a/c", "c#", "#")),
        {"$id": "http://a/b", "$defs": {"n": {"$anchor": "k"} | twice("http://a/b#k", "#k")}, "$ref": "#k"},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "definitions": {"n": {"id": "http://a/k"} | twice("http://a/k")},
            "allOf": [{"$ref": "http://a/k"}],
        },
        {"anyOf": [{"$ref": "https://json-schema.org/draft/2020-12/schema"}] * 4},
    ]
    for one in entangled:
        assert schema(one).is_dear(b'{"x":' * 25 + b"1" + b"}" * 25), one
    assert not schema({"$defs": {"a b": {"type": "integer"}}, "items": {"$ref": "#/$defs/a%20b"}}).is_dear(b"[1]")


def test_keywords_that_go_through_all_they_have_are_counted() -> None:
    many: Json = {"a": {}}
    for one in (
        {"items": {"enum": [{"a": at} for at in range(2000)]}},
        {"items": {"dependentRequired": {str(at): ["a"] for at in range(2000)}}},
        {"items": {"patternProperties": {f"^{at}": True for at in range(300)}}},
        {"items": {"multipleOf": 1e-300}},
    ):
        assert schema(one).is_dear(orjson.dumps([many] * 2000)), one
    light: list[Json] = [{"enum": ["a", "b", 3]}, {"multipleOf": 0.01}, {"pattern": r"^\d{4}-\d{2}-\d{2}$"}]
    for cheap in light:
        assert not schema({"items": cheap}).is_dear(orjson.dumps([1] * 200)), cheap


def test_patterns_that_may_take_seconds_are_dear_and_thousands_of_them_are_no_schema() -> None:
    for one in ("a[ab]{900}[^ab]", "(?:(?:a?b?){30}){30}[^ab]"):
        assert schema({"pattern": one}).is_dear(b'"' + b"a" * 100_000 + b'"'), one
        assert not schema({"pattern": one}).is_dear(b'"ab"'), one
    for many in (
        {"properties": {str(at): {"pattern": "[a-z]{900}"} for at in range(1000)}},
        {"patternProperties": {f"^{at}": True for at in range(2000)}},
    ):
        with pytest.raises(SchemaUnusable, match="patterns"):
            schema(many)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"{", "no JSON"),
        (b"[1]", "a schema is an object"),
        (b'{"type": 3}', "no JSON Schema"),
        (b'{"$ref": "https://example.com/other.json"}', "not followed"),
        (b'{"$ref": "file:///etc/hostname"}', "not followed"),
        (b'{"$schema": "https://example.com/meta"}', "meta-schema"),
        (b'{"pattern": "(?=a)b"}', "regex"),
        (rb'{"pattern": "(a)\\1"}', "regex"),
        (b'{"$ref": "#"}', "refers to itself"),
        (b'{"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}', "refers to itself"),
        (b'{"not":' * 200 + b"{}" + b"}" * 200, "levels deep"),
        (b'{"title": "' + b"x" * MOST_BYTES + b'"}', "bytes"),
    ],
)
def test_what_cannot_be_used_says_why(source: bytes, why: str) -> None:
    with pytest.raises(SchemaUnusable, match=why):
        compile_schema(source)


def test_what_grows_with_every_level_is_dear_and_what_only_goes_on_is_not() -> None:
    grows, goes_on = (
        schema(TREE),
        schema({"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}, "k": {"items": {"$ref": "#"}}}}),
    )
    flat, deep = b'{"a": 1}', b'{"a":' * 60 + b"1" + b"}" * 60
    assert (grows.is_dear(flat), grows.is_dear(deep)) == (False, True)
    assert not goes_on.is_dear(deep)
    assert goes_on.is_dear(b'"' + b"x" * 200_000 + b'"')
    doubled: Json = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    assert schema({"$defs": doubled | {"a40": {"type": "string"}}, "$ref": "#/$defs/a0"}).is_dear(b"1")


@given(values)
def test_the_levels_of_a_text_are_never_taken_for_fewer(value: object) -> None:
    def levels(one: object) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        return 0 if inner is None else 1 + max(map(levels, inner), default=0)

    assert depth_of(orjson.dumps(value)) >= levels(value)
