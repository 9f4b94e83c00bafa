"""Schemas for Gemini: references, constants and alternatives of one are said in other words, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.gemini.out_request import plain_schema
from tests.dialects.google import TOOL, sent
from tests.rows import rows

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}


def with_defs(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "$defs": {"P": POINT, "a/b": {"type": "null"}}}


@rows(
    "schema,plain",
    [
        ({"$ref": "#/$defs/P"}, POINT),
        ({"$ref": "#/$defs/P", "description": "d"}, {**POINT, "description": "d"}),
        ({"$ref": "#/$defs/a~1b"}, {"type": "null"}),
        ({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}, {"anyOf": [POINT, {"type": "null"}]}),
        ({"type": "array", "items": {"$ref": "#/$defs/P"}}, {"type": "array", "items": POINT}),
        ({"allOf": [{"$ref": "#/$defs/P"}], "title": "t"}, {**POINT, "title": "t"}),
        ({"const": "x"}, {"type": "string", "enum": ["x"]}),
        ({"type": "number", "const": 2}, {"type": "number", "enum": [2]}),
        ({"const": True}, {"const": True}),
    ],
)
def test_the_same_is_said_in_words_that_are_known(schema: dict[str, Any], plain: dict[str, Any]) -> None:
    assert plain_schema(with_defs(schema)) == {"type": "object", "properties": {"a": plain}}


@rows("schema", [({"$ref": "https://x/y"},), ({"$ref": "#/$defs/none"},), ({"$ref": "#/$defs/P", "properties": {}},)])
def test_what_would_say_something_else_stays(schema: dict[str, Any]) -> None:
    """Of two lists of properties neither is to be lost."""
    assert plain_schema(with_defs(schema)) == with_defs(schema)


def test_a_schema_within_itself_keeps_its_reference() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}
    made = plain_schema({"$ref": "#/$defs/N", "$defs": {"N": node}})

    assert made == {**node, "$defs": {"N": node}}


def test_the_languages_own_name_is_left_out() -> None:
    assert plain_schema({"$schema": "https://json-schema.org/draft/2020-12/schema", **POINT}) == POINT


def test_names_of_properties_are_no_words_of_a_schema() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "const": {"type": "string"}}}
    assert plain_schema(schema) == schema


def test_what_would_be_too_large_goes_on_as_it_is() -> None:
    """Each step is used twice by the next: a schema of a few lines would become one of a million."""
    steps = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]} for n in range(30)}
    schema = {"$ref": "#/$defs/s0", "$defs": {**steps, "s30": {"type": "string"}}}
    assert plain_schema(schema) is schema


@pytest.mark.parametrize("field", ["tools", "response_format"])
def test_tools_and_formats_have_plain_schemas(field: str) -> None:
    schema = with_defs({"$ref": "#/$defs/P"})
    if field == "tools":
        tool = {"type": "function", "function": {**TOOL["function"], "parameters": schema}}
        found = sent(tools=[tool])["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]
    else:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        found = sent(response_format=form)["generationConfig"]["responseJsonSchema"]

    assert found == {"type": "object", "properties": {"a": POINT}}
