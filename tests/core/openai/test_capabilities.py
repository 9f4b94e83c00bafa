"""What a call needs is read from any body, and compared with what a target can do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.bodies import Capabilities, Needs, lacks, needs_of
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=10)
words = st.sampled_from(
    [
        *("messages", "input", "content", "output", "type", "tools", "functions", "response_format", "text", "format"),
        *("image_url", "input_image", "json_schema", "role"),
    ]
)
json_values = st.recursive(
    plain | words, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=20
)
json_objects = st.dictionaries(words, json_values, max_size=6)

FUNCTION = {"type": "function", "function": {"name": "f"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SHOWN = {"type": "input_image", "image_url": "https://example.com/a.png"}
TEXT = {"type": "text", "text": "image_url"}


def said(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


@rows(
    ("body", "needs"),
    [
        pytest.param({"messages": [{"role": "user", "content": "hi"}]}, Needs(), id="chat: a word"),
        pytest.param({"input": "hi"}, Needs(), id="responses: a word"),
        pytest.param({}, Needs(), id="nothing"),
        pytest.param({"tools": [FUNCTION]}, Needs(tools=True), id="tools"),
        pytest.param({"functions": [{"name": "f"}]}, Needs(tools=True), id="functions of old"),
        pytest.param({"tools": [], "functions": []}, Needs(), id="no tools in the list"),
        pytest.param({"tools": None}, Needs(), id="null tools"),
        pytest.param({"messages": said(TEXT, PICTURE)}, Needs(images=True), id="chat: a picture"),
        pytest.param({"messages": said(PICTURE) + said(TEXT) * 50}, Needs(images=True), id="a picture long ago"),
        pytest.param({"input": said(SHOWN)}, Needs(images=True), id="responses: a picture"),
        pytest.param({"messages": said({"type": "image", "source": {}})}, Needs(images=True), id="messages: a picture"),
        pytest.param(
            {"messages": said({"type": "tool_result", "content": [{"type": "image"}]})},
            Needs(images=True),
            id="messages: a picture in a tool's result",
        ),
        pytest.param({"messages": said({"type": "tool_result", "content": "image"})}, Needs(), id="messages: a result"),
        pytest.param(
            {"messages": said({"type": "document", "source": {"type": "base64"}})},
            Needs(images=True),
            id="messages: a document of pages",
        ),
        pytest.param(
            {"messages": said({"type": "document", "source": {"type": "text"}})},
            Needs(),
            id="messages: a text document",
        ),
        pytest.param(
            {"output_config": {"format": {"type": "json_schema"}}},
            Needs(structured_output=True),
            id="messages: structured output",
        ),
        pytest.param({"input": [SHOWN]}, Needs(images=True), id="responses: a part among the messages"),
        pytest.param(
            {"input": [{"type": "function_call_output", "output": [SHOWN]}]},
            Needs(images=True),
            id="responses: a tool has answered with a picture",
        ),
        pytest.param(
            {"input": [{"type": "computer_call_output", "output": {"type": "computer_screenshot"}}]},
            Needs(images=True),
            id="responses: a screenshot",
        ),
        pytest.param({"messages": said(TEXT, {"type": "input_audio"})}, Needs(), id="sound"),
        pytest.param({"response_format": {"type": "json_schema"}}, Needs(structured_output=True), id="chat: a schema"),
        pytest.param({"response_format": {"type": "json_object"}}, Needs(), id="chat: any JSON"),
        pytest.param({"response_format": {"type": "text"}}, Needs(), id="chat: text"),
        pytest.param(
            {"text": {"format": {"type": "json_schema"}}}, Needs(structured_output=True), id="responses: a schema"
        ),
        pytest.param({"text": {"format": {"type": "text"}}}, Needs(), id="responses: text"),
        pytest.param({"messages": said({"type": ["image_url"]}, {"type": {}}, None)}, Needs(), id="odd types"),
        pytest.param({"text": "json_schema", "response_format": "json_schema"}, Needs(), id="not objects"),
        pytest.param(
            {"tools": [FUNCTION], "messages": said(PICTURE), "response_format": {"type": "json_schema"}},
            Needs(tools=True, images=True, structured_output=True),
            id="everything",
        ),
    ],
)
def test_needs_are_read_from_the_body(body: dict[str, Any], needs: Needs) -> None:
    """Of chat completions and of responses."""
    assert needs_of(body) == needs
    assert needs_of(body, 123) == needs._replace(tokens=123)


@BOUNDED
@given(json_objects)
def test_odd_bodies_never_raise(body: dict[str, Any]) -> None:
    """Whatever stands where; booleans come out."""
    assert {type(need) for need in needs_of(body)[:3]} == {bool}


def test_only_parts_of_messages_are_looked_at() -> None:
    """A body that is nested without end is not followed, and of one that is long only the newest parts are read."""
    deep: Any = PICTURE
    for _ in range(10_000):
        deep = [deep]

    assert not needs_of({"messages": deep}).images
    assert not needs_of({"messages": said(deep)}).images
    assert not needs_of({"messages": said(PICTURE) + said(TEXT) * 10_000}).images
    assert needs_of({"messages": said(TEXT) * 10_000 + said(PICTURE)}).images


ALL = Needs(tools=True, images=True, structured_output=True, tokens=10**9)


@rows(
    ("capabilities", "missing"),
    [
        pytest.param(Capabilities(), None, id="nobody says: everything"),
        pytest.param(Capabilities(tools=False), "tools", id="tools"),
        pytest.param(Capabilities(images=False), "images", id="images"),
        pytest.param(Capabilities(structured_output=False), "structured output", id="structured output"),
        pytest.param(Capabilities(context_window=128_000), "a larger context window", id="context window"),
    ],
)
def test_what_is_missing_is_named(capabilities: Capabilities, missing: str | None) -> None:
    """And only who needs it is turned away."""
    assert lacks(ALL, capabilities) == missing
    assert lacks(Needs(tokens=100), capabilities) is None
    assert capabilities.is_restricted == (missing is not None)


@pytest.mark.parametrize(
    ("tokens", "missing"), [(1000, None), (1250, None), (1251, "a larger context window"), (0, None)]
)
def test_a_context_window_is_missed_by_a_quarter_at_least(tokens: int, missing: str | None) -> None:
    """Estimates err: who may fit goes, and the provider has the last word."""
    assert lacks(Needs(tokens=tokens), Capabilities(context_window=1000)) == missing


@BOUNDED
@given(
    st.builds(Needs, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2000)),
    st.builds(Capabilities, st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(1, 2000)),
)
def test_a_target_lacks_something_only_if_one_need_is_not_met(needs: Needs, capabilities: Capabilities) -> None:
    """Each need alone is met where all of them are."""
    alone = [
        Needs(tools=needs.tools),
        Needs(images=needs.images),
        Needs(structured_output=needs.structured_output),
        Needs(tokens=needs.tokens),
    ]

    found = [word for word in [lacks(need, capabilities) for need in alone] if word is not None]

    assert lacks(needs, capabilities) == (found[0] if found else None)
