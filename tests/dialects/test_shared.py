"""What the conversions to all providers share: turns with their calls in pairs, media, strict schemas."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.dialects.schema_tools.chat_parts import Media, data_url, file_of, outline, text_in
from gateway.dialects.schema_tools.schema import SchemaTooDeep, Size, object_schema, size_of, strict_schema
from gateway.dialects.schema_tools.tools import safe_id, turns
from tests.dialects.odd import odd_bodies
from tests.rows import rows

IDS = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def calling(*ids: str, arguments: Any = "{}") -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": f"f_{id}", "arguments": arguments}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "ok"}


USER = {"role": "user", "content": "go"}


def test_results_are_one_turn_and_know_their_tools() -> None:
    """In the order in which they came, which need not be that of the calls."""
    found = list(turns([USER, calling("a", "b"), result("b"), result("a"), USER]))

    assert [turn.role for turn in found] == ["user", "assistant", "tool", "user"]
    assert [(one.id, one.name) for one in found[2].results] == [("b", "f_b"), ("a", "f_a")]


def test_old_calls_have_ids_from_their_places() -> None:
    """Functions were called one at a time, and without ids."""
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": '{"x":1}'}}
    found = list(turns([old, {"role": "function", "name": "f", "content": "ok"}]))

    assert (found[0].calls[0].id, found[0].calls[0].input) == (found[1].results[0].id, {"x": 1})


@rows(
    "said, place",
    [
        ("no list", "messages"),
        (["x"], "messages[0]"),
        ([{"role": "robot"}], "messages[0].role"),
        ([USER, result("a")], "messages[1].tool_call_id"),
        ([calling("a"), USER, result("a")], "messages[0]"),
        ([calling("a", "b"), result("a"), USER], "messages[0]"),
        ([calling("a", "b"), result("a")], "messages[0]"),
        ([calling("a"), result("a"), result("a")], "messages[2].tool_call_id"),
        ([calling("a", "a"), result("a")], "messages[0].tool_calls"),
        ([calling("a"), {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ([calling("a", arguments='{"x":')], "messages[0].tool_calls[0].function.arguments"),
        ([calling("a", arguments="[1]")], "messages[0].tool_calls[0].function.arguments"),
        ([calling("a", arguments=7)], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ],
)
def test_what_cannot_be_paired_is_refused_by_its_place(said: Any, place: str) -> None:
    """It is the caller's mistake, and never repaired in silence."""
    with pytest.raises(InvalidRequest) as refused:
        list(turns(said))

    assert refused.value.param == place


def test_plain_messages_are_passed_over() -> None:
    """Words, calls beside words, and results of tools in words: every language can say those."""
    plain = [USER, calling("a"), {**calling("b"), "content": "so"}, {**result("a"), "content": "ok"}]

    assert outline(plain).notable == []


@rows("field", [{"reasoning_content": "hm"}, {"refusal": "no"}, {"audio": {"id": "a"}}, {"name": "bob"}])
def test_what_stands_beside_calls_is_looked_at(field: dict[str, Any]) -> None:
    """Also where the message has no `content`, which some clients leave out."""
    turn = {**calling("a"), **field}
    del turn["content"]

    assert outline([USER, turn, {**turn, "content": "so"}]).notable == [(1, turn), (2, {**turn, "content": "so"})]


@rows("arguments", ["", " ", None, "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    """However they are said."""
    assert next(turns([calling("a", arguments=arguments), result("a")])).calls[0].input == {}


@given(st.lists(odd_bodies("role", "content", "tool_calls", "tool_call_id", "function_call", "name"), max_size=5))
def test_any_messages_are_read_or_refused(messages: list[Any]) -> None:
    """Nothing else is raised."""
    with suppress(InvalidRequest):
        list(turns(messages))


@given(st.lists(st.text(min_size=1, max_size=99), unique=True, max_size=8))
def test_ids_stay_apart(ids: list[str]) -> None:
    """Whatever a provider calls them; what is fine stays as it is."""
    made = [safe_id(id, IDS) for id in ids]

    assert len(set(made)) == len(ids)
    assert all(IDS.fullmatch(id) for id in made)
    assert [id for id in ids if IDS.fullmatch(id)] == [new for id, new in zip(ids, made, strict=True) if id == new]


@rows(
    "url, media",
    [
        ("data:image/png;base64,AAAA", Media("image/png", "AAAA")),
        ("DATA:image/JPG;base64,AAAA", Media("image/jpeg", "AAAA")),
        ("data:text/plain;charset=utf-8;base64,AAAA", Media("text/plain", "AAAA")),
        ("data:,a%20b", Media("text/plain", "YSBi")),
        ("data:nothing", Media("text/plain", "")),
        ("https://x/y.png", None),
    ],
)
def test_data_urls_are_taken_apart(url: str, media: Media | None) -> None:
    """The data stays as it is."""
    assert data_url(url) == media


def test_files_are_known_by_their_url_or_name() -> None:
    """Chat completions take both; texts are read where a provider wants texts."""
    assert file_of("data:application/pdf;base64,AAAA", "x.txt") == Media("application/pdf", "AAAA")
    assert file_of("data:application/octet-stream;base64,AAAA", "x.pdf").type == "application/pdf"
    assert file_of("AAAA", "a.b.TXT") == Media("text/plain", "AAAA")
    assert file_of("AAAA", None).type == ""
    assert text_in(Media("text/plain", "w6k="), "x") == "é"
    with pytest.raises(InvalidRequest):
        text_in(Media("text/plain", "/w=="), "x")


def test_a_strict_schema_stays_as_it_is() -> None:
    """What is kept is no loss."""
    point = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    maybe = {"enum": ["a", None]}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"type": ["string", "null"]}, "c": {"anyOf": [point, maybe]}},
        "required": ["a", "b", "c"],
        "additionalProperties": False,
        "$defs": {"p": point},
    }

    assert strict_schema(schema) == schema
    assert size_of(schema) == Size(optional=0, unions=2)


@pytest.mark.parametrize("odd", [[], {}, 7])
def test_a_format_that_is_none_is_described(odd: Any) -> None:
    """As one that is not known."""
    made = strict_schema({"type": "string", "format": odd})
    assert made == {"type": "string", "description": f"{{format: {odd}}}"}


def test_what_a_strict_schema_cannot_say_is_described() -> None:
    """Objects are closed, alternatives are any of them; the rest is in words."""
    number = {"type": "integer", "minimum": 1, "description": "A number"}
    schema = {"type": "object", "properties": {"a": number, "b": {"oneOf": [{"type": "string", "format": "regex"}]}}}

    assert strict_schema(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "A number\n\n{minimum: 1}"},
            "b": {"anyOf": [{"type": "string", "description": "{format: regex}"}]},
        },
        "additionalProperties": False,
    }
    assert size_of(schema).optional == 2


def test_schemas_without_an_end_are_found() -> None:
    """No provider compiles one."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}
    for schema in (
        {"$ref": "#/$defs/t", "$defs": {"t": tree}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
    ):
        with pytest.raises(SchemaTooDeep):
            strict_schema(schema)
    deep: dict[str, Any] = {}
    for _ in range(99):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaTooDeep):
        strict_schema(deep)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["object", "array", "string", "#", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "allOf", "$defs", "$ref", "required", "enum", "const", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANY)
def test_any_schema_is_made_strict_and_stays_so(schema: Any) -> None:
    """Nothing else is raised, and a second time changes nothing."""
    object_schema(schema)
    try:
        made = strict_schema(schema)
    except SchemaTooDeep:
        return
    size_of(made)
    if "description" not in str(made):
        assert strict_schema(made) == made
