"""The work for a long conversation grows as its length does, not as its square: one call must not stop all others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import orjson

from gateway.dialects.anthropic.in_request import with_later_system
from gateway.dialects.anthropic.in_thoughts import without_thoughts
from gateway.dialects.base import ServerFacts
from gateway.dialects.issuers import taken_by, without
from gateway.dialects.openai.responses_request import flattened
from gateway.dialects.registry import pair_of
from tests.rows import rows

Json = dict[str, Any]
TAKES = taken_by("other", takes_words=True)


def events_of(work: Callable[[], object]) -> int:
    """How often a function or a generator is entered or left, in Python or below it."""
    events = 0

    def count(_frame: object, _event: str, _argument: object) -> None:
        nonlocal events
        events += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return events


def leave_out_thoughts(number: int) -> object:
    blocks = [{"type": "thinking", "thinking": "", "signature": f"s{one}"} for one in range(number)]
    body = orjson.dumps({"messages": [{"role": "assistant", "content": [*blocks, {"type": "text", "text": "x"}]}]})
    made, _ = without_thoughts(body, lambda _proof: True)
    assert orjson.loads(made)["messages"][0]["content"] == [{"type": "text", "text": "x"}]
    return made


def leave_out_reasoning(number: int) -> object:
    blocks = [{"reasoningContent": {"reasoningText": {"text": "", "signature": f"s{one}"}}} for one in range(number)]
    body = orjson.dumps({"messages": [{"role": "assistant", "content": [*blocks, {"text": "x"}]}]})
    made, _ = without(body, "converse", lambda _proof: True, TAKES)
    assert orjson.loads(made)["messages"][0]["content"] == [{"text": "x"}]
    return made


def tell_user(number: int) -> object:
    told = [{"role": "system", "content": str(one)} for one in range(number)]
    made, _ = with_later_system([{"role": "user", "content": "x"}, *told], is_taken=False)
    assert len(made) == 1
    assert len(made[0]["content"]) == number + 1
    return made


def wait_for_results(number: int) -> object:
    calls = [{"type": "tool_use", "id": str(one), "name": "f", "input": {}} for one in range(number)]
    told = [{"role": "system", "content": str(one)} for one in range(number)]
    made, _ = with_later_system([{"role": "assistant", "content": calls}, *told], is_taken=True)
    assert len(made) == number + 1
    return made


def flatten(number: int) -> object:
    names = [("a", f"b__{one}") if one % 2 else ("a__b", str(one - 1)) for one in range(number)]
    calls = [{"type": "function_call", "call_id": "c", "namespace": space, "name": name} for space, name in names]
    flat = flattened({"input": calls})
    assert len(flat.names) == len(set(names))
    return flat


def choose(number: int) -> object:
    function = {"type": "function", "name": "f", "parameters": {}}
    spaces = [{"type": "namespace", "name": f"n{one}", "tools": [function]} for one in range(number)]
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "namespace", "name": one["name"]} for one in spaces],
    }
    flat = flattened({"input": "x", "tools": spaces, "tool_choice": choice})
    assert len(flat.body["tool_choice"]["tools"]) == number
    return flat


@rows("work", [leave_out_thoughts, leave_out_reasoning, tell_user, wait_for_results, flatten, choose])
def test_the_work_grows_as_the_history_does(work: Callable[[int], object]) -> None:
    once, twice = events_of(lambda: work(300)), events_of(lambda: work(600))

    assert twice < 2.5 * once


def test_a_namespace_that_is_chosen_again_and_again_is_chosen_once() -> None:
    """Each time all of its tools were put there: a body of a megabyte became more than there is memory."""
    functions = [{"type": "function", "name": f"f{one}", "parameters": {}} for one in range(50)]
    space: Json = {"type": "namespace", "name": "n", "tools": functions}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "n"}] * 50}

    flat = flattened({"input": "x", "tools": [space], "tool_choice": choice})

    names = [one["name"] for one in flat.body["tool_choice"]["tools"]]
    assert names == [f"n__f{one}" for one in range(50)]


@rows(
    ("told", "expected"),
    [
        ([], "a"),
        (["b", "c"], "a\n\nb\n\nc"),
        (["b", [{"type": "input_text", "text": "c"}], "d"], ["a\n\nb", "c", "d"]),
        ([[{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]], ["a", "b", "c"]),
    ],
)
def test_instructions_at_the_beginning_become_one(told: list[Any], expected: Any) -> None:
    """For servers whose templates have them once."""
    items = [{"role": "developer", "content": one} for one in told]
    asked: Json = {"model": "m", "instructions": "a", "input": [*items, {"role": "user", "content": "x"}]}

    sent = pair_of("responses", "chat").translator.request(asked, ServerFacts(takes_developer=False), 0.0, lambda: "i")

    first, last = sent.body["messages"]
    content = first["content"]
    assert first["role"] == "system"
    assert (content if isinstance(content, str) else [part["text"] for part in content]) == expected
    assert last == {"role": "user", "content": "x"}
