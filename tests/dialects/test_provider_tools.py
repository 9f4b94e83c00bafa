"""Tools of coding agents that other languages do not have: namespaces, and searches that a provider runs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import How
from gateway.dialects.openai.responses_request import flattened, qualified
from gateway.dialects.registry import pair_of
from tests.dialects.odd import odd_bodies
from tests.dialects.test_nothing_is_lost import TARGETS, Heard, Target
from tests.dialects.ways import STREAMS
from tests.rows import rows

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"x": {"type": "integer"}}}
USER: Json = {"role": "user", "content": "go"}
DOCS: Json = {
    "type": "namespace",
    "name": "mcp__docs__",
    "description": "The handbook.",
    "tools": [
        {"type": "function", "name": "search", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "patch"},
    ],
}
PLAIN: Json = {"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}
CODEX: Json = {
    "model": "m",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}],
    "tools": [PLAIN, DOCS, {"type": "web_search", "external_web_access": True}],
    "tool_choice": "auto",
    "store": False,
}
"""What Codex sends with its stock settings and a server of tools."""
HISTORY: Json = {
    "input": [
        {"role": "user", "content": "go"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "function_call", "call_id": "a", "namespace": "mcp__docs__", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "found"},
    ]
}
ELSEWHERE = [name for name, target in TARGETS.items() if target.speaks != "responses"]


def way(asked: str, name: str) -> Heard:
    return Heard(asked, TARGETS[name])


def made(asked: str, name: str, body: Json) -> tuple[Json, dict[str, How]]:
    """What is sent to a target, and what is lost on the way."""
    heard = way(asked, name)
    sent, gaps = heard._converted(body)
    assert heard.unknown == {}
    return sent, {gap.field: gap.how for gap in gaps}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_coding_agent_with_its_stock_tools_is_served(name: str) -> None:
    """At targets of each language: its namespaces become functions, its search is offered where there is one."""
    sent, lost = made("responses", name, {**CODEX, **HISTORY})

    assert How.REFUSED not in lost.values()
    assert lost["tools.namespace"] is How.APPROXIMATED
    assert lost["input.web_search_call"] is How.DROPPED
    told = orjson.dumps(sent)
    assert told.count(b'"mcp__docs__search"') >= 2  # the tool and its call of before
    assert b'"namespace"' not in told
    assert b"The handbook." in told
    has_search = b"web_search_20250305" in told
    assert (has_search is name.startswith("Claude") and "Bedrock" not in name) or not has_search
    assert lost.get("tools.web_search") is (None if has_search else How.DROPPED)


def test_calls_come_back_in_their_namespace() -> None:
    """Whole and streamed, of a function and of a tool with free text, by each way; a tool without one has none."""
    pair, facts = way("responses", "a server of its kind")._translator, way("responses", "a server of its kind")._facts
    asking = pair.request(CODEX, facts, 0.0, lambda: "id")
    names = {"mcp__docs__search": "search", "mcp__docs__patch": "patch", "shell": "shell"}
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": '{"input":"x"}'}} for name in names
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    whole = pair.answer(asking, {"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    reader, events = pair.reader(asking), []
    for number, call in enumerate(calls):
        delta = {"tool_calls": [{"index": number, **call}]}
        events.append({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    said = b"".join(reader.feed(b"data: " + orjson.dumps(one) + b"\n\n") for one in events) + reader.feed(
        b"data: [DONE]\n\n"
    )
    streamed = [orjson.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]

    expected = [
        ("mcp__docs__", "search", "function_call"),
        ("mcp__docs__", "patch", "custom_tool_call"),
        (None, "shell", "function_call"),
    ]
    for output in (whole["output"], streamed[-1]["response"]["output"]):
        assert [(one.get("namespace"), one["name"], one["type"]) for one in output] == expected
    assert [one["name"] for one in streamed if one["type"] == "response.function_call_arguments.done"] == [
        "search",
        "shell",
    ]
    assert whole["tools"][1] == DOCS


@rows(("spoken", "name"), [("messages", "Claude"), ("generate", "Gemini")])
def test_the_calls_of_other_languages_come_back_in_their_namespace(spoken: str, name: str) -> None:
    """Of a namespace, too, whose name leaves no room for those of its tools."""
    heard, space = way("responses", name), "n" * 60
    asking = heard._translator.request({**CODEX, "tools": [{**DOCS, "name": space}]}, heard._facts, 0.0, lambda: "id")
    assert asking.via is not None
    flat = next(iter(asking.via.namespaces))
    assert len(flat) <= 64
    reader = heard._translator.reader(asking)
    said = reader.feed(b"".join(STREAMS[spoken]).replace(b'"f"', b'"%b"' % flat.encode())) + reader.close(is_clean=True)
    ended = orjson.loads(said.strip().splitlines()[-1][6:])
    assert [(one["namespace"], one["name"]) for one in ended["response"]["output"] if "call_id" in one] == [
        (space, "search")
    ]


NAMES = st.text("ab_:", max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=5), st.lists(NAMES, max_size=3))
def test_each_tool_has_a_name_of_its_own(grouped: list[tuple[str, str]], plain: list[str]) -> None:
    """Whatever the names are; and the same in each turn, whichever calls the conversation has by then."""
    tools: list[Json] = [{"type": "function", "name": name} for name in plain]
    tools += [
        {"type": "namespace", "name": space, "tools": [{"type": "function", "name": name}]} for space, name in grouped
    ]
    calls = [{"type": "function_call", "namespace": space, "name": name, "call_id": "a"} for space, name in grouped]

    first, later = flattened({"tools": tools}), flattened({"tools": tools, "input": calls})

    pairs = {(space, name) for space, name in grouped if space and name}
    assert set(first.names.values()) == pairs
    assert len(first.names) == len(pairs)
    assert not first.names.keys() & set(plain)
    assert later.names == first.names
    for call, renamed in zip(calls, later.body["input"], strict=True):
        assert qualified(renamed, later.names) == call


@rows(
    ("choice", "told"),
    [
        ({"type": "function", "name": "search"}, {"type": "function", "function": {"name": "mcp__docs__search"}}),
        ({"type": "function", "name": "shell"}, {"type": "function", "function": {"name": "shell"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "mcp__docs__"}]},
            "required",
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "search"}]}, "auto"),
    ],
)
def test_a_tool_in_a_namespace_can_be_chosen(choice: Json, told: Any) -> None:
    sent, _ = made("responses", "a server of its kind", {**CODEX, "tool_choice": choice})
    assert sent["tool_choice"] == told
    if choice["type"] == "allowed_tools":
        assert all(tool["function"]["name"].startswith("mcp__docs__") for tool in sent["tools"])


PLACE: Json = {"type": "approximate", "city": "Ulm"}
SEARCHES: dict[str, tuple[Json, Json]] = {
    "responses": (
        {"input": "x"},
        {"type": "web_search", "filters": {"allowed_domains": ["a.b"]}, "user_location": PLACE},
    ),
    "messages": (
        {"max_tokens": 99, "messages": [{"role": "user", "content": "x"}]},
        {"type": "web_search_20260209", "name": "web_search", "allowed_domains": ["a.b"],
         "user_location": PLACE},
    ),
    "generate": ({"contents": [{"parts": [{"text": "x"}]}]}, {"googleSearch": {}}),
}  # fmt: skip
SAID: dict[str, Json] = {
    "Claude": {"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["a.b"],
               "user_location": PLACE},
    "Gemini": {"googleSearch": {}},
    "OpenAI by Responses": {"type": "web_search", "filters": {"allowed_domains": ["a.b"]},
                            "user_location": PLACE},
}  # fmt: skip
"""How the search is said by who has one."""
SEARCH_WAYS = [(asked, name) for asked in SEARCHES for name in TARGETS if TARGETS[name].speaks not in (asked, "vertex")
               and not (asked == "generate" and TARGETS[name].speaks == "generate")]  # fmt: skip


@pytest.mark.parametrize(("asked", "name"), SEARCH_WAYS)
def test_a_search_is_offered_where_there_is_one(asked: str, name: str) -> None:
    """In the target's own words; elsewhere the call goes without it, and says so."""
    body, search = SEARCHES[asked]
    sent, lost = made(asked, name, {**body, "model": "m", "tools": [search]})
    expected = SAID.get("Claude" if name.startswith("Claude") and "Bedrock" not in name else name)
    if expected is None:
        assert lost == {"tools.web_search": How.DROPPED} | {
            one: how for one, how in lost.items() if one != "tools.web_search"
        }
        assert not sent.get("tools")
        assert "toolConfig" not in sent
    else:
        wanted = (
            expected if asked != "generate" else {one: expected[one] for one in ("type", "name") if one in expected}
        )
        assert sent["tools"] == [wanted]
        assert lost.get("tools.web_search", How.APPROXIMATED) is How.APPROXIMATED


DEMANDS: dict[str, list[Any]] = {
    "responses": [{"type": "web_search"}, "required"],
    "messages": [{"type": "tool", "name": "web_search"}, {"type": "any"}],
}


FORCED = [
    orjson.dumps(choice)
    for choice in (
        {"type": "any"},
        {"type": "tool", "name": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        "required",
    )
]


@pytest.mark.parametrize(("asked", "name"), [way for way in SEARCH_WAYS if way[0] in DEMANDS])
def test_a_search_that_is_demanded_is_made_or_refused(asked: str, name: str) -> None:
    """Who demands it would be answered without."""
    body, search = SEARCHES[asked]
    for choice in DEMANDS[asked]:
        sent, lost = made(asked, name, {**body, "model": "m", "tools": [search], "tool_choice": choice})
        has_search = name == "OpenAI by Responses" or (name.startswith("Claude") and "Bedrock" not in name)
        assert (How.REFUSED in lost.values()) is not has_search
        assert not has_search or orjson.dumps(sent["tool_choice"]) in FORCED


def test_nothing_new_is_fetched_for_who_forbids_it() -> None:
    """OpenAI alone searches what it has kept: elsewhere the search is left out."""
    offline = {"type": "web_search", "external_web_access": False}
    for name in ("Claude", "Gemini"):
        sent, lost = made("responses", name, {"model": "m", "input": "x", "tools": [offline]})
        assert "tools" not in sent
        assert lost["tools.web_search"] is How.DROPPED


def test_claude_at_bedrock_gets_no_search() -> None:
    """All else of the request stays byte for byte."""
    pair = pair_of("messages", "claude")
    facts = Heard("chat", Target("bedrock", "converse", "us.anthropic.claude-haiku-4-5-20251001-v1:0"))._facts
    body, search = SEARCHES["messages"]
    given = orjson.dumps({**body, "model": "m", "tools": [search, {"name": "f", "input_schema": SCHEMA}]})

    _, sent, gaps = pair.request(given, facts, 0.0, lambda: "id")

    assert orjson.loads(sent)["tools"] == [{"name": "f", "input_schema": SCHEMA}]
    assert [(gap.field, gap.how) for gap in gaps] == [("tools.web_search", How.DROPPED)]
    alone = {**body, "model": "m", "tools": [search], "tool_choice": {"type": "auto"}}
    _, sent, _ = pair.request(orjson.dumps(alone), facts, 0.0, lambda: "id")
    assert not orjson.loads(sent).keys() & {"tools", "tool_choice"}


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.speaks != "messages"])
def test_a_tool_that_is_loaded_late_is_told_of_in_words(name: str) -> None:
    """Coding agents search their tools by themselves: what they have found is there from the start elsewhere."""
    use = {"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {"query": "q"}}
    found = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "tool_reference", "tool_name": "mcp__docs__search"}],
    }
    late = {"name": "mcp__docs__search", "input_schema": SCHEMA, "defer_loading": True}
    body = {
        "model": "m",
        "max_tokens": 99,
        "messages": [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}],
        "tools": [{"name": "ToolSearch", "input_schema": SCHEMA}, late],
    }
    sent, lost = made("messages", name, body)
    assert How.REFUSED not in lost.values()
    assert lost["messages.tool_reference"] is How.APPROXIMATED
    assert b"The tool mcp__docs__search can be called." in orjson.dumps(sent)


FINDER: Json = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": SCHEMA}
FOUND: Json = {"type": "function", "name": "found", "parameters": SCHEMA, "defer_loading": True}
LATE: list[Json] = [
    {"type": "additional_tools", "role": "developer", "tools": [DOCS]},
    USER,
    {"type": "tool_search_call", "execution": "client", "call_id": "s", "arguments": {"x": 1}},
    {"type": "tool_search_output", "execution": "client", "call_id": "s", "status": "completed", "tools": [FOUND]},
    {"type": "tool_search_output", "execution": "client", "call_id": "s", "status": "completed", "tools": [FOUND]},
]
"""What Codex sends with its newest models: tools that come with the input, and those that it has searched."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_tools_that_come_late_are_there_from_the_start(name: str) -> None:
    """Those of the input, and those that the caller has found; its search is a function, its calls and results are pairs."""
    sent, lost = made("responses", name, {"model": "m", "input": LATE[:-1], "tools": [PLAIN, FINDER]})
    told = orjson.dumps(sent)
    assert How.REFUSED not in lost.values()
    assert lost["input.additional_tools"] is lost["tools.tool_search"] is How.APPROXIMATED
    assert b"These tools can be called now: found" in told
    tools = orjson.dumps(sent.get("tools") or sent["toolConfig"])
    for one in (b'"shell"', b'"tool_search"', b'"mcp__docs__search"', b'"found"'):
        assert tools.count(one) == 1


def test_a_tool_that_is_loaded_again_is_there_once() -> None:
    """Providers refuse two of one name; the later one holds."""
    newer = {"type": "additional_tools", "role": "developer", "tools": [{**FOUND, "description": "new"}]}
    sent = flattened({"input": [*LATE[1:-1], newer], "tools": [FINDER]}).body
    assert [(one["name"], one.get("description")) for one in sent["tools"]] == [
        ("tool_search", "Finds tools."),
        ("found", "new"),
    ]


def test_a_search_of_tools_comes_back_as_one() -> None:
    """Whole and streamed, with its arguments as an object; a server's own is left out with what it has found."""
    heard = way("responses", "a server of its kind")
    asking = heard._translator.request({"model": "m", "input": "x", "tools": [FINDER]}, heard._facts, 0.0, lambda: "id")
    call = {"id": "c", "type": "function", "function": {"name": "tool_search", "arguments": '{"x":1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = heard._translator.answer(asking, {"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    reader = heard._translator.reader(asking)
    said = b""
    for delta in ({"tool_calls": [{"index": 0, **call}]}, {}):
        finish = None if delta else "tool_calls"
        said += reader.feed(
            b"data: %b\n\n" % orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        )
    events = [
        orjson.loads(line[6:])
        for line in (said + reader.feed(b"data: [DONE]\n\n")).splitlines()
        if line[:6] == b"data: "
    ]
    for output in (whole["output"], events[-1]["response"]["output"]):
        assert [(one["type"], one["execution"], one["call_id"], one["arguments"]) for one in output] == [
            ("tool_search_call", "client", "c", {"x": 1})
        ]
    kinds = [one["type"].removeprefix("response.") for one in events]
    assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    servers = [{"type": "tool_search_call", "execution": "server", "arguments": {}}, {**LATE[3], "execution": "server"}]
    sent, lost = made(
        "responses", "Claude", {"model": "m", "input": [USER, *servers], "tools": [{"type": "tool_search"}]}
    )
    assert [tool["name"] for tool in sent["tools"]] == ["found"]
    left_out = ("tools.tool_search", "input.tool_search_call", "input.tool_search_output")
    assert {lost[one] for one in left_out} == {How.DROPPED}


@given(odd_bodies("input", "tools", "type", "execution", "call_id", "arguments", "namespace", "name", "tool_choice"))
def test_any_tools_are_put_in_one_list(body: Json) -> None:
    """Nothing is raised, whatever comes; what was put in one is a list already."""
    flat = flattened(body)
    assert flattened(flat.body).names == {} or flat.body is body
