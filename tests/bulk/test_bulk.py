"""What `python -m tests.bulk` counts, and that each tool can be installed and run as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bulk.__main__ import row, verdict
from tests.bulk.provider import Clock, Provider, Script, SlidingMinute, digest_of, paid_twice, tokens_of
from tests.bulk.tool import FOLDERS, TOOLS, Tool
from tests.bulk.trial import Outcome, config_of, reason_of, refusals_of, result_of


def chat(text: str = "hi", **extra: Any) -> dict[str, Any]:
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}], **extra}


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60)), max_size=60))
def test_no_window_of_a_minute_takes_more_than_its_limits(calls: list[tuple[float, int]]) -> None:
    """Whenever calls come, and who waits as long as he is told to has room then, and not before."""
    minute, now, taken = SlidingMinute(5, 100, 60.0), 0.0, []
    for gap_s, tokens in calls:
        now += gap_s
        if wait_s := minute.wait_s(tokens, now):
            assert minute.wait_s(tokens, now + wait_s / 2) > 0
            now += wait_s
        assert minute.wait_s(tokens, now) < 1e-9
        minute.take(tokens, now)
        taken.append((now, tokens))
        within = [cost for at, cost in taken if at > now - 60.0 + 1e-9]
        assert len(within) <= 5
        assert sum(within) <= 100


def test_a_call_that_is_larger_than_a_minute_never_has_room() -> None:
    """It is told no time at which to come again."""
    assert SlidingMinute(5, 100, 60.0).wait_s(101, 0.0) == float("inf")


def test_the_limits_own_time_counts_the_outage() -> None:
    """120 at once, 120 after the outage, and the rest a minute later; each model by itself."""
    script = Script.first()

    assert [script.ideal_s([(1, "m")] * calls + [(1, "n")]) for calls in (120, 121, 240, 300)] == [
        0.0,
        70.0,
        70.0,
        130.0,
    ]


def test_an_answer_is_paid_twice_where_the_same_question_has_one_already() -> None:
    """At whatever provider, under whatever name of the model."""
    first, second = digest_of(chat("a")), digest_of(chat("a") | {"model": "spare"})

    assert first == second != digest_of(chat("b"))
    assert paid_twice([{first: 2, "b": 1}, {second: 1}]) == 2


def test_the_provider_refuses_what_its_minute_has_no_room_for_and_says_when_to_come_again() -> None:
    """A call counts its input, or the answer that it allows where that is longer."""
    provider = Provider(Script(requests=2, tokens=100, errors=0.0), Clock(), "yes", seed=1)

    replies = [provider.answer("/v1/chat/completions", chat(max_tokens=40)) for _ in range(3)]

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert (tokens_of(chat(max_tokens=40)), replies[-1].headers["x-ratelimit-remaining-tokens"]) == (40, "20")
    assert 59 < int(replies[-1].headers["retry-after-ms"]) / 1000 <= 60
    assert json.loads(replies[0].body)["choices"][0]["message"]["content"] == "yes"


def test_an_answer_is_what_the_call_asks_for() -> None:
    """A function's arguments, JSON by a schema, vectors, events."""
    provider = Provider(Script(requests=9, tokens=10_000, errors=0.0), Clock(), "yes", seed=1)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "record", "parameters": schema}}]
    form = {"type": "json_schema", "json_schema": {"name": "record", "schema": schema}}

    def answer(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
        return provider.answer(path, body).body

    called = json.loads(answer(chat(tools=tools, tool_choice="required")))["choices"][0]
    assert json.loads(called["message"]["tool_calls"][0]["function"]["arguments"]) == {"age": 1}
    assert json.loads(answer(chat(response_format=form)))["choices"][0]["message"]["content"] == '{"age": 1}'
    assert len(json.loads(answer({"model": "m", "input": ["a", "b"]}, "/v1/embeddings"))["data"]) == 2
    assert answer(chat(stream=True)).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_each_tool_has_a_program_and_exact_pins(tool: Tool) -> None:
    """In a folder of its own."""
    program = (tool.folder / "run.py").read_text()
    assert program.startswith('"""')
    assert {'os.environ["ITEMS"]', '"done"'} <= set(re.findall(r'os\.environ\["ITEMS"\]|"done"', program))
    if tool.pins.name == "package.json":
        pinned = json.loads(tool.pins.read_text())["dependencies"].values()
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned)
    else:
        assert all("==" in line.partition(";")[0] for line in tool.pins.read_text().splitlines())


def test_each_folder_is_a_tool() -> None:
    """None is forgotten in the list."""
    assert {folder.name for folder in FOLDERS.iterdir() if (folder / "run.py").exists()} == set(TOOLS)


def test_a_program_prints_its_result_last_and_the_gateway_logs_what_it_gave() -> None:
    """Other lines of either are passed over."""
    assert result_of('noise\n{"done": 2, "failed": 1}\nbye\n') == {"done": 2, "failed": 1}
    assert result_of("noise\n") is None
    assert reason_of("Traceback\nValueError: no\nsys:1: RuntimeWarning: odd\n") == "ValueError: no"
    calls = [
        {"event": "call", "status": status, "outcome": outcome} for status, outcome in ((200, "ok"), (503, "full"))
    ]
    log = ["plain", json.dumps({"event": "start"}), *map(json.dumps, calls)]
    assert refusals_of(log) == {"503 full": 1}


def test_a_shorter_minute_is_a_higher_limit_and_a_fallback_is_a_model_of_its_own() -> None:
    """Both as an operator would write them down."""
    models = config_of([1, 2], 20, Path())["models"]

    assert models["gpt-4o-mini"]["targets"] == [{"provider": "p0", "model": "gpt-4o-mini", "rpm": 360, "tpm": 60_000}]
    assert models["gpt-4o-mini"]["fallbacks"] == ["spare/gpt-4o-mini"]
    assert "fallbacks" not in config_of([1], 20, Path())["models"]["gpt-4o-mini"]


def test_the_verdict_names_what_lost_items_through_the_gateway() -> None:
    """A loss straight at the provider is what it is there for."""
    outcomes = [
        Outcome("openai", "straight", 3),
        Outcome("openai", "alone", 3, done=3),
        Outcome("dspy", "alone", 3, done=1),
    ]

    assert verdict(outcomes) == "Lost through the gateway: 2 by dspy alone."
    assert verdict(outcomes[:2]) == "Nothing is lost through the gateway."


def test_a_row_has_a_cell_for_each_column() -> None:
    """With what went wrong beside what the tool was given."""
    outcome = Outcome("openai", "alone", 3, done=2, calls=[4, 1], refusals={"503": 1}, trouble="took too long")

    assert row(outcome).startswith("| openai | alone | 2 of 3 | 1 |")
    assert "4 + 1" in row(outcome)
    assert "1 x 503; took too long" in row(outcome)
