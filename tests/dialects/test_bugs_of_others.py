"""What others have got wrong, bug by bug, and the test that would fail here: those that have none elsewhere are below.

Each number stands for one way to lose something; the threads say how it went.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from gateway.core.ledger import usage_usd
from gateway.core.openai.usage import read_usage
from gateway.core.snapshot import Rates
from gateway.core.types import How
from gateway.dialects.base import ServerFacts
from gateway.dialects.registry import pair_of, pairs_for
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects.sdk.callers import PICTURE, SCHEMA, target_forms
from tests.dialects.sdk.forms import Json
from tests.dialects.sdk.streamed import STREAMED
from tests.dialects.sdk.walk import problems
from tests.dialects.test_nothing_is_lost import MODELS, TARGETS
from tests.rows import rows


class Bug(NamedTuple):
    """Who had it, and which tests would fail with it, by module and name."""

    threads: str
    tests: tuple[str, ...]


_STREAMS = "dialects/test_messages_streams.py"
_CLAUDE, _GEMINI, _BEDROCK = (f"dialects/test_chat_over_{name}.py" for name in ("messages", "generate", "converse"))
_CHAT, _FROM_RESPONSES = "dialects/test_messages_over_chat.py", "dialects/test_responses_over_chat.py"
_TO_RESPONSES, _FROM_GEMINI = "dialects/test_chat_over_responses.py", "dialects/test_generate_as_chat.py"
_OWN = "dialects/test_bugs_of_others.py"
_BLOCKS = f"{_STREAMS}:test_thoughts_words_and_interleaved_calls_are_blocks_one_after_the_other"
_PIECE = f"{_STREAMS}:test_a_call_that_comes_in_one_piece_keeps_its_arguments"
_EVERYTHING = "dialects/test_nothing_is_lost.py:test_each_field_of_a_request_arrives_or_is_told_of"
BUGS = {
    1: Bug("BerriAI/litellm#32357, #25212, #33224", (_BLOCKS, f"{_STREAMS}:test_streamed_is_whole")),
    2: Bug("BerriAI/litellm#25321, #25411", (_PIECE,)),
    3: Bug("BerriAI/litellm#13373", (_PIECE, _BLOCKS)),
    4: Bug("router-for-me/CLIProxyAPI#5581", (_BLOCKS, f"{_STREAMS}:test_words_in_the_middle_of_a_call_follow_it")),
    5: Bug("maximhq/bifrost#3441",
           (_PIECE, "dialects/test_messages_as_chat.py:test_a_call_without_arguments_has_an_empty_object")),
    6: Bug("maximhq/bifrost#6342", (f"{_CLAUDE}:test_thoughts_go_back_byte_for_byte_to_their_places",
                                    "dialects/test_remembered.py:test_a_turn_goes_back_as_it_came")),
    7: Bug("maximhq/bifrost#5274", (f"{_CLAUDE}:test_thoughts_go_back_byte_for_byte_to_their_places",)),
    8: Bug("maximhq/bifrost#1580", (f"{_OWN}:test_a_failed_result_has_no_field_that_nobody_knows", _EVERYTHING)),
    9: Bug("maximhq/bifrost#3511", (f"{_OWN}:test_a_function_is_a_tool_of_the_targets", _EVERYTHING)),
    10: Bug("maximhq/bifrost#1437, #2210; labring/aiproxy#450; theopenco/llmgateway#1267; Gitlawb/openclaude#1302",
            (f"{_GEMINI}:test_the_first_call_of_a_turn_is_signed", f"{_GEMINI}:test_signatures_come_back_in_every_clothing",
             "dialects/test_remembered_signatures.py:test_signatures_go_back_where_they_were")),
    11: Bug("earendil-works/pi#1446", (f"{_GEMINI}:test_the_first_call_of_a_turn_is_signed",)),
    12: Bug("braintrustdata/lingua#166", (f"{_GEMINI}:test_results_of_a_turn_are_one_content_each_with_its_name",
                                          f"{_CHAT}:test_messages")),
    13: Bug("envoyproxy/ai-gateway#2352", (f"{_STREAMS}:test_the_whole_of_the_usage_comes_last",)),
    14: Bug("envoyproxy/ai-gateway#2399; Portkey-AI/gateway#1534; OpenRouterTeam/ai-sdk-provider#288",
            (f"{_FROM_GEMINI}:test_thoughts_calls_and_words_come_whole_and_streamed_the_same",
             f"{_OWN}:test_an_end_behind_the_calls_chunk_is_that_of_calls")),
    15: Bug("NousResearch/hermes-agent#43478", (f"{_FROM_GEMINI}:test_why_it_ended_is_told",
                                                "dialects/test_messages_as_chat.py:test_why_it_ended")),
    16: Bug("envoyproxy/ai-gateway#2546", ("e2e/test_messages.py:test_our_own_errors_have_anthropics_shape",
                                           "e2e/test_messages.py:test_tokens_are_counted_by_who_can_and_estimated_elsewhere")),
    17: Bug("envoyproxy/ai-gateway#2127",
            ("dialects/test_dialect_mistakes.py:test_what_a_target_can_never_serve_is_an_error",)),
    18: Bug("BerriAI/litellm#9812, #11789, #40006",
            (f"{_OWN}:test_what_the_cache_held_is_counted_and_paid_once",
             "dialects/test_recorded_every_way.py:test_each_answer_is_one_of_the_callers_and_counts_what_the_provider_did")),
    19: Bug("BerriAI/litellm#18201, #18226", (f"{_TO_RESPONSES}:test_a_turn_becomes_its_items",)),
    20: Bug("BerriAI/litellm#22578, #22599", (f"{_FROM_RESPONSES}:test_what_a_turn_of_the_model_made_is_one_message",)),
    21: Bug("open-webui/open-webui#30085", (f"{_FROM_RESPONSES}:test_tools_and_their_choice_are_nested",
                                            f"{_TO_RESPONSES}:test_an_answers_items_are_one_message")),
    22: Bug("ChronoAIProject/NyxID#200", (f"{_OWN}:test_a_call_is_known_by_its_call_id",)),
    23: Bug("looplj/axonhub#2220",
            (f"{_FROM_RESPONSES}:test_thoughts_and_words_between_calls_do_not_part_them_from_their_results",)),
    24: Bug("anomalyco/opencode#41445; pydantic/pydantic-ai#741, #653",
            (f"{_CLAUDE}:test_results_of_a_turn_are_one_message_with_what_follows",
             f"{_BEDROCK}:test_results_of_tools_are_in_one_message_with_what_follows")),
    25: Bug("Zoo-Code-Org/Zoo-Code#1716", (f"{_CLAUDE}:test_results_of_a_turn_are_one_message_with_what_follows",)),
    26: Bug("vercel/ai#13013, #8112", (f"{_OWN}:test_searches_of_the_providers_are_bytes_or_left_out",
                                       "e2e/test_messages.py:test_bytes_go_through_at_a_server_of_the_language")),
    27: Bug("vercel/ai#14369", (f"{_GEMINI}:test_a_result_is_an_object",)),
    28: Bug("UKGovernmentBEIS/inspect_ai#3097; voocel/litellm#9; TableProApp/TablePro#1276",
            (f"{_GEMINI}:test_schemas_go_as_they_are",)),
    29: Bug("agentgateway#2192, #2747; patriceckhart/zot#18",
            (f"{_BEDROCK}:test_tools_are_put_together_from_the_conversation",)),
    30: Bug("NousResearch/hermes-agent#55092; agentjido/jido_ai#215",
            (f"{_BEDROCK}:test_blank_texts_are_left_out", f"{_CLAUDE}:test_blank_text_is_left_out",
             f"{_STREAMS}:test_words_of_white_space_alone_are_no_block")),
    31: Bug("Portkey-AI/gateway#1275", ("dialects/test_messages_as_chat.py:test_a_stream_says_what_the_whole_answer_says",
                                        "dialects/test_converse_as_chat.py:test_calls_at_once_are_told_apart")),
    32: Bug("BerriAI/litellm#15601; anomalyco/opencode#3077",
            (f"{_CLAUDE}:test_a_budget_needs_the_thoughts_before_the_calls",
             "dialects/test_remembered.py:test_a_turn_goes_back_as_it_came")),
    33: Bug("BerriAI/litellm#26246, #28113",
            ("dialects/test_chat_options_over_messages.py:test_options_are_said_as_the_model_takes_them",)),
    34: Bug("1rgs/claude-code-proxy#99; waybarrios/vllm-mlx#277; CaddyGlow/ccproxy-api#61",
            (f"{_OWN}:test_the_beginning_of_a_prompt_is_the_same_each_time",)),
    35: Bug("BerriAI/litellm#6953; vllm-project/vllm#35557; CherryHQ/cherry-studio#17078; vercel/ai#18982",
            (f"{_OWN}:test_a_picture_in_a_result_is_a_picture", f"{_CLAUDE}:test_media_arrives")),
    36: Bug("theopenco/llmgateway#4149", (f"{_OWN}:test_a_picture_that_lies_elsewhere_is_one_or_refused",)),
    37: Bug("openai/openai-agents-python#1797; RooCodeInc/Roo-Code#9700",
            (f"{_CLAUDE}:test_histories_that_cannot_be_paired_are_refused",
             f"{_GEMINI}:test_histories_that_cannot_be_paired_are_refused",
             f"{_FROM_RESPONSES}:test_a_call_and_its_result_are_a_pair")),
}  # fmt: skip


def test_each_bug_has_a_test() -> None:
    """Which is there, by the name that is told here."""
    folder = Path(__file__).parents[1]
    texts = {
        name: (folder / name).read_text() for bug in BUGS.values() for name in (one.split(":")[0] for one in bug.tests)
    }
    assert sorted(BUGS) == list(range(1, 38))
    missing = [
        one for bug in BUGS.values() for one in bug.tests if f"def {one.split(':')[1]}(" not in texts[one.split(":")[0]]
    ]
    assert missing == []


USER: Json = {"role": "user", "content": "x"}
CALL: Json = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURN: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def facts_of(asked: str, name: str) -> tuple[Any, ServerFacts]:
    target = TARGETS[name]
    dialect = "openai" if target.dialect == "vllm" else target.dialect
    pair = pair_of(asked, target.speaks)
    return pair, TargetLanguages(target.dialect, frozenset((target.speaks,)), dialect, MODELS.of).facts(
        pair, target.model
    )


def sent(asked: str, name: str, body: Json) -> Json:
    """What goes out; of its types nothing is unknown to the target."""
    pair, facts = facts_of(asked, name)
    made: Json = pair.translator.request({"model": "m", **body}, facts, 0.0, lambda: "id").body
    forms = target_forms(TARGETS[name].speaks, is_openais=TARGETS[name].dialect == "openai")
    assert problems(forms, made, forms.root) == []
    return made


@pytest.mark.parametrize("name", ["OpenAI", "OpenAI by Responses", "Gemini", "Claude at Bedrock"])
def test_a_failed_result_has_no_field_that_nobody_knows(name: str) -> None:
    """8: what failed is told where the target reads it."""
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_a", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "call_a", "content": "no such file", "is_error": True}
    made = sent("messages", name, {"max_tokens": 99, "messages": [USER, used, {"role": "user", "content": [result]}]})
    assert b"no such file" in orjson.dumps(made)
    assert b"rror" in orjson.dumps(made)


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].speaks != "chat"])
def test_a_function_is_a_tool_of_the_targets(name: str) -> None:
    """9: with its name, what it is for, and its whole schema."""
    function = {"name": "f", "description": "for this", "parameters": SCHEMA}
    made = sent("chat", name, {"messages": [USER], "tools": [{"type": "function", "function": function}]})
    told = orjson.dumps(made.get("tools") or made["toolConfig"])
    assert all(orjson.dumps(one).strip(b"{}") in told for one in ("f", "for this", SCHEMA["properties"]))


def test_an_end_behind_the_calls_chunk_is_that_of_calls() -> None:
    """14: for callers of all languages."""
    call = {"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}, "index": 0}
    end = {"content": {"parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}
    raw = b"".join(STREAMED["generate"]({"candidates": [one]}) for one in (call, end))
    for asked, told in (("chat", b'"finish_reason":"tool_calls"'), ("messages", b'"stop_reason":"tool_use"')):
        translator = pair_of(asked, "generate").translator
        body = {"model": "m", "max_tokens": 9, "messages": [USER], "stream": True}
        reader = translator.reader(translator.request(body, ServerFacts(issuer="gemini"), 0.0, lambda: "id"))
        assert told in reader.feed(raw) + reader.close(is_clean=True)


@rows(
    "spoken, usage",
    [
        ("messages", {"input_tokens": 10, "cache_read_input_tokens": 700, "cache_creation_input_tokens": 90,
                      "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 40},
                      "output_tokens": 5}),
        ("converse", {"inputTokens": 10, "cacheReadInputTokens": 700, "cacheWriteInputTokens": 90, "outputTokens": 5,
                      "cacheDetails": [{"ttl": "5m", "inputTokens": 50}, {"ttl": "1h", "inputTokens": 40}],
                      "totalTokens": 805}),
    ],
)  # fmt: skip
def test_what_the_cache_held_is_counted_and_paid_once(spoken: str, usage: Json) -> None:
    """18: streamed or whole, whoever asks; at the price of the sheet."""
    rates = Rates(1.0, 10.0, 0.1, 1.25, 2.0)
    wholes: dict[str, Json] = {
        "messages": {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": usage},
        "converse": {"output": {"message": {"role": "assistant", "content": [{"text": "x"}]}}, "stopReason": "end_turn",
                     "usage": usage},
    }  # fmt: skip
    for asked in {"chat", "responses", "messages"} - {spoken}:
        translator = pair_of(asked, spoken).translator
        body = {"model": "m", "max_tokens": 9, "messages": [USER], "input": "x", "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        asking = translator.request(body, ServerFacts(), 0.0, lambda: "id")
        whole = translator.answer(asking, wholes[spoken])["usage"]
        reader = translator.reader(asking)
        stream = reader.feed(STREAMED[spoken](wholes[spoken])) + reader.close(is_clean=True)
        assert orjson.dumps(whole) in stream
        read = read_usage(whole)
        assert read is not None
        assert (read.input, read.output, read.cached, read.cache_written) == (800, 5, 700, 90)
        cost = usage_usd(rates, read)
        assert cost == pytest.approx(10 * 1.0 + 700 * 0.1 + 50 * 1.25 + 40 * 2.0 + 5 * 10.0)


def test_a_call_is_known_by_its_call_id() -> None:
    """22: its item has an id of its own, which nobody else knows."""
    items = [{"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "id": "fo_1", "call_id": "call_a", "output": "ok"}]  # fmt: skip
    for name in TARGETS:
        if TARGETS[name].speaks != "responses":
            told = orjson.dumps(sent("responses", name, {"input": [USER, *items]}))
            assert told.count(b'"call_a"') == 2, name
            assert b"fc_1" not in told
    answer = {"status": "completed", "output": items[:1]}
    translator = pair_of("chat", "responses").translator
    asking = translator.request({"model": "m", "messages": [USER]}, ServerFacts(), 0.0, lambda: "id")
    assert translator.answer(asking, answer)["choices"][0]["message"]["tool_calls"][0]["id"] == "call_a"


def test_searches_of_the_providers_are_bytes_or_left_out() -> None:
    """26: who speaks the language gets them as they are; for others they are no part of a pair that could break."""
    assert "messages" not in pairs_for(frozenset(("messages",)))
    blocks = [{"type": "server_tool_use", "id": "srv_a", "name": "web_search", "input": {}},
              {"type": "web_search_tool_result", "tool_use_id": "srv_a", "content": []},
              {"type": "tool_use", "id": "call_a", "name": "f", "input": {}}]  # fmt: skip
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_a", "content": "ok"}]}
    body = {"model": "m", "max_tokens": 9, "messages": [USER, {"role": "assistant", "content": blocks}, result]}
    for name in TARGETS:
        if TARGETS[name].speaks != "messages":
            pair, facts = facts_of("messages", name)
            lost = {(gap.field, gap.how) for gap in pair.translator.gaps(body, facts)}
            left_out = {"messages.server_tool_use", "messages.web_search_tool_result"}
            assert {(field, How.DROPPED) for field in left_out} <= lost, name
            assert How.REFUSED not in {how for _, how in lost}, name
            assert b"srv_a" not in orjson.dumps(pair.translator.request(body, facts, 0.0, lambda: "id").body), name


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].speaks != "messages"])
def test_the_beginning_of_a_prompt_is_the_same_each_time(name: str) -> None:
    """34: no line that changes with each call, no key that is drawn: or no cache of prompts ever hits."""
    made: list[bytes] = []
    for number in range(2):
        system = f"x-anthropic-billing-header: cc_version=2; cch={number}abc;\nYou are a helper."
        body = {"max_tokens": 99, "system": system, "messages": [USER], "metadata": {"user_id": "u"}}
        pair, facts = facts_of("messages", name)
        made.append(
            orjson.dumps(pair.translator.request({"model": "m", **body}, facts, 1.0 + number, lambda: str(made)).body)
        )
    assert made[0] == made[1]
    assert b"prompt_cache_key" not in made[0]
    assert b"You are a helper." in made[0]
    assert b"billing" not in made[0]


DATA = PICTURE.rpartition(",")[2]


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].speaks != "messages"])
def test_a_picture_in_a_result_is_a_picture(name: str) -> None:
    """35: in it or behind it, never among its words."""
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_a", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "call_a", "content": [{"type": "image", "source": source}]}
    body = {"max_tokens": 99, "messages": [USER, used, {"role": "user", "content": [result]}]}
    pair, facts = facts_of("messages", name)
    if any(gap.how is How.REFUSED for gap in pair.translator.gaps({"model": "m", **body}, facts)):
        return  # some models take nothing beside results of tools
    shown = [(place, text) for place, text in texts_in(sent("messages", name, body)) if DATA in text]
    assert [place.rpartition(".")[2] for place, _ in shown] in (["url"], ["image_url"], ["data"], ["bytes"]), name


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].speaks != "chat"])
def test_a_picture_that_lies_elsewhere_is_one_or_refused(name: str) -> None:
    """36: nothing is fetched, no sentence stands for it, and the tools stay what they are."""
    url = "https://pictures.example/a.png"
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    body = {"messages": [{"role": "user", "content": parts}], "tools": tools, "tool_choice": "auto"}
    pair, facts = facts_of("chat", name)
    refused = [gap.field for gap in pair.translator.gaps({"model": "m", **body}, facts) if gap.how is How.REFUSED]
    if TARGETS[name].speaks == "converse":
        assert refused == ["messages.image_url"]
        return
    made = sent("chat", name, body)
    texts = texts_in(made.get("messages") or made.get("input") or made["contents"])
    assert {text for place, text in texts if place.endswith(".text")} == {"look"}
    assert [place.rpartition(".")[2] for place, text in texts if text == url] in (["url"], ["image_url"], ["fileUri"])
    assert made["tools"]


def texts_in(value: Any, place: str = "") -> list[tuple[str, str]]:
    """All texts in a body, with where they stand."""
    if isinstance(value, str):
        return [(place, value)]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, one in inner for found in texts_in(one, f"{place}.{name}")]
