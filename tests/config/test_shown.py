"""What `gateway check --show` and `gateway explain` tell of limits, counting and waiting."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gateway.config.describe import describe
from gateway.ingress import explain as explain_module
from gateway.ingress.explain import explain
from gateway.policy.estimate import ChargeRule
from gateway.policy.snapshot import PolicySnapshot
from tests.config.support import load_text

CONFIG = """\
providers:
  openai: {dialect: openai, base_url: "https://api.openai.com/v1", api_key: "${K}"}
  east: {dialect: azure, base_url: "https://x.openai.azure.com", api_key: "${K}"}
  vllm: {dialect: openai, base_url: "http://127.0.0.1:8000/v1", api_key: "${K}"}
models:
  gpt-4o:
    targets: [{provider: openai, rpm: 500, tpm: 2000000}, {provider: east, rpm: 300}]
    fallbacks: [claude]
  claude: {targets: [{provider: vllm, model: c, input_tpm: 450000, output_tpm: 90000, adaptive_concurrency: true}]}
keys:
  - {name: web, key: "${K}-of-sixteen-characters", critical: true}
  - {name: nightly, key: "${K}-of-sixteen-characters-2", lane: batch, names_tenants: true, max_concurrency: 9}
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> PolicySnapshot:
    """Two providers that count differently, one that queues, and two lanes."""
    return load_text(tmp_path, CONFIG, {"K": "secret"})


def test_description_shows_lanes_and_bounds_of_the_queue(snapshot: PolicySnapshot) -> None:
    """Every lane with its deadline and when its calls have aged."""
    shown = describe(snapshot)

    assert shown["lanes"] == {
        "critical": {"deadline_s": 30, "age_after_s": None},
        "interactive": {"deadline_s": 30, "age_after_s": None},
        "batch": {"deadline_s": 600, "age_after_s": 60},
        "background": {"deadline_s": 21600, "age_after_s": 600},
    }
    assert shown["queue"] == {
        "max_calls": 20000,
        "max_bytes": 512 * 1024 * 1024,
        "max_percent_per_tenant": 75,
        "aged_percent": 5,
        "shed_memory_bytes": None,
        "shed_loop_lag_s": 0.5,
    }


def test_description_shows_how_a_model_is_held_and_counted(snapshot: PolicySnapshot) -> None:
    """In the words of the policy files."""
    models = describe(snapshot)["models"]

    assert models["gpt-4o"]["holding"] == {
        "keepalive_after_s": 15,
        "reserve_percent": 10,
        "prefer_primary_for_s": {"critical": 2, "interactive": 2, "batch": 60, "background": 21600},
    }
    assert [target["counting"] for target in (models["gpt-4o"]["targets"][1], models["claude"]["targets"][0])] == [
        {
            "kind": kind,
            "charge": charge,
            "excludes_cached": False,
            "windows": windows,
            "learns": True,
            "first_output_tokens": 512,
            "arrival_lag_s": 0.1,
            "adaptive": adaptive,
            "tokenizer": "heuristic",
        }
        for kind, charge, windows, adaptive in (
            ("azure", "sum", "azure", False),
            ("other", "real", "continuous", True),
        )
    ]
    assert models["claude"]["targets"][0]["limits"] == {"input_tokens_per_min": 450000, "output_tokens_per_min": 90000}


def test_description_shows_what_a_key_may_ask_for(snapshot: PolicySnapshot) -> None:
    """Its lane, and whether it may leave it upwards or speak for others."""
    keys = describe(snapshot)["keys"]

    assert [(key["lane"], key["critical"], key["names_tenants"]) for key in keys] == [
        ("interactive", True, False),
        ("batch", False, True),
    ]
    assert keys[1]["limits"] == {"max_concurrency": 9}


def explained(snapshot: PolicySnapshot, key: str, model: str = "gpt-4o") -> list[str]:
    """The lines about a chat request of this key."""
    body = b'{"model": "%s", "messages": []}' % model.encode()
    return [line.strip() for line in explain(snapshot, body, path="/v1/chat/completions", key_name=key).splitlines()]


def test_explain_tells_lane_limits_and_charge_of_every_target(snapshot: PolicySnapshot) -> None:
    """Of fallbacks, too, and in short."""
    lines = explained(snapshot, "web")

    assert (
        "lane      interactive: waits 2 s for the model's own targets before a fallback, may ask for critical" in lines
    )
    assert "1. openai/gpt-4o  [500 requests/min, 2000000 tokens/min]" in lines
    assert "charged the larger of input tokens and max_tokens; limits learned from answers" in lines
    assert "2. east/gpt-4o  [300 requests/min]" in lines
    assert (
        "charged input tokens and max_tokens; requests in windows of 10 s; tokens in windows of 60 s; "
        "limits learned from answers"
    ) in lines
    assert "3. vllm/c  (fallback)  [450000 input tokens/min, 90000 output tokens/min]" in lines
    assert (
        "charged input tokens and what answers usually take; limits learned from answers; "
        "concurrency follows the first byte"
    ) in lines


def test_explain_tells_what_a_lower_lane_leaves_free(snapshot: PolicySnapshot) -> None:
    """And nothing of fallbacks where there are none."""
    lines = explained(snapshot, "nightly", "claude")

    assert "key       nightly (tenant nightly, lane batch)  [9 in flight]" in lines
    assert "lane      batch: leaves 10 % of each limit to higher lanes" in lines


def test_explain_tells_what_is_not_learned_and_not_counted(tmp_path: Path) -> None:
    """By the set that the model picks."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "admission.yaml").write_text("default: {learn_limits: false}")
    config = CONFIG.replace("http://127.0.0.1:8000", "https://api.anthropic.com")

    lines = explained(load_text(tmp_path, f"policies: rules\n{config}", {"K": "secret"}), "web", "claude")

    assert "lane      interactive: may ask for critical" in lines
    assert "charged input tokens, cached ones not; no limits learned; concurrency follows the first byte" in lines


def test_every_way_of_charging_can_be_explained() -> None:
    """A rule without words would be a traceback."""
    assert set(explain_module._CHARGES) == set(get_args(ChargeRule))
