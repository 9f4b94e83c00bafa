"""Callers of Responses at servers with chat completions: what goes out, what is told of losses, what comes back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import MalformedAnswer, ServerFacts
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import facts_of
from tests.dialects.odd import odd_bodies
from tests.rows import rows

PAIR = pair_of("responses", "chat").translator
PLAIN = ServerFacts()
OPENAI = facts_of("openai")
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "f", "arguments": '{"x":1}'}
RESULT = {"type": "function_call_output", "call_id": "call_a", "output": "ok"}
CUSTOM = {"type": "custom", "name": "patch", "description": "Applies a patch."}


def sent(facts: ServerFacts = PLAIN, **body: Any) -> dict[str, Any]:
    """The chat completion that a request becomes."""
    return PAIR.request({"model": "m", **body}, facts, 1.7e9, lambda: "abc").body


def messages(*items: Any) -> list[Any]:
    """The messages that items become."""
    found: list[Any] = sent(input=list(items))["messages"]
    return found


def gaps(**body: Any) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps({"model": "m", **body}, ServerFacts())}


def answered(message: dict[str, Any], finish: str = "stop", *, asked: dict[str, Any] | None = None, **rest: Any) -> Any:
    """The response that a chat completion becomes."""
    request = PAIR.request({"model": "m", "input": "x", **(asked or {})}, ServerFacts(), 1.7e9, lambda: "abc")
    return PAIR.answer(request, {"model": "m", "choices": [{"message": message, "finish_reason": finish}], **rest})


# Requests.


def test_a_text_is_a_users_message_behind_the_instructions() -> None:
    """The instructions come first, in the role that the server knows."""
    assert sent(input="hi", instructions="be brief")["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert sent(OPENAI, input="hi", instructions="be brief")["messages"][0]["role"] == "developer"


def test_what_a_turn_of_the_model_made_is_one_message() -> None:
    """Reasoning, words and parallel calls belong together, or servers miss the pairing of calls and results."""
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]}
    other = CALL | {"id": "fc_2", "call_id": "call_b"}

    found = messages(
        {"role": "user", "content": "go"}, reasoning, said, CALL, other, RESULT, RESULT | {"call_id": "call_b"}
    )

    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["reasoning_content"] == "hm"
    assert found[1]["content"] == "let me see"
    assert [call["id"] for call in found[1]["tool_calls"]] == ["call_a", "call_b"]
    assert [message["tool_call_id"] for message in found[2:]] == ["call_a", "call_b"]


def test_a_turn_that_only_calls_has_no_content() -> None:
    """And reasoning that cannot go back leaves no empty message."""
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}

    assert messages(encrypted, CALL, RESULT)[0]["content"] is None
    assert messages(encrypted, {"role": "user", "content": "hi"}) == [{"role": "user", "content": "hi"}]
    assert gaps(input=[encrypted]) == {"input.reasoning": "dropped"}


def test_two_words_of_the_model_are_two_messages() -> None:
    """Nobody said them at once."""
    said = {"role": "assistant", "content": "one"}

    assert [message["content"] for message in messages(said, said | {"content": "two"})] == ["one", "two"]


def test_parts_keep_their_order() -> None:
    """Texts, pictures, files and sound."""
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]
    content = messages({"role": "user", "content": parts})[0]["content"]

    assert [part["type"] for part in content] == ["text", "image_url", "file", "input_audio"]
    assert content[1]["image_url"] == {"url": "data:image/png;base64,AA", "detail": "low"}


def test_pictures_of_a_tool_follow_its_results() -> None:
    """Chat completions take them from users only; they stand behind all results of the turn."""
    shown = {"type": "input_image", "image_url": "https://x/y.png"}
    output = [{"type": "input_text", "text": "here"}, shown]
    other = CALL | {"call_id": "call_b"}

    found = messages(
        CALL, other, RESULT | {"output": output}, RESULT | {"call_id": "call_b"}, {"role": "user", "content": "so?"}
    )

    assert [message["role"] for message in found] == ["assistant", "tool", "tool", "user", "user"]
    assert found[1]["content"] == "here"
    assert [part["type"] for part in found[3]["content"]] == ["text", "image_url"]
    assert gaps(input=[RESULT | {"output": output}]) == {"input.function_call_output": "approximated"}


def test_what_a_tool_shows_stays_in_its_result_where_the_target_has_it_there() -> None:
    """Claude, Gemini and Bedrock take pictures in results; moved to a user, they are somebody else's words."""
    output = [{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    body = {"model": "m", "input": [{"role": "user", "content": "go"}, CALL, RESULT | {"output": output}]}

    claude = pair_of("responses", "messages").translator
    made = claude.request(body, ServerFacts(issuer="anthropic"), 0.0, lambda: "abc")

    assert [part["type"] for part in made.body["messages"][-1]["content"][0]["content"]] == ["text", "image"]
    assert len(made.body["messages"][-1]["content"]) == 1
    assert {gap.field for gap in made.gaps or ()} == {"tools"}


def test_what_a_conversation_goes_on_without_is_left_out() -> None:
    """A word to shorten it, which only OpenAI understands, and what a provider has searched for."""
    user = {"role": "user", "content": "x"}
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    assert messages(user, search, {"type": "compaction_trigger"}) == [user]
    for spoken in ("messages", "generate", "converse"):
        body = {"model": "m", "input": [user, {"type": "compaction_trigger"}]}
        gaps_there = pair_of("responses", spoken).translator.gaps(body, ServerFacts())
        assert [(gap.field, gap.how.value) for gap in gaps_there] == [("input.compaction_trigger", "dropped")]


def test_tools_and_their_choice_are_nested() -> None:
    """And keep whether they are strict."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    made = sent(input="x", tools=[tool], tool_choice={"type": "function", "name": "f"})

    assert made["tools"] == [
        {"type": "function", "function": {name: tool[name] for name in ("name", "parameters", "strict")}}
    ]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


def result(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "ok"}


def test_thoughts_and_words_between_calls_do_not_part_them_from_their_results() -> None:
    """One message has all calls of a turn, whatever stood between; the next turn is another."""
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm "}]}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "on it"}]}
    made = sent(input=[thought, call("a"), thought, words, call("b"), result("a"), result("b"), call("c"), result("c")])

    assert [message["role"] for message in made["messages"]] == ["assistant", "tool", "tool", "assistant", "tool"]
    first = made["messages"][0]
    assert [one["id"] for one in first["tool_calls"]] == ["a", "b"]
    assert (first["content"], first["reasoning_content"]) == ("on it", "hm hm ")
    assert "reasoning_content" not in sent(OPENAI, input=[thought, words])["messages"][0]


@rows(
    ("items", "param"),
    [
        ([call("a")], "input[0]"),
        ([call("a"), {"role": "user", "content": "x"}, result("a")], "input[0]"),
        ([call("a"), call("b"), result("b")], "input[0]"),
        ([result("a")], "input[0].call_id"),
        ([call("a"), result("a"), result("a")], "input[2].call_id"),
        ([result("a"), call("a")], "input[0].call_id"),
    ],
)
def test_a_call_and_its_result_are_a_pair(items: list[Any], param: str) -> None:
    """What cannot be paired is the caller's to mend: nothing is left out, and nothing made up."""
    with pytest.raises(InvalidRequest) as refused:
        sent(input=items)
    assert refused.value.param == param


def test_what_a_server_would_refuse_alone_is_left_out() -> None:
    """Options of tools without tools, a bound on log probabilities without these; and what only OpenAI knows goes there."""
    made = sent(input="x", parallel_tool_calls=False, top_logprobs=0, store=False)
    assert not made.keys() & {"parallel_tool_calls", "top_logprobs", "store", "n"}
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    asked: dict[str, Any] = {
        "input": [{"role": "user", "content": [part]}],
        "store": False,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    }
    own = sent(OPENAI, **asked)
    assert own["store"] is False
    assert own["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert own["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert gaps(**asked) == {"input.prompt_cache_breakpoint": "dropped"}


def test_only_allowed_tools_are_offered() -> None:
    """Where the choice names some."""
    tools = [{"type": "function", "name": name} for name in "fgh"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    made = sent(input="x", tools=tools, tool_choice=choice)

    assert [tool["function"]["name"] for tool in made["tools"]] == ["g"]
    assert made["tool_choice"] == "required"
    assert gaps(tools=tools, tool_choice=choice) == {"tool_choice.allowed_tools": "approximated"}


def test_free_text_goes_through_a_function_and_comes_back_as_text() -> None:
    """Where the server knows no custom tools; a model that gives no JSON has given the text itself."""
    turn: list[Any] = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ]
    made = sent(input=turn, tools=[CUSTOM])
    assert made["tools"][0]["function"]["parameters"]["required"] == ["input"]
    assert made["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"input":"a \\"b\\""}'
    for arguments, text in (('{"input":"*** Begin"}', "*** Begin"), ("*** Begin", "*** Begin")):
        call = {"id": "c", "type": "function", "function": {"name": "patch", "arguments": arguments}}
        item = answered({"content": None, "tool_calls": [call]}, "tool_calls", asked={"tools": [CUSTOM]})["output"][0]
        assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", text, "c")
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    own = sent(OPENAI, input=turn, tools=[CUSTOM | {"format": grammar}])
    nested = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}}
    assert own["tools"][0]["custom"]["format"] == nested
    assert own["messages"][0]["tool_calls"][0]["custom"] == {"name": "patch", "input": 'a "b"'}
    described = sent(input="x", tools=[CUSTOM | {"format": grammar}])["tools"][0]["function"]["description"]
    assert "start: WORD" in described


def test_options_have_their_other_names() -> None:
    """Bounds, formats, effort, log probabilities; what only Responses know is left out."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    made = sent(
        input="x",
        max_output_tokens=9,
        text={"format": schema, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        stream=True,
        store=True,
        top_k=5,
    )

    assert made["max_tokens"] == 9
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {k: schema[k] for k in ("name", "schema", "strict")},
    }
    assert (made["reasoning_effort"], made["logprobs"], made["top_logprobs"]) == ("low", True, 2)
    assert made["stream_options"] == {"include_usage": True}
    assert "verbosity" not in made
    assert sent(OPENAI, input="x", text={"verbosity": "low"})["verbosity"] == "low"
    assert not made.keys() & {"input", "text", "reasoning", "include", "store", "max_output_tokens"}
    assert sent(OPENAI, input="x", max_output_tokens=9)["max_completion_tokens"] == 9


@rows(
    ("body", "expected"),
    [
        ({"background": True}, {"background": "refused"}),
        ({"background": False, "truncation": "disabled", "include": []}, {}),
        ({"previous_response_id": "resp_1"}, {"previous_response_id": "refused"}),
        ({"conversation": "conv_1"}, {"conversation": "refused"}),
        ({"prompt": {"id": "pmpt_1"}}, {"prompt": "refused"}),
        ({"truncation": "auto", "max_tool_calls": 3}, {"truncation": "dropped", "max_tool_calls": "dropped"}),
        ({"include": ["file_search_call.results"]}, {"include": "dropped"}),
        ({"reasoning": {"summary": "auto"}}, {"reasoning.summary": "dropped"}),
        ({"tools": [{"type": "web_search"}]}, {"tools.web_search": "dropped"}),
        ({"tools": [{"type": "file_search"}]}, {"tools.file_search": "refused"}),
        ({"tools": [CUSTOM]}, {"tools.custom": "approximated"}),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, {"tool_choice.mcp": "refused"}),
        ({"n": 2}, {"n": "refused"}),
        ({"reasoning": {"effort": "low", "mode": "pro"}}, {"reasoning.mode": "dropped"}),
        ({"reasoning": {"a\r\nset-cookie: b": 1, "c": 1}}, {"reasoning.other": "dropped"}),
        ({"text": {"format": {"type": "grammar"}}}, {"text.format.grammar": "refused"}),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, {"tools.defer_loading": "dropped"}),
        ({"input": [{"role": "assistant", "content": "x", "phase": "commentary"}]}, {"input.phase": "dropped"}),
        ({"stream_options": {"include_obfuscation": True}}, {"stream_options.include_obfuscation": "dropped"}),
        ({"tools": [{"type": "x" * 9000}]}, {"tools." + "x" * 54: "refused"}),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, {"input.item_reference": "refused"}),
        (
            {"input": [{"role": "user", "content": "x"}, {"type": "compaction_trigger"}]},
            {"input.compaction_trigger": "dropped"},
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
            {"input.input_image.file_id": "refused"},
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]}]},
            {"input.input_file.file_url": "refused"},
        ),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "https://x"}]}]},
            {"input.input_image": "refused"},
        ),
    ],
    ids=str,
)
def test_what_is_lost_is_told(body: dict[str, Any], expected: dict[str, str]) -> None:
    """By the caller's own name for it."""
    assert gaps(**body) == expected


@rows(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": "x", "tools": [5]}, "tools"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "assistant", "content": [{"text": "x"}, {"type": "input_file"}]}]}, "input[0].content[1]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x", "instructions": 5}, "instructions"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest) as refused:
        sent(**body)
    assert refused.value.param == param


@given(odd_bodies("input", "tools", "tool_choice", "text", "reasoning", "include", "instructions", "stream"))
def test_any_request_is_converted_or_refused(body: dict[str, Any]) -> None:
    """Nothing else is raised, whatever comes; each gap is told once."""
    found = PAIR.gaps(body, ServerFacts())
    assert len({gap.field for gap in found}) == len(found)
    with suppress(InvalidRequest):
        PAIR.request(body, ServerFacts(), 0.0, lambda: "abc")


@given(odd_bodies("choices", "message", "content", "tool_calls", "usage", "model", "created"))
def test_any_answer_is_converted_or_told_to_be_none(body: dict[str, Any]) -> None:
    """Nothing else is raised, whatever a server says."""
    with suppress(MalformedAnswer):
        PAIR.answer(PAIR.request({"input": "x"}, ServerFacts(), 0.0, lambda: "abc"), body)


# Answers.


def test_an_answer_has_its_items_in_order() -> None:
    """Reasoning, message, calls; the ids differ, the calls keep theirs."""
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}
    made = answered({"reasoning": "hm", "content": "so", "tool_calls": [call]}, "tool_calls")

    assert [item["type"] for item in made["output"]] == ["reasoning", "message", "function_call"]
    assert made["output"][2]["arguments"] == "{}"
    assert len({item["id"] for item in made["output"]}) == 3
    assert (made["status"], made["id"]) == ("completed", "resp_abc")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_cut_answer_is_incomplete(finish: str, reason: str) -> None:
    """And says why."""
    made = answered({"content": "so"}, finish)

    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert made["output"][-1]["status"] == "incomplete"


def test_a_refusal_is_a_part_of_its_own() -> None:
    """As Responses have it."""
    assert answered({"content": None, "refusal": "no"})["output"][0]["content"] == [
        {"type": "refusal", "refusal": "no"}
    ]


def test_usage_counts_what_was_cached_and_thought() -> None:
    """Under its other names."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    made = answered({"content": "x"}, usage=usage)["usage"]

    assert (made["input_tokens"], made["output_tokens"], made["total_tokens"]) == (10, 7, 17)
    assert made["input_tokens_details"]["cached_tokens"] == 4
    assert made["output_tokens_details"]["reasoning_tokens"] == 5


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": {"tool_calls": [{}]}}]}], ids=str)
def test_what_is_no_answer_is_told_so(body: dict[str, Any]) -> None:
    """It counts as the target's fault, and is tried elsewhere."""
    with pytest.raises(MalformedAnswer):
        PAIR.answer(PAIR.request({"input": "x"}, ServerFacts(), 0.0, lambda: "abc"), body)
