"""What a model of OpenAI's languages takes is decided in one place for callers of all other languages, by either language."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import How
from gateway.dialects.base import ModelFacts, ServerFacts
from gateway.dialects.openai.gaps import EFFORTS, effort_for, fitted, how_fitted
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects.test_nothing_is_lost import MODELS
from tests.rows import rows

Json = dict[str, Any]


def thinking(asked: str, effort: str | int) -> Json:
    """A call that is to think so much, and to draw in a way of its own."""
    if asked == "messages":
        told = {"thinking": {"type": "disabled"}} if effort == "none" else {"output_config": {"effort": effort}}
        return {
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "x"}],
            "temperature": 0.5,
            "top_p": 0.5,
            **told,
        }
    config = {"thinkingBudget": 0} if effort == "none" else {"thinkingLevel": str(effort).upper()}
    said = {"temperature": 0.5, "topP": 0.5, "thinkingConfig": config}
    return {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": said}


def asked_of(asked: str, spoken: str, kind: str, model: str, effort: str) -> tuple[str | None, bool, set[str]]:
    """The effort that a model is told, whether it is told how to draw, and how much is lost of the effort."""
    pair = pair_of(asked, spoken)
    facts = TargetLanguages(kind, frozenset((spoken,)), "openai", MODELS.of).facts(pair, model)
    sent = pair.translator.request({**thinking(asked, effort), "model": model}, facts, 0.0, lambda: "id")
    told = sent.body.get("reasoning_effort") or sent.body.get("reasoning", {}).get("effort")
    words = ("effort", "thinkingLevel", "thinkingBudget", "thinking", "reasoning_effort")
    lost = {str(gap.how) for gap in sent.gaps or () if gap.field.rpartition(".")[2] in words}
    drawn = {"temperature", "top_p"} & sent.body.keys()
    is_named = {gap.field.rpartition(".")[2] for gap in sent.gaps or ()} & {"temperature", "top_p", "topP"}
    assert len(drawn) + len(is_named) == 2
    return told, bool(drawn), lost


@rows(
    ("model", "effort", "told", "is_drawn", "lost"),
    [
        ("gpt-5-nano", "none", "minimal", False, {"approximated"}),
        ("gpt-5-nano", "low", "low", False, set()),
        ("gpt-5-nano", "max", "high", False, {"approximated"}),
        ("gpt-5.1", "none", "none", True, set()),
        ("gpt-5.1", "minimal", "none", True, {"approximated"}),
        ("gpt-5.1", "high", "high", False, set()),
        ("gpt-4o", "none", None, True, set()),
        ("gpt-4o", "high", None, True, {"dropped"}),
        ("o3", "low", "low", False, set()),
        ("llama", "high", None, True, {"dropped"}),
    ],
)
def test_each_way_asks_a_model_alike(model: str, effort: str, told: str | None, is_drawn: bool, lost: set[str]) -> None:
    """Callers of Messages and of generateContent, at chat completions and at Responses, of OpenAI and of others."""
    for asked in ("messages", "generate"):
        for spoken in ("chat", "responses"):
            found = asked_of(asked, spoken, "openai", model, effort)
            assert found == (told, is_drawn, lost), (asked, spoken)
            if model == "llama":
                assert asked_of(asked, spoken, "vllm", model, effort) == found


@pytest.mark.parametrize(("asked", "spoken"), [("chat", "responses"), ("responses", "chat")])
def test_callers_of_openais_languages_are_not_corrected(asked: str, spoken: str) -> None:
    """They know its models, and hear from it what these do not take."""
    pair = pair_of(asked, spoken)
    facts = TargetLanguages("openai", frozenset((spoken,)), "openai", MODELS.of).facts(pair, "gpt-5-nano")
    text: Json = {"messages": [{"role": "user", "content": "x"}]} if asked == "chat" else {"input": "x"}
    effort: Json = {"reasoning_effort": "max"} if asked == "chat" else {"reasoning": {"effort": "max"}}
    sent = pair.translator.request({**text, **effort, "temperature": 0.5, "model": "m"}, facts, 0.0, lambda: "id")
    assert "temperature" in sent.body
    assert (sent.body.get("reasoning_effort") or sent.body["reasoning"]["effort"]) == "max"


KNOWN = st.lists(st.sampled_from(EFFORTS), unique=True).map(lambda given: tuple(sorted(given, key=EFFORTS.index)))
MODEL = st.builds(ModelFacts, efforts=KNOWN, sampling=st.booleans(), thinking=st.sampled_from(["none", "level"]))


@given(MODEL, st.sampled_from([None, *EFFORTS, "other"]), st.booleans())
def test_what_is_sent_is_what_the_model_takes(model: ModelFacts, asked: str | None, is_openai: bool) -> None:
    """Whatever is asked; a second look changes nothing, and what is changed is told."""
    facts = ServerFacts(model=model, takes_developer=is_openai)
    body: Json = {"temperature": 0.5, "messages": []} | ({"reasoning_effort": asked} if asked else {})

    made, lost = fitted(body, facts)

    assert made.get("reasoning_effort") in (*model.efforts, None)
    assert effort_for(asked, model) == made.get("reasoning_effort")
    assert fitted(made, facts)[0] == made
    assert model.sampling or "temperature" not in made
    assert {gap.field for gap in lost} >= {name for name in ("temperature",) if name not in made}
    assert asked in (None, "none") or (made.get("reasoning_effort") == asked) is (how_fitted(asked, model) is None)
    assert {gap.how for gap in lost if gap.field == "temperature"} <= {How.DROPPED}
