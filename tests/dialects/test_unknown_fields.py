"""Fields that a target's language does not have do not go there, whoever's they are."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config.schema import Kind
from gateway.core.types import How
from gateway.dialects.base import OPENAIS_FIELDS, Form, ServerFacts, form, known_part
from gateway.dialects.openai.fields import CHAT, RESPONSES
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects.odd import odd_bodies

Json = dict[str, Any]
CODEX: Json = {
    "model": "m",
    "input": "hi",
    "client_metadata": {"session_id": "s", "x-codex-installation-id": "i"},
    "prompt_cache_key": "s",
    "safety_identifier": "u",
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "text": {"verbosity": "low"},
    "temperature": 0.5,
    "user": "u",
    "top_k": 5,
}
COMMON = {"model", "messages", "temperature", "user"}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_kind_of_server_gets_the_fields_that_it_knows(kind: str) -> None:
    """Of a caller of Responses; the rest is named, under names of ours."""
    pair = pair_of("responses", "chat")
    facts = TargetLanguages(kind, frozenset(("chat",))).facts(pair, "m")

    sent = pair.translator.request(CODEX, facts, 0.0, lambda: "id")

    known = {name for name in facts.knows if name in CODEX or name == "verbosity"}
    assert sent.body.keys() == COMMON | known
    lost = {gap.field for gap in sent.gaps or () if gap.how is How.DROPPED}
    asked = {"prompt_cache_key", "safety_identifier", "service_tier", "metadata", "top_k"}
    assert lost == {"other", *(asked - known)} | (set() if "verbosity" in known else {"text.verbosity"})
    assert (kind in ("openai", "azure", "openrouter")) is (facts.knows >= OPENAIS_FIELDS)


def test_what_the_config_sets_goes_to_its_target() -> None:
    """Whoever sets a field knows that the server takes it."""
    pair = pair_of("responses", "chat")
    sets = frozenset(("chat_template_kwargs",))
    facts = TargetLanguages("vllm", frozenset(("chat",)), sets=sets).facts(pair, "m")
    body = {"model": "m", "input": "x", "chat_template_kwargs": {"enable_thinking": False}, "mine": 1}

    sent = pair.translator.request(body, facts, 0.0, lambda: "id")

    assert sent.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert [(gap.field, gap.how) for gap in sent.gaps or ()] == [("other", How.DROPPED)]


def test_fields_of_a_chat_completion_that_responses_lack_stay_here() -> None:
    """At the top and within."""
    translator = pair_of("chat", "responses").translator
    schema = {"name": "x", "schema": {"type": "object", "x-mine": 1}, "mine": 1}
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x", "mine": 1}], "metadata": {}, "mine": 1}
        ],
        "client_metadata": {"a": "b"},
        "response_format": {"type": "json_schema", "json_schema": schema},
        "tools": [{"type": "function", "mine": 1, "function": {"name": "f", "mine": 1, "parameters": {"mine": 1}}}],
    }

    sent = translator.request(body, ServerFacts(), 0.0, lambda: "id")

    assert sent.body["tools"] == [{"type": "function", "name": "f", "parameters": {"mine": 1}, "strict": False}]
    assert sent.body["text"] == {"format": {"type": "json_schema", "name": "x", "schema": schema["schema"]}}
    assert sent.body["input"] == [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]
    assert "client_metadata" not in sent.body
    assert {gap.field for gap in sent.gaps or ()} == {"messages.other", "other", "response_format.other", "tools.other"}


LEAF = form("a.other", "x y")
TREE = form("other", "x", {"t": form("t.other", "type x", inner=LEAF)}, inner=LEAF, several=LEAF)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "t", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "x", "y", "inner", "several", "z"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "x", "y", "inner", "several", "z"]), VALUES, max_size=6))
def test_the_walk_leaves_what_is_known(body: Json) -> None:
    """The object itself where nothing is unknown; else without that, and a second walk finds nothing more."""
    lost: set[str] = set()
    made = known_part(body, TREE, lost)

    assert (made is body) or (made != body)
    again: set[str] = set()
    assert known_part(made, TREE, again) is made
    assert again == set()
    assert lost == set() or made is not body


@given(odd_bodies("input", "tools", "tool_choice", "text", "messages", "content", "function", "type"))
def test_the_walk_is_total(body: Json) -> None:
    """On any JSON."""
    for one in (CHAT, RESPONSES):
        assert isinstance(one, Form)
        known_part(body, one, set())


class CountedName(str):
    """A name of a field that counts how often it is looked up or put."""

    __slots__ = ()
    looked_up: ClassVar[list[str]] = []

    def __hash__(self) -> int:
        self.looked_up.append(self)
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def test_many_unknown_fields_are_left_out_in_one_pass() -> None:
    """Of one object, and of many in a list; each one made everything before and behind it be copied."""
    body: Json = {CountedName(f"a{number}"): 1 for number in range(300)}
    CountedName.looked_up.clear()

    assert known_part(body, TREE, set()) == {}
    assert len(CountedName.looked_up) <= 4 * 300

    several = [{"x": number, "z": 1} for number in range(300)]
    made = known_part({"several": several}, TREE, set())
    assert made == {"several": [{"x": number} for number in range(300)]}
    assert several[0] == {"x": 0, "z": 1}
