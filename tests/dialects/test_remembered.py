"""Turns of Claude's whose thoughts the caller drops: what is remembered of them goes back as it was, or not at all."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.base import ModelFacts, ServerFacts
from gateway.dialects.memory import IN_ID, SignedElsewhere, ThoughtMemory, UnknownMemory, VisibleTurn
from gateway.dialects.registry import pair_of
from tests.dialects.claude import ADAPTIVE, BOUND, BUDGET, OTHER, PAIR, REDACTED, THINKING, TOOL, USER, text

MARK = {"type": "ephemeral"}
SECOND = {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}
FIRST = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1, "y": [1.5, True, None, "é"]}}
CONTENT: list[dict[str, Any]] = [THINKING, text("so "), FIRST, REDACTED, text("on"), SECOND]
"""Thoughts, words and calls in an order that chat completions have no way to say."""
SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": CONTENT,
    "stop_reason": "tool_use",
}


def memory_of(
    tenant: str = "t", issuer: str = "anthropic", *, of: ThoughtMemory | None = None, bound: bool = False
) -> Any:
    return (ThoughtMemory(lambda: 0.0) if of is None else of).of(tenant, None, issuer, keeps_all=bound)


def facts(memory: Any, model: ModelFacts = ADAPTIVE) -> ServerFacts:
    return ServerFacts(issuer="anthropic", model=model, memory=memory)


def events(content: list[dict[str, Any]]) -> bytes:
    """The stream that tells a content in small pieces."""
    made: list[dict[str, Any]] = [{"type": "message_start", "message": {**SAID, "content": []}}]
    for place, block in enumerate(content):
        start, deltas = dict(block), list[dict[str, Any]]()
        if block["type"] == "text":
            start["text"] = ""
            deltas = [{"type": "text_delta", "text": one} for one in block["text"]]
        elif block["type"] == "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": one} for one in block["thinking"]]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            start["input"] = {}
            written = orjson.dumps(block["input"]).decode() if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in written]
        made.append({"type": "content_block_start", "index": place, "content_block": start})
        made += [{"type": "content_block_delta", "index": place, "delta": one} for one in deltas]
        made.append({"type": "content_block_stop", "index": place})
    made.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}})
    made.append({"type": "message_stop"})
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in made)


def asked(**body: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], "tools": [TOOL, OTHER], **body}


def answer(memory: Any, content: list[dict[str, Any]] = CONTENT) -> dict[str, Any]:
    """The message of a client that keeps of an answer what OpenAI's own have."""
    sent = PAIR.request(asked(), facts(memory), 1.7e9, lambda: "abc")
    whole = PAIR.answer(sent, {**SAID, "content": content})["choices"][0]["message"]
    return {name: whole[name] for name in ("role", "content", "tool_calls") if name in whole}


def after(message: dict[str, Any], *more: dict[str, Any], **body: Any) -> dict[str, Any]:
    """The next request, with the results of the calls."""
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in message["tool_calls"]]
    return asked(messages=[USER, message, *results, *more], **body)


def replayed(memory: Any, body: dict[str, Any], model: ModelFacts = ADAPTIVE) -> Any:
    """The content of the model's turn as it goes back."""
    made = PAIR.request(body, facts(memory, model), 1.7e9, lambda: "abc").body
    return next(one["content"] for one in made["messages"] if one["role"] == "assistant")


def gaps(memory: Any, body: dict[str, Any], model: ModelFacts = ADAPTIVE) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps(body, facts(memory, model))}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_goes_back_as_it_came(streamed: bool) -> None:
    """All of it, in its order, whether it was streamed or not; nothing is lost."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(None if streamed else memory_of(of=of))
    if streamed:
        reader = PAIR.reader(PAIR.request(asked(), facts(memory_of(of=of)), 1.7e9, lambda: "abc"))
        reader.feed(events(CONTENT))

    assert orjson.dumps(replayed(memory_of(of=of), after(message))) == orjson.dumps(CONTENT)
    assert gaps(memory_of(of=of), after(message)) == {}
    assert replayed(None, after(message)) == [text("so on"), FIRST, SECOND]  # as it is without a memory


def test_clients_write_the_same_in_another_way() -> None:
    """Arguments with spaces and in another order, words in parts, the unsigned thoughts, a signature in an id."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))
    message["content"] = [text("so "), text("on")]
    message["reasoning_content"] = "hm"
    call = message["tool_calls"][0]
    call["function"]["arguments"] = '{ "y": [1.5, true, null, "\\u00e9"],\n "x": 1 }'
    call["id"] += f"{IN_ID}AbC+/="

    assert replayed(memory_of(of=of), after(message)) == CONTENT
    assert gaps(memory_of(of=of), after(message)) == {}
    made = PAIR.request(after(message), facts(memory_of(of=of)), 1.7e9, lambda: "abc").body
    assert [one["tool_use_id"] for one in made["messages"][2]["content"]] == ["toolu_1", "toolu_2"]
    no_memory = PAIR.request(after(message), facts(None), 1.7e9, lambda: "abc").body
    assert [one["tool_use_id"] for one in no_memory["messages"][2]["content"]] == ["toolu_1", "toolu_2"]


def test_callers_of_responses_have_it_too() -> None:
    """Their calls are items, and what was thought goes back with none of them."""
    pair = pair_of("responses", "messages")
    of = ThoughtMemory(lambda: 0.0)
    tools = [{"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in "fg"]

    def request(given: Any) -> Any:
        body = orjson.dumps({"model": "m", "input": given, "tools": tools})
        return pair.request(body, facts(memory_of(of=of)), 1.7e9, lambda: "abc")

    items = orjson.loads(pair.answer(request("go")[0], orjson.dumps(SAID)))["output"]
    calls = [one["call_id"] for one in items if one["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": id, "output": "ok"} for id in calls]
    sent, _, lost = request([USER, *items, *results])

    assert [one["content"] for one in sent.body["messages"] if one["role"] == "assistant"] == [CONTENT]
    assert lost == []


CHANGES = {
    "an argument": lambda one: one["tool_calls"][0]["function"].update(arguments='{"x":2,"y":[1.5,true,null,"é"]}'),
    "the kind of an argument": lambda one: one["tool_calls"][0]["function"].update(
        arguments='{"x":true,"y":[1.5,true,null,"é"]}'
    ),
    "a name": lambda one: one["tool_calls"][0]["function"].update(name="h"),
    "another id": lambda one: one["tool_calls"][1].update(id="toolu_3"),
    "words": lambda one: one.update(content="so off"),
    "no words": lambda one: one.update(content=None),
    "one call less": lambda one: one["tool_calls"].pop(),
    "the order": lambda one: one["tool_calls"].reverse(),
    "a refusal": lambda one: one.update(refusal="no"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_turn_that_was_changed_has_lost_its_thoughts(change: Any) -> None:
    """They were of another one."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))
    change(message)

    sent = replayed(memory_of(of=of), after(message))
    assert sent == replayed(None, after(message))
    assert "thinking" not in {one["type"] for one in sent}


@pytest.mark.parametrize(
    "echo",
    [
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "other", "signature": "T", "format": "anthropic-claude-v1"}
            ]
        },
        {"thinking_blocks": [{"type": "thinking", "thinking": "other", "signature": "T"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "unsigned"}]},
    ],
)
def test_who_sends_thoughts_back_is_believed(echo: dict[str, Any]) -> None:
    """Whatever is remembered."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of)) | echo

    assert replayed(memory_of(of=of), after(message)) == replayed(None, after(message))


def test_marks_for_the_cache_are_kept() -> None:
    """At the words, or the call, that the caller has marked; thoughts have none."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))
    message["tool_calls"][0]["cache_control"] = MARK
    message["content"] = [text("so on") | {"cache_control": MARK}]

    sent = replayed(memory_of(of=of), after(message))
    assert sent == [
        THINKING,
        text("so "),
        FIRST | {"cache_control": MARK},
        REDACTED,
        text("on") | {"cache_control": MARK},
        SECOND,
    ]


def test_another_providers_turns_are_told_as_lost() -> None:
    """Where they are remembered; elsewhere nobody knows of them."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))

    assert gaps(memory_of(of=of, issuer="bedrock"), after(message)) == {"messages.reasoning_details": "dropped"}
    assert replayed(memory_of(of=of, issuer=""), after(message)) == [text("so on"), FIRST, SECOND]
    assert gaps(memory_of("other", of=of), after(message)) == {}


def test_a_budget_for_thinking_stays_where_the_thoughts_are_remembered() -> None:
    """Without them the model refuses it, so it is left out, and told; what is not known yet is not told before."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))
    body = after(message, reasoning_effort="low")

    made = PAIR.request(body, facts(memory_of(of=of), BUDGET), 1.7e9, lambda: "abc").body
    assert made["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert gaps(memory_of(of=of), body, BUDGET)["reasoning_effort"] == "approximated"
    assert gaps(memory_of(), body, BUDGET)["reasoning_effort"] == "dropped"
    assert gaps(UnknownMemory(), body, BUDGET)["reasoning_effort"] == "approximated"


@pytest.mark.parametrize("body", [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}])
def test_who_wants_no_thinking_gets_none_back(body: dict[str, Any]) -> None:
    """A turn that does not think takes no thoughts."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=of))

    assert replayed(memory_of(of=of), after(message, **body)) == [text("so on"), FIRST, SECOND]


def test_bound_thoughts_go_back_as_far_as_all_is_remembered() -> None:
    """Behind a turn that is not, they were thought after something else; turns without thoughts count, too."""
    of = ThoughtMemory(lambda: 0.0)

    def bound() -> Any:
        return memory_of(of=of, bound=True)

    plain, last = FIRST | {"id": "toolu_p"}, FIRST | {"id": "toolu_l"}
    turns: list[list[dict[str, Any]]] = [[THINKING, FIRST], [plain], [THINKING, last]]
    said = [answer(bound(), turn) for turn in turns]
    result = [{"role": "tool", "tool_call_id": one["tool_calls"][0]["id"], "content": "ok"} for one in said]
    both = [one for pair in zip(said, result, strict=True) for one in pair]

    def contents(messages: list[Any]) -> list[Any]:
        body = PAIR.request(asked(messages=[USER, *messages]), facts(bound(), BOUND), 1.7e9, lambda: "abc").body
        return [one["content"] for one in body["messages"] if one["role"] == "assistant"]

    assert contents(both) == turns
    both[2] = both[2] | {"content": "changed"}
    assert contents(both)[0] == turns[0]
    assert contents(both)[2] == [turns[2][1]]
    lossy = gaps(bound(), asked(messages=[USER, *both], response_format={"type": "json_object"}), BOUND)
    assert lossy["messages.reasoning_details"] == "dropped"


@pytest.mark.parametrize(
    "content",
    [
        [text("no call"), THINKING],
        [FIRST],
        [{"type": "thinking", "thinking": "unsigned"}, FIRST],
        [THINKING, {"type": "server_tool_use", "id": "s", "name": "w", "input": {}}, FIRST],
        [THINKING, {"type": "text", "text": "x" * 1_000_001}, FIRST],
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_cannot_be_repeated_is_not_remembered(content: list[dict[str, Any]], streamed: bool) -> None:
    """Or need not be; nor what is too long."""
    of = ThoughtMemory(lambda: 0.0)
    sent = PAIR.request(asked(), facts(memory_of(of=of)), 1.7e9, lambda: "abc")
    if streamed:
        PAIR.reader(sent).feed(_in_one(content))
    else:
        PAIR.answer(sent, {**SAID, "content": content})

    assert (len(of), of.bytes) == (0, 0)


def _in_one(content: list[dict[str, Any]]) -> bytes:
    """The stream of a long content, each block in one event."""
    made: list[dict[str, Any]] = [{"type": "message_start", "message": {**SAID, "content": []}}]
    made += [{"type": "content_block_start", "index": place, "content_block": one} for place, one in enumerate(content)]
    made.append({"type": "message_stop"})
    return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in made)


@pytest.mark.parametrize("cut", range(0, 2600, 97))
def test_a_stream_that_was_cut_is_not_remembered(cut: int) -> None:
    """Its turn is not the model's."""
    of = ThoughtMemory(lambda: 0.0)
    whole = events(CONTENT)
    reader = PAIR.reader(PAIR.request(asked(), facts(memory_of(of=of)), 1.7e9, lambda: "abc"))
    reader.feed(whole[:cut])
    reader.close(is_clean=True)

    assert len(of) == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.builds(
        lambda told, sign: {"type": "thinking", "thinking": told, "signature": sign}, st.text(), st.text(min_size=1)
    )
    | st.builds(lambda data: {"type": "redacted_thinking", "data": data}, st.text(min_size=1))
    | st.builds(lambda said: {"type": "text", "text": f"a{said}"}, st.text())
    | st.builds(
        lambda given: {"type": "tool_use", "name": "f", "input": given}, st.dictionaries(st.text(), JSON, max_size=3)
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(BLOCKS, st.integers(1, 50))
def test_any_turn_goes_back_as_it_came(blocks: list[dict[str, Any]], step: int) -> None:
    """Byte for byte, by a stream cut anywhere and by a whole answer, for its own tenant alone."""
    content = [THINKING] + [
        {**one, "id": f"toolu_{n}"} if one["type"] == "tool_use" else one for n, one in enumerate(blocks)
    ]
    content.append({"type": "tool_use", "id": "toolu_last", "name": "f", "input": {}})
    whole, streamed = ThoughtMemory(lambda: 0.0), ThoughtMemory(lambda: 0.0)
    message = answer(memory_of(of=whole), content)
    reader = PAIR.reader(PAIR.request(asked(), facts(memory_of(of=streamed)), 1.7e9, lambda: "abc"))
    given_bytes = events(content)
    for at in range(0, len(given_bytes), step):
        reader.feed(given_bytes[at : at + step])

    for of in (whole, streamed):
        sent = replayed(memory_of(of=of), after(message))
        assert _same(sent, content)
        assert replayed(memory_of("other", of=of), after(message)) == replayed(None, after(message))


def _same(sent: Any, content: Any) -> bool:
    """Equal as JSON, the order of a block's fields aside."""
    return [orjson.dumps(one, option=orjson.OPT_SORT_KEYS) for one in sent] == [
        orjson.dumps(one, option=orjson.OPT_SORT_KEYS) for one in content
    ]


@settings(max_examples=100, deadline=None)
@given(JSON, JSON, st.booleans())
def test_any_odd_turn_is_read(calls: Any, content: Any, is_list: bool) -> None:
    """Without an error of ours: what makes no sense is refused elsewhere."""
    of = ThoughtMemory(lambda: 0.0)
    given_calls = [{"id": "a", "function": {"name": content, "arguments": calls}}] if is_list else calls
    message = {"role": "assistant", "tool_calls": given_calls, "content": content}

    PAIR.gaps(asked(messages=[message], reasoning_effort="low"), facts(memory_of(of=of), BUDGET))
    assert VisibleTurn([("a", content, calls)], content).digest()


def test_a_turn_that_is_too_deep_is_nobodys() -> None:
    """It cannot be written down again."""
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    of = ThoughtMemory(lambda: 0.0)
    memory = memory_of(of=of)
    memory.keep(VisibleTurn([("a", "f", deep)], ""), [], has_thoughts=True)

    assert (VisibleTurn([("a", "f", deep)], "").digest(), len(of)) == (b"", 0)
    assert memory.find(VisibleTurn([("a", "f", {})], "")) is None
    memory.keep(VisibleTurn([("a", "f", {})], " "), [1], has_thoughts=True)
    assert memory_of(of=of).find(VisibleTurn([("a", "f", "")], None)) == [1]
    assert memory_of(of=of, issuer="x").find(VisibleTurn([("a", "f", "{}")], [])) is SignedElsewhere.BY_ANOTHER


@pytest.mark.parametrize("place", [[], {}, "0", 1.5, None, True])
@pytest.mark.parametrize("kind", ["text", "thinking", "signature", "input_json", "citations"])
def test_a_block_without_a_sound_place_ends_nothing(place: Any, kind: str) -> None:
    """Nor is it taken for a part of the turn."""
    of = ThoughtMemory(lambda: 0.0)
    reader = PAIR.reader(PAIR.request(asked(), facts(memory_of(of=of)), 1.7e9, lambda: "abc"))
    delta = {
        "type": f"{kind}_delta",
        "text": "x",
        "thinking": "x",
        "signature": "x",
        "partial_json": "x",
        "citation": {},
    }
    odd = orjson.dumps({"type": "content_block_delta", "index": place, "delta": delta})
    start, *rest = events(CONTENT).split(b"\n\n")
    reader.feed(b"\n\n".join((start, b"data: " + odd, *rest)))

    said = VisibleTurn([("toolu_1", "f", FIRST["input"]), ("toolu_2", "g", {})], "so on")
    assert memory_of(of=of).find(said) == CONTENT
