"""What `gateway check --show` and `gateway explain` tell of limits, counting and waiting."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
import yaml

from gateway.admin import explain as call
from gateway.admin.describe import describe
from gateway.admin.explain import explain
from gateway.core.balancing import Choice
from gateway.core.errors import NotFound
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.bucket import ChargeRule
from gateway.core.snapshot import PolicySnapshot
from tests.support.configs import ROOT, load_text

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
  - {name: nightly, key: "${K}-of-sixteen-characters-2", lane: batch, names_tenants: true, max_concurrency: 9,
     budget_usd_per_day: 2.5}
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
        "keepalive_after_s": 10,
        "interim": None,
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
    assert models["claude"]["targets"][0]["limits"] == {
        "input_tokens_per_min": 450000,
        "output_tokens_per_min": 90000,
        "unstated_burst_s": 10,
    }


def test_description_shows_what_a_key_may_ask_for(snapshot: PolicySnapshot) -> None:
    """Its lane, and whether it may leave it upwards or speak for others."""
    keys = describe(snapshot)["keys"]

    assert [(key["lane"], key["critical"], key["names_tenants"]) for key in keys] == [
        ("interactive", True, False),
        ("batch", False, True),
    ]
    assert keys[1]["limits"] == {"max_concurrency": 9}


def test_description_shows_how_a_model_is_retried_and_chosen(tmp_path: Path) -> None:
    """In the words of the policy files, complete, and ready for JSON."""
    text = CONFIG.replace("fallbacks: [claude]", "context_fallbacks: [claude]\n    choose: fastest")
    snapshot = load_text(tmp_path, text, {"K": "secret"})

    model = describe(snapshot)["models"]["gpt-4o"]

    assert (model["choose"], model["plan"], model["context_plan"]) == (
        "fastest",
        ["openai/gpt-4o", "east/gpt-4o"],
        ["vllm/c"],
    )
    shipped = yaml.safe_load((ROOT / "policies" / "retries.yaml").read_text())["default"]
    rates = {"rate_limit_requests": "hold", "rate_limit_tokens": "hold"}
    by_class = {**shipped["by_class"], **rates}
    del by_class["rate_limit"]
    assert model["retries"] == {
        **shipped,
        "backoff": {"base_s": 0.1, "factor": 2, "max_s": 8, "has_jitter": True},
        "by_class": by_class,
        "max_usd_per_call": None,
        "hedge": None,
    }
    assert json.loads(json.dumps(model)) == model


def test_description_shows_tier_account_capabilities_and_breaker_of_a_target(tmp_path: Path) -> None:
    """What a call is sent there by, and what keeps it away."""
    text = CONFIG.replace("rpm: 300", "order: 2, weight: 3, capabilities: {images: false, context_window: 9}")

    first, second = describe(load_text(tmp_path, text, {"K": "secret"}))["models"]["gpt-4o"]["targets"]

    assert (first["order"], first["weight"], first["account"]) == (1, 1, "openai")
    assert (second["order"], second["weight"], second["account"]) == (2, 3, "east")
    assert second["capabilities"] == {
        "tools": True,
        "images": False,
        "structured_output": True,
        "context_window": 9,
    }
    assert second["breaker"] == asdict(BreakerRules())


def test_clocks_are_shown_by_endpoint_and_lane(snapshot: PolicySnapshot) -> None:
    """Only what differs from the target's own; explained are those of the request."""
    target = describe(snapshot)["models"]["gpt-4o"]["targets"][0]

    assert target["clocks_by"]["chat"] == {"background": {"first_byte_s": 1800}}
    assert target["clocks_by"]["moderations"]["batch"] == {"first_byte_s": 30, "idle_s": 30, "total_s": 60}
    assert "connect 5 s, first byte 600 s, idle 300 s, total 3600 s" in explained(snapshot, "web")
    body = b'{"model": "gpt-4o", "input": "x"}'
    lines = explain(snapshot, body, path="/v1/embeddings", key_name="web").splitlines()
    assert "     connect 5 s, first byte 60 s, idle 60 s, total 120 s" in lines
    streamed = b'{"model": "gpt-4o", "messages": [], "stream": true}'
    lines = explain(snapshot, streamed, path="/v1/chat/completions", key_name="web").splitlines()
    assert "     a stream drips below 0.01 events/s over 300 s" in lines
    assert not any("drips" in line for line in explained(snapshot, "web"))


def test_description_shows_the_error_tables_in_use(snapshot: PolicySnapshot) -> None:
    """By kind, each rule with its class in the order in which they are asked."""
    shown = describe(snapshot)

    assert set(shown["errors"]) == {"openai", "azure", "other"}
    target = snapshot.models["gpt-4o"].targets[0]
    assert list(shown["errors"]["openai"].items()) == [(rule.name, rule.error_class) for rule in target.errors.rules]
    assert [t["errors"] for t in shown["models"]["gpt-4o"]["targets"]] == ["openai", "azure"]


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

    assert "key       nightly (tenant nightly, lane batch)  [9 in flight], $2.5 a day" in lines
    assert "lane      batch: leaves 10 % of each limit to higher lanes in use" in lines


def test_explain_tells_what_is_not_learned_and_not_counted(tmp_path: Path) -> None:
    """By the set that the model picks."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "admission.yaml").write_text("default: {learn_limits: false}")
    config = CONFIG.replace("http://127.0.0.1:8000", "https://api.anthropic.com")

    lines = explained(load_text(tmp_path, f"policies: rules\n{config}", {"K": "secret"}), "web", "claude")

    assert "lane      interactive: may ask for critical" in lines
    assert "charged input tokens, cached ones not; no limits learned; concurrency follows the first byte" in lines


def test_explain_tells_attempts_and_what_each_class_of_error_leads_to(tmp_path: Path) -> None:
    """By the set that the model picks; what costs caps the attempts."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "retries.yaml").write_text(
        "default: {max_usd_per_call: 2, hedge: {}, by_class: {unknown: {attempts: 2}}}"
    )

    lines = explained(load_text(tmp_path, f"policies: rules\n{CONFIG}", {"K": "secret"}), "web")

    assert (
        "attempts  4, 2 for above $0.25 each, 5 for above $0.0001 and below $0.01 each, 10 for below $0.0001 each; "
        "at most $2 for all of them"
    ) in lines
    assert "a second one after 95 % of answers have begun, not before 0.25 s" in lines
    assert "hold              rate_limit_requests, rate_limit_tokens" in lines
    assert "next_target       quota_exhausted, auth, model_not_found" in lines
    assert next(line for line in lines if line.startswith("retry ")) == (
        "retry             overloaded 3x, server_error 3x, timeout 2x, connection 3x (first at once), "
        "conflict 3x, malformed_response 3x, stream_interrupted 3x, unknown 2x"
    )


def test_explain_tells_how_a_target_is_chosen_and_when_it_is_left_alone(tmp_path: Path) -> None:
    """Its tier, weight and account, what it cannot do, and its breaker; and who serves long contexts only."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "breakers.yaml").write_text("none: {enabled: false}")
    text = CONFIG.replace(
        "rpm: 300", "order: 2, capabilities: {tools: false, structured_output: false, context_window: 9}"
    )
    text = text.replace("fallbacks: [claude]", "context_fallbacks: [claude]\n    choose: least_loaded")
    text = text.replace("  claude: {", "  claude: {breakers: none, ")

    lines = explained(load_text(tmp_path, f"policies: rules\n{text}", {"K": "secret"}), "nightly")

    assert "plan      in each tier the least loaded first" in lines
    assert "tier 1, weight 1, account openai" in lines
    assert "tier 2, weight 1, account east" in lines
    assert "skipped by calls that need tools, structured output, more than 9 tokens" in lines
    assert (
        "opens for 2 s after 5 failures in a row or 50 % of 20 calls or more in 60 s, if that lasts; "
        "with all open a call waits 21600 s"
    ) in lines
    assert (
        "3. vllm/c  (where the context is too long for the others)  [450000 input tokens/min, 90000 output tokens/min]"
        in lines
    )
    assert lines.count("no breaker") == 1


def test_every_choice_can_be_explained() -> None:
    """A choice without words would be a traceback."""
    assert set(call._CHOICES) == set(get_args(Choice))


def test_every_way_of_charging_can_be_explained() -> None:
    """A rule without words would be a traceback."""
    assert set(call._CHARGES) == set(get_args(ChargeRule))


def test_workflows_are_shown_and_a_call_is_told_its_own(tmp_path: Path) -> None:
    """By the names of the file; with where the fuse of its runs blows, and what a slow model's calls ask less of."""
    (tmp_path / "policies").mkdir()
    rules = {"tasks": ["extract"], "usd_per_run": 0.5, "max_calls_per_run": 9}
    (tmp_path / "policies" / "workflows.yaml").write_text(yaml.safe_dump({"workflows": {"invoice": rules}}))
    degrade = "degrade: {when: {first_byte_p95_above: 10s}, set: {reasoning_effort: low}}"
    config = CONFIG.replace("fallbacks: [claude]", f"fallbacks: [claude]\n    {degrade}") + "policies: policies\n"
    policy = load_text(tmp_path, config, {"K": "secret"})
    assert describe(policy)["workflows"]["invoice"]["usd_per_run"] == 0.5
    for name, line in (
        ("invoice", "workflow  invoice, counted as task extract; a run may take $0.5 and 9 calls"),
        ("another", "workflow  another: not declared, counted as other"),
    ):
        body = {"model": "gpt-4o", "messages": [], "metadata": {"workflow": name, "task": "extract"}}
        told = explain(policy, json.dumps(body).encode(), path="/v1/chat/completions", key_name="web").splitlines()
        assert line in told
        assert "degrade   asks for reasoning_effort low while 5 % of first bytes take longer than 10 s" in told


def test_explain_shows_what_a_target_of_another_language_is_sent(tmp_path: Path) -> None:
    """Under the provider's name for the model, with the edits of the config; where it cannot be said, why."""
    policy = load_text(
        tmp_path,
        "providers:\n  a: {dialect: anthropic, api_key: sk-ant-0123456789}\n  o: {dialect: openai, base_url: 'https://x'}\n"
        "models: {m: {targets: [{provider: a, model: claude-opus-4-5, body: {drop: [seed]}}, {provider: o, order: 2}]}}\n",
    )

    def shown(**more: Any) -> str:
        body = orjson.dumps(
            {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 1, "verbosity": "low", **more}
        )
        return explain(policy, body, path="/v1/chat/completions", key_name=None, shows_upstream=True)

    said = shown(max_tokens=9)
    assert "a/claude-opus-4-5: POST https://api.anthropic.com/v1/messages\n{" in said
    assert '"model": "claude-opus-4-5",\n  "max_tokens": 9' in said
    assert "o/m: as it came" in said
    assert "nothing, for the request cannot be put into its language" in shown(
        messages=[{"role": "tool", "content": "x"}]
    )
    for line in (
        "asked for 'claude-opus-4-5'; $5 in, $25 out per million tokens; $10 per thousand searches",
        "put into Anthropic's Messages",
        "of the body the config sets nothing and drops seed",
        "verbosity is dropped: the target has no such option",
        "known of claude-opus-4-5 (built in, claude-opus-4-5*): efforts [low, medium, high]",
    ):
        assert f"     {line}\n" in said
    assert "skipped" not in said
    assert "seed is dropped" not in said
    refused = shown(n=2)
    assert "     skipped by this call, for n\n" in refused
    assert "sent      a/claude-opus-4-5: nothing, for this call skips it\n" in refused


def test_geminis_paths_are_explained_with_what_they_say(tmp_path: Path) -> None:
    """The model and the stream stand in the path."""
    config = "providers: {a: {dialect: anthropic}}\nmodels: {x/*: {targets: [{provider: a, strip: x/}]}}\n"
    policy = load_text(tmp_path, config)
    body = b'{"contents":[{"parts":[{"text":"hi"}]}],"safetySettings":[{}]}'

    def shown(path: str) -> str:
        return explain(policy, body, path=path, key_name=None, shows_upstream=True)

    said = shown("/v1beta/models/x/claude-opus-4-5:streamGenerateContent?alt=sse")
    assert "endpoint  generate (/generate), streamed\n" in said
    assert "     asked for 'claude-opus-4-5'; " in said
    assert "     safetySettings is dropped: " in said
    assert '"stream": true' in said
    assert "endpoint  count_generated" in shown("/v1/models/x/claude-opus-4-5:countTokens")
    with pytest.raises(NotFound, match="/v1beta/models/MODEL:generateContent"):
        shown("/v1beta/models/x/claude-opus-4-5:predict")


def test_a_name_that_loses_its_prefix_is_shown(tmp_path: Path) -> None:
    """Also where the rest of the body goes as it came, or the config changes it."""
    config = "providers: {o: {dialect: openai, base_url: 'https://a'}}\nmodels: {x/*: {targets: [{provider: o%s}]}}\n"

    def told(more: str) -> str:
        policy = load_text(tmp_path, config % more)
        return explain(policy, b'{"model":"x/a","messages":[]}', path="/v1/chat/completions", key_name=None)

    assert "the body's model becomes 'a', nothing else changes; " in told(", strip: x/")
    assert "the body's model becomes 'a'; " in told(", strip: x/, body: {drop: [seed]}")


def test_explain_tells_the_price_of_each_unit(tmp_path: Path) -> None:
    """What is sold by characters costs nothing by the token; and what nobody can count is refused to a key with a budget."""
    policy = load_text(
        tmp_path,
        "providers: {o: {dialect: openai, base_url: 'https://api.openai.com/v1', api_key: sk-0123456789}}\n"
        "models: {m: {targets: [o/tts-1]}, odd: {targets: [o/odd]}, own: {targets: [{provider: o, model: x, price: "
        "{input_usd_per_million: 1, audio_usd_per_hour: 0.36, image_usd: 0.04, request_usd_per_thousand: 2}}]}}\n"
        "keys: [{name: web, key: web-canary-key-0123456789, budget_usd_per_day: 5}, "
        "{name: free, key: other-canary-0123456789}]\n"
        f"jobs: {{store: 'sqlite:///{tmp_path}/jobs.db'}}\n",
    )

    def shown(model: str, key: str = "web") -> str:
        body = orjson.dumps({"model": model, "input": "x" * 3000, "voice": "alloy"})
        return explain(policy, body, path="/v1/audio/speech", key_name=key)

    assert "; $15 per million characters\n" in shown("m")
    assert "about $0.045 an attempt" in shown("m")
    assert (
        "$1 in, $0 out per million tokens; $0.36 per hour of sound; $0.04 per picture; $2 per thousand calls\n"
        in shown("own")
    )
    assert "; price not known: 403 unpriced_endpoint for this key, which has a budget\n" in shown("odd")
    assert "; price not known\n" in shown("odd", "free")

    def asked(model: str, path: str) -> str:
        return explain(policy, orjson.dumps({"model": model, "messages": [], "input": "x"}), path=path, key_name="web")

    refused = "$15 per million characters; no price for {}: 403 unpriced_endpoint for this key, which has a budget\n"
    assert refused.format("chat") in asked("m", "/v1/chat/completions")
    assert refused.format("images") in asked("m", "/v1/images/generations")
    assert "; $15 per million characters\n" in asked("m", "/v1/moderations")
    for path in ("/v1/moderations", "/v1/messages/count_tokens"):  # nobody is refused what is free
        assert "; price not known\n" in asked("odd", path)
        assert "403" not in asked("m", path)


def test_explain_tells_prices_above_a_length_and_who_is_refused_what_has_none(tmp_path: Path) -> None:
    """Only keys with a budget are; `--show` has every price."""
    policy = load_text(
        tmp_path,
        "providers: {o: {dialect: openai, base_url: 'https://x'}}\n"
        "models:\n  m:\n    targets:\n      - {provider: o, model: house}\n      - provider: o\n        model: long\n"
        "        price: {input_usd_per_million: 1, output_usd_per_million: 2, search_usd_per_thousand: 10,\n"
        "          above: [{input_tokens: 200000, input_usd_per_million: 3}],\n"
        "          service_tiers: {flex: {input_usd_per_million: 0.5}}}\n"
        "keys:\n  - {name: team, key: sk-0123456789abcdef0123456789, budget_usd_per_day: 5}\n"
        "  - {name: free, key: sk-1123456789abcdef0123456789}\n",
    )
    body = b'{"model":"m","messages":[]}'
    told = explain(policy, body, path="/v1/chat/completions", key_name="team")

    assert "price not known: 403 unpriced_endpoint for this key, which has a budget\n" in told
    assert "above 200,000 input tokens $3 in, $2 out; flex $0.5 in, $2 out; $10 per thousand searches\n" in told
    assert "price not known\n" in explain(policy, body, path="/v1/chat/completions", key_name="free")
    shown = describe(policy)["models"]["m"]["targets"][1]["usd_per_million"]
    assert shown["above"] == {"200000": {"input": 3.0, "output": 2.0, "cached_input": 3.0, "search": 10_000.0}}
    assert shown["service_tiers"]["flex"]["input"] == 0.5


def test_what_products_do_for_a_request_stands_in_one_order(tmp_path: Path) -> None:
    """Before and behind the lines on attempts; of a pipeline only its steps are shown, for its runs are no calls."""
    policies = tmp_path / "policies"
    (policies / "pipelines").mkdir(parents=True)
    step = "steps:\n  a: {call: {model: m, messages: [{role: user, content: hi}]}}\noutput: '{{ steps.a.text }}'\n"
    (policies / "pipelines" / "one.yaml").write_text(step)
    (policies / "workflows.yaml").write_text("workflows: {daily: {usd_per_run: 2}}")
    product = (
        "group_embeddings: {most: 9}, output: {schema: request}, "
        "degrade: {when: {first_byte_p95_above: 10s}, set: {max_tokens: 5}}"
    )
    text = (
        'providers: {p: {dialect: openai, base_url: "http://127.0.0.1:9/v1", api_key: sk-x}}\n'
        f"models: {{m: {{targets: [p/m], {product}}}}}\n"
        "keys: [{name: web, key: web-key-0123456789abcdef, workflow: daily}]\npolicies: policies\n"
    )
    policy = load_text(tmp_path, text)

    def headings(endpoint: str, model: str = "m") -> list[str]:
        body = orjson.dumps({"model": model, "messages": [], "input": "a"})
        lines = explain(policy, body, path=f"/v1/{endpoint}", key_name="web").splitlines()
        return [line.split()[0] for line in lines if not line.startswith(" ")]

    head = ["endpoint", "key", "model", "lane", "deadline"]
    assert headings("chat/completions") == [
        *(*head, "proxy", "workflow", "degrade", "cache", "attempts"),
        *("output", "job", "plan", "usage"),
    ]
    assert headings("responses") == [
        *(*head, "proxy", "workflow", "degrade", "cache", "attempts"),
        *("output", "job", "response", "plan", "usage"),
    ]
    assert headings("embeddings") == [
        *head,
        "proxy",
        "workflow",
        "cache",
        "attempts",
        "grouped",
        "job",
        "plan",
        "usage",
    ]
    assert headings("chat/completions", "pipelines/one") == [*head, "pipeline"]
