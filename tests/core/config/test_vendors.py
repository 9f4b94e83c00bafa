"""Callers' own credentials stay with one vendor: who that is, who is skipped, who is called without, and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.describe import describe
from gateway.admin.explain import explain
from gateway.core.snapshot import Model, PolicySnapshot
from tests.rows import rows
from tests.support.configs import load_text, problems_of

OPENAI = "base_url: 'https://api.openai.com/v1'"
GROQ = "base_url: 'https://api.groq.com/openai/v1'"
BODY = b'{"model":"m","messages":[]}'


def config(first: str, second: str, third: str = "base_url: 'https://unused'") -> str:
    """Models whose calls go from `a` to `b` in every way there is."""
    listed = "".join(
        f"  {name}: {{{fields}, dialect: openai}}\n" for name, fields in zip("abc", (first, second, third), strict=True)
    )
    return f"""\
providers:
{listed}models:
  m: {{targets: [a/1], fallbacks: [other]}}
  beside: {{targets: [a/1, b/1]}}
  long: {{targets: [a/1], context_fallbacks: [other]}}
  other: {{targets: [b/1]}}
"""


def bound(snapshot: PolicySnapshot, name: str) -> Model:
    """What calls use that bring a credential."""
    model = snapshot.models[name]
    return model.model_for_caller_credentials or model


def names(snapshot: PolicySnapshot, name: str) -> list[str]:
    """Where such a call may go."""
    model = bound(snapshot, name)
    return [target.name for target in (*model.plan, *model.context_plan)]


@rows("name", ["m", "beside", "long"])
@rows(
    ("first", "second", "goes_on"),
    [
        (OPENAI, GROQ, False),
        (OPENAI, OPENAI, True),
        (OPENAI, "base_url: 'https://eu.api.openai.com/v1'", True),
        (OPENAI, "base_url: 'http://api.openai.com/v1'", False),  # where everybody on the way could read it
        (OPENAI, "base_url: 'https://api.openai.com.evil.example/v1'", False),
        (OPENAI, "base_url: 'https://evilopenai.com/v1'", False),
        (OPENAI, "base_url: 'https://proxy.example/v1', kind: openai", False),  # what it counts like is not who it is
        (OPENAI, f"{GROQ}, api_key: sk-of-our-own-account", True),
        (OPENAI, f"{GROQ}, accepts_callers_of: [a]", True),
        (OPENAI, f"{GROQ}, accepts_callers_of: [b]", False),
        (OPENAI, "base_url: 'emulator://x'", True),
        (f"{OPENAI}, api_key: sk-of-our-own-account", GROQ, True),
        ("base_url: 'emulator://x'", GROQ, True),
        (
            "base_url: 'https://us-central1-aiplatform.googleapis.com/v1/endpoints/1'",
            "base_url: 'https://europe-west1-aiplatform.googleapis.com/v1/endpoints/1'",
            True,
        ),
        ("base_url: 'https://llm.example/v1'", "base_url: 'https://LLM.example./v2'", True),
        ("base_url: 'https://llm.example/v1'", "base_url: 'https://llm.example:443/v1'", True),
        ("base_url: 'https://llm.example/v1'", "base_url: 'https://llm.example:8443/v1'", False),
        ("base_url: 'http://10.0.0.5:8000'", "base_url: 'http://10.0.0.6:8000'", False),
        ("base_url: 'http://10.0.0.5:8000', kind: vllm", "base_url: 'http://10.0.0.6:8000', kind: sglang", True),
        ("base_url: 'http://10.0.0.5:8000', kind: vllm", OPENAI, False),
        ("base_url: 'http://10.0.0.5:8000', kind: vllm", f"{OPENAI}, accepts_callers_of: [a]", True),
    ],
)
def test_credentials_stay_with_the_vendor_of_the_first(
    tmp_path: Path, name: str, first: str, second: str, goes_on: bool
) -> None:
    """Whatever the way to the next target: a fallback, one beside it, one for long contexts."""
    snapshot = load_text(tmp_path, config(first, second))

    assert (names(snapshot, name) == ["a/1", "b/1"]) is goes_on
    assert (
        snapshot.models[name].model_for_caller_credentials is None
    ) is goes_on  # nothing to ask where nothing is held back
    assert [target.name for target in (*snapshot.models[name].plan, *snapshot.models[name].context_plan)] == [
        "a/1",
        "b/1",
    ]
    assert not bound(snapshot, name).without_caller_credential


def test_credentials_are_those_of_any_provider_of_the_vendor(tmp_path: Path) -> None:
    """`accepts_callers_of` names one of them."""
    snapshot = load_text(tmp_path, config(OPENAI, f"{GROQ}, accepts_callers_of: [c]", OPENAI))

    assert names(snapshot, "m") == ["a/1", "b/1"]


def test_servers_of_our_own_are_called_without_a_strangers_credential(tmp_path: Path) -> None:
    """They seldom need one; where they do, the entry may say so."""
    text = config(OPENAI, "base_url: 'http://10.0.0.5:8000', kind: vllm")

    assert names(load_text(tmp_path, text), "m") == ["a/1", "b/1"]
    assert bound(load_text(tmp_path, text), "m").without_caller_credential == {"b/1"}
    assert bound(load_text(tmp_path, text), "other").without_caller_credential == frozenset()
    assert (
        bound(
            load_text(tmp_path, text.replace("kind: vllm", "kind: vllm, accepts_callers_of: [a]")), "m"
        ).without_caller_credential
        == frozenset()
    )


def test_who_is_left_out_is_said(tmp_path: Path) -> None:
    """By `check` and `explain`, with what would change it."""
    third = "base_url: 'http://10.0.0.5:8000', kind: vllm"
    text = (
        config(OPENAI, GROQ, third).replace("fallbacks: [other]", "fallbacks: [other, own]", 1)
        + "  own: {targets: [c/1]}\n"
    )
    snapshot = load_text(tmp_path, text)
    skipped = (
        "is skipped by calls with a credential of the caller's own, which is taken to be one of a "
        "(providers.b.accepts_callers_of: [a] lets it go there)"
    )
    without = (
        "is called without the caller's own credential, which is taken to be one of a "
        "(providers.c.accepts_callers_of: [a] lets it go there)"
    )

    assert [notice for notice in snapshot.notices if notice.startswith("model m")] == [
        f"model m: b/1 {skipped}",
        f"model m: c/1 {without}",
    ]
    told = explain(snapshot, BODY, path="/v1/chat/completions", key_name=None).splitlines()
    assert told[told.index("  2. b/1  (fallback)") + 1].strip() == skipped
    assert told[told.index("  3. c/1  (fallback)") + 1].strip() == without
    assert not any("skipped by calls with" in line for line in told[: told.index("  2. b/1  (fallback)")])
    assert describe(snapshot)["providers"]["b"]["accepts_callers_of"] == []


def test_a_provider_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """With a suggestion."""
    text = (
        config(OPENAI, f"{GROQ}, accepts_callers_of: [opneai]").replace("  a:", "  openai:").replace("a/1", "openai/1")
    )

    assert problems_of(tmp_path, text) == [
        'config.yaml:3: providers.b.accepts_callers_of[0]: no provider "opneai"; did you mean "openai"?'
    ]


def test_what_realtime_sessions_lack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of a model: which target can have none, and which package is missing."""
    text = """\
providers:
  cloud:
    {dialect: openai, base_url: 'https://bedrock.example/v1', auth: {aws: bearer, token: q7Zk29xLw04mVb81}}
  openai: {dialect: openai, base_url: 'https://api.openai.com/v1', api_key: sk-0123456789}
models:
  gpt-realtime: {targets: [openai/gpt-realtime, cloud/x-realtime]}
  plain: {targets: [openai/gpt-4o]}
"""
    said = "cloud/x-realtime can have no realtime sessions: provider cloud is called with a cloud's credential"
    assert [said in one for one in load_text(tmp_path, text).notices if "realtime sessions" in one] == [True]
    monkeypatch.setattr("gateway.products.realtime.config.find_spec", lambda _name: None)
    named = [one for one in load_text(tmp_path, text).notices if "pip install '.[realtime]'" in one]
    assert [one.startswith("model gpt-realtime: ") for one in named] == [True]
