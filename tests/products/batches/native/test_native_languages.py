"""A provider's own Batch API takes no lines in a language that it does not speak, nor any whose answers are checked here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from gateway.core.snapshot import CHECKS_ANSWERS, PolicySnapshot, with_settings
from gateway.core.types import Upstream
from gateway.dialects.upstream import Languages
from gateway.products.batches.native.lines import LineTranslator
from gateway.products.batches.native.rules import NoPart, plan_parts, targets_of
from gateway.products.batches.output import ENDPOINT, MODELS
from gateway.products.jobs.model import Job
from tests.products.batches.native.native_stage import native_rules, snapshot
from tests.support.flow import FakeClock

ELSEWHERE: Any = {"/responses": cast(Upstream, SimpleNamespace())}


def job(endpoint: str) -> Job:
    return cast(Job, SimpleNamespace(about={ENDPOINT: endpoint}))


def speaking_chat(*providers: str) -> PolicySnapshot:
    """A policy in which these providers have no Responses, declared or learned."""
    policy = snapshot()
    model = policy.models["m"]
    targets = tuple(
        replace(one, converters_by_path=ELSEWHERE) if one.provider in providers else one for one in model.targets
    )
    return replace(policy, models={**policy.models, "m": replace(model, targets=targets, plan=targets)})


def test_a_part_goes_where_its_language_is_spoken() -> None:
    """Other targets are left out; where none is left, the batch runs here, line by line, and is converted."""
    rules = native_rules().batches
    found = targets_of(speaking_chat("openai"), job("/v1/responses"), "m", rules)
    assert [target.provider for target in found] == ["azure"]

    nobody = speaking_chat("openai", "azure")
    with pytest.raises(NoPart, match="converted"):
        targets_of(nobody, job("/v1/responses"), "m", rules)
    assert plan_parts(nobody, job("/v1/responses"), ["m"], 100, rules) is None
    assert plan_parts(nobody, job("/v1/chat/completions"), ["m"], 100, rules) is not None


def test_answers_that_are_checked_are_asked_for_here() -> None:
    """Nobody would retry or repair what a provider's Batch API writes; of other endpoints nothing is checked."""
    rules, policy = native_rules().batches, snapshot()
    model = with_settings(policy.models["m"], {CHECKS_ANSWERS: True})
    checked = replace(policy, models={**policy.models, "m": model})

    for endpoint in ("/v1/chat/completions", "/v1/responses"):
        assert plan_parts(policy, job(endpoint), ["m"], 100, rules) is not None
        assert plan_parts(checked, job(endpoint), ["m"], 100, rules) is None
        with pytest.raises(NoPart, match="checked"):
            targets_of(checked, job(endpoint), "m", rules)
    assert plan_parts(checked, job("/v1/embeddings"), ["m"], 100, rules) is not None


def test_a_line_fits_the_provider_as_a_call_does() -> None:
    """A tool's schema without properties would fail it there."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    batch: Any = SimpleNamespace(about={ENDPOINT: "/v1/chat/completions"}, marks={MODELS: ["m"]})
    part: Any = SimpleNamespace(target="openai/openai-m", model="openai-m", is_inline=False)

    line = LineTranslator(snapshot(), batch, part, "/v1/chat/completions", 0.0).line(
        "line_1", orjson.dumps({"model": "m", "messages": [], "tools": [tool]})
    )

    assert line is not None
    (sent,) = orjson.loads(line)["body"]["tools"]
    assert sent["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["openai", "azure"])
def test_a_line_goes_without_what_others_signed(name: str) -> None:
    """As in a call: reasoning that another organization encrypted, and words that the provider takes from nobody."""
    languages = Languages(FakeClock(), lambda: "id")
    policy = snapshot(name, languages=languages)
    languages._issuers.remember("theirs", "elsewhere")
    part: Any = SimpleNamespace(target=f"{name}/{name}-m", model=f"{name}-m", is_inline=False)

    def sent(endpoint: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        batch: Any = SimpleNamespace(about={ENDPOINT: endpoint}, marks={MODELS: ["m"]})
        translator = LineTranslator(policy, batch, part, endpoint, 0.0)
        line = translator.line("line_1", orjson.dumps({"model": "m", **body}))
        assert line is not None
        return orjson.loads(line)["body"], sorted(field for field, _ in translator.lost)

    items: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [], "encrypted_content": proof, "content": []} for proof in ("theirs", "own")
    ]
    user = {"type": "message", "role": "user", "content": "hi"}
    body, lost = sent("/v1/responses", {"input": [*items, user]})
    assert [one.get("encrypted_content") for one in body["input"] if one["type"] == "reasoning"] == ["own"]
    assert lost == ["input.reasoning"]

    turn = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    body, lost = sent("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}, turn]})
    assert body["messages"][1] == {"role": "assistant", "content": "so"}
    assert lost == ["messages.reasoning_content"]
