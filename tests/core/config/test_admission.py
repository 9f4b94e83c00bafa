"""How a target is counted: rules by kind of provider, sets of admission.yaml, and every mistake in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.config import admission
from gateway.core.config.admission import BUILT_IN_RULES, KINDS, WINDOWS
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import AZURE, CONTINUOUS, Limits, LimitSet
from gateway.core.snapshot import Counting, Target
from tests.rows import rows
from tests.support.configs import load_text, problems_of, with_policies


def target_of(folder: Path, provider: str, model: str = "targets: [p]", **files: str) -> Target:
    """The target `p/m` at a provider with these fields, under a policy folder with these files."""
    head = with_policies(folder, **files).splitlines()[0]
    return (
        load_text(folder, f"{head}\nproviders: {{p: {{{provider}}}}}\nmodels: {{m: {{{model}}}}}\n")
        .models["m"]
        .targets[0]
    )


@rows(
    ("fields", "kind"),
    [
        ("dialect: openai, base_url: 'https://api.openai.com/v1'", "openai"),
        ("dialect: openai, base_url: 'https://eu.api.openai.com/v1'", "openai"),
        ("dialect: azure, base_url: 'https://gateway.internal'", "azure"),
        ("dialect: openai, base_url: 'https://r.openai.azure.com/openai/v1'", "azure"),
        ("dialect: openai, base_url: 'https://api.anthropic.com/v1'", "anthropic"),
        ("dialect: openai, base_url: 'https://api.groq.com/openai/v1'", "groq"),
        ("dialect: openai, base_url: 'https://api.mistral.ai/v1'", "mistral"),
        ("dialect: openai, base_url: 'https://api.together.xyz/v1'", "together"),
        ("dialect: openai, base_url: 'https://api.fireworks.ai/inference/v1'", "fireworks"),
        ("dialect: openai, base_url: 'https://api.x.ai/v1'", "xai"),
        ("dialect: openai, base_url: 'https://generativelanguage.googleapis.com/v1beta/openai'", "gemini"),
        ("dialect: openai, base_url: 'https://openrouter.ai/api/v1'", "openrouter"),
        ("dialect: openai, base_url: 'https://api.deepseek.com'", "deepseek"),
        ("dialect: openai, base_url: 'https://api.cohere.ai/compatibility/v1'", "cohere"),
        ("dialect: openai, base_url: 'https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1'", "bedrock"),
        ("dialect: openai, base_url: 'https://bedrock-mantle.eu-west-1.api.aws/v1'", "bedrock"),
        ("dialect: openai, base_url: 'https://x.execute-api.eu-west-1.amazonaws.com/v1'", ""),
        ("dialect: openai, base_url: 'https://europe-west1-aiplatform.googleapis.com/v1/endpoints/openapi'", "vertex"),
        ("dialect: openai, base_url: 'https://aiplatform.googleapis.com/v1/endpoints/openapi'", "vertex"),
        ("dialect: openai, base_url: 'http://127.0.0.1:8000/v1', kind: vllm", "vllm"),
        ("dialect: openai, base_url: 'http://127.0.0.1:8000/v1'", ""),
        ("dialect: openai, base_url: 'https://notx.ai/v1'", ""),
        ("dialect: openai, base_url: 'emulator://x'", "openai"),
        ("dialect: azure, base_url: 'https://x', emulate_without_key: true", "openai"),
        ("dialect: openai, base_url: 'http://proxy.internal/groq', kind: groq", "groq"),
        ("dialect: azure, base_url: 'https://x', kind: openai", "openai"),
        ("dialect: openai, base_url: 'emulator://x', kind: azure", "azure"),
        ("dialect: openai, base_url: 'https://api.openai.com/v1', kind: other", ""),
        ("dialect: openai, base_url: 'https://api.openai.com/v1', kind: '${NONE:-}'", "openai"),
    ],
)
def test_kind_of_a_provider_is_told_by_its_address_or_its_entry(tmp_path: Path, fields: str, kind: str) -> None:
    """The entry wins; a dialect tells as much as an address; nobody known is nobody in particular."""
    assert target_of(tmp_path, fields).counting.kind == kind


@rows("kind", KINDS)
def test_every_kind_has_a_rule_that_reaches_its_targets(tmp_path: Path, kind: str) -> None:
    """Charge, cached tokens and windows together."""
    counting = target_of(tmp_path, f"dialect: openai, base_url: 'https://x', kind: {kind}").counting

    rule = next(rule for name, rule in BUILT_IN_RULES.items() if name == kind)
    assert (counting.charge, counting.excludes_cached) == (rule.charge, rule.excludes_cached)
    assert counting.style == WINDOWS[rule.windows]


def test_documented_rules_are_built_in() -> None:
    """Who charges max_tokens up front, who leaves out cached tokens, who counts in windows."""
    by_charge = {
        charge: {kind for kind, rule in BUILT_IN_RULES.items() if rule.charge == charge}
        for charge in ("max", "sum", "input")
    }

    assert by_charge["max"] == {"openai"}
    assert by_charge["input"] == {"anthropic", "fireworks", "gemini"}
    assert {kind for kind, rule in BUILT_IN_RULES.items() if rule.excludes_cached} == {"anthropic", "groq", "fireworks"}
    assert {kind: rule.windows for kind, rule in BUILT_IN_RULES.items() if rule.windows != "continuous"} == {
        "azure": "azure",
        "mistral": "minute",
        "gemini": "minute",
    }


def test_windows_of_a_minute_are_fixed() -> None:
    """All of a minute's requests and tokens may go at once, and nothing more until the window ends."""
    limits = LimitSet(Limits(requests_per_min=60, tokens_per_min=600), 0.0, WINDOWS["minute"])

    assert limits.reserve(Cost(60, 600), 0.0) == 0.0
    assert limits.wait_s(Cost(1, 0), 59.0) == 1.0
    assert limits.wait_s(Cost(0, 1), 59.0) == 1.0
    assert (WINDOWS["continuous"], WINDOWS["azure"]) == (CONTINUOUS, AZURE)


def test_set_changes_what_it_says_and_keeps_the_rest(tmp_path: Path) -> None:
    """Of a rule field by field, of the kinds one by one; another set knows nothing of it."""
    admission = (
        "default:\n  providers: {groq: {excludes_cached: false}}\n"
        "mine:\n  learn_limits: false\n  first_answer_tokens: 100\n  providers:\n"
        "    groq: {charge: input}\n    openai: {windows: minute}\n    azure:\n"
    )
    groq, openai = "dialect: openai, base_url: 'https://api.groq.com'", "dialect: openai, base_url: 'emulator://x'"

    def counting(provider: str, model: str) -> Counting:
        return target_of(tmp_path, provider, model, admission=admission).counting

    assert counting(groq, "targets: [p]") == Counting(
        kind="groq", charge="sum", excludes_cached=False, arrival_lag_s=0.1
    )
    assert counting(groq, "targets: [p], admission: mine") == Counting(
        kind="groq", charge="input", excludes_cached=True, learns=False, first_output_tokens=100, arrival_lag_s=0.1
    )
    assert counting(openai, "targets: [p], admission: mine").style == WINDOWS["minute"]
    assert counting("dialect: azure, base_url: 'https://x'", "targets: [p], admission: mine").style == AZURE


def test_limits_and_adaptivity_of_a_target_are_compiled(tmp_path: Path) -> None:
    """Every limit has its own field."""
    target = target_of(
        tmp_path,
        "dialect: openai, base_url: 'https://x'",
        "targets: [{provider: p, rpm: 1, tpm: 2, rpd: 3, max_concurrency: 4, input_tpm: 5, output_tpm: 6, "
        "adaptive_concurrency: true}]",
    )

    assert target.limits == Limits(
        unstated_burst_s=10.0,
        requests_per_min=1,
        tokens_per_min=2,
        requests_per_day=3,
        max_concurrency=4,
        input_tokens_per_min=5,
        output_tokens_per_min=6,
    )
    assert target.counting.adaptive


def test_passthrough_reads_its_providers_words_and_learns_nothing(tmp_path: Path) -> None:
    """Files and batches have limits of their own, which say nothing of the models'."""
    text = with_policies(tmp_path) + "passthrough: openai\n"

    passthrough = load_text(tmp_path, text).passthrough

    assert passthrough is not None
    assert (passthrough.counting.kind, passthrough.counting.learns) == ("openai", False)


@rows(
    ("text", "problem"),
    [
        (
            "default: {include_usage: 1}",
            "rules/admission.yaml:1: default.include_usage: expected true or false, not a number",
        ),
        (
            "default:\n  learn_limit: true",
            'rules/admission.yaml:2: default.learn_limit: unknown field; did you mean "learn_limits"?',
        ),
        (
            "default: {learn_limits: often}",
            "rules/admission.yaml:1: default.learn_limits: expected true or false, not text",
        ),
        ("x:\n\n  first_answer_tokens: 0", "rules/admission.yaml:3: x.first_answer_tokens: must be at least 1"),
        (
            "x: {tokenizer: exakt}",
            'rules/admission.yaml:1: x.tokenizer: "exakt" is not one of heuristic, exact; did you mean "exact"?',
        ),
        ("x: {providers: [openai]}", "rules/admission.yaml:1: x.providers: expected a mapping, not a list"),
        (
            "x:\n  providers:\n    opnai: {charge: max}",
            'rules/admission.yaml:3: x.providers.opnai: unknown kind of provider; did you mean "openai"?',
        ),
        (
            "x: {providers: {zzz: {}}}",
            f"rules/admission.yaml:1: x.providers.zzz: unknown kind of provider; there are: {', '.join(KINDS)}",
        ),
        (
            "x: {providers: {groq: max}}",
            "rules/admission.yaml:1: x.providers.groq: expected a mapping, not text",
        ),
        (
            "x: {providers: {groq: {charge: all}}}",
            'rules/admission.yaml:1: x.providers.groq.charge: "all" is not one of max, sum, input, real',
        ),
        (
            "x: {providers: {groq: {exclude_cached: true}}}",
            'rules/admission.yaml:1: x.providers.groq.exclude_cached: unknown field; did you mean "excludes_cached"?',
        ),
        (
            "x: {providers: {groq: {windows: minutes}}}",
            'rules/admission.yaml:1: x.providers.groq.windows: "minutes" is not one of continuous, minute, azure; '
            'did you mean "minute"?',
        ),
    ],
)
def test_mistake_in_admission_is_said_once(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and a suggestion."""
    assert problems_of(tmp_path, with_policies(tmp_path, admission=text)) == [problem]


def test_exact_counts_without_their_package_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which names the extra; also in a set that no model picks."""
    monkeypatch.setattr(admission, "find_spec", lambda _name: None)

    assert problems_of(tmp_path, with_policies(tmp_path, admission="x:\n  tokenizer: exact\n")) == [
        "rules/admission.yaml:2: x.tokenizer: exact counts need the Python package tiktoken, which is not installed "
        "(the extra tokenizer: pip install 'llm-gateway-sidecar[tokenizer]')"
    ]


@rows(
    ("fields", "whose"),
    [
        ("base_url: 'https://api.openai.com/v1'", "account"),
        ("base_url: 'https://llm.example/v1'", "account"),
        ("base_url: 'https://llm.example/v1', kind: vllm", "server"),
        ("base_url: 'https://llm.example/v1', kind: ollama", "server"),
        ("base_url: 'https://llm.example/v1', kind: tgi, limits_are: account", "account"),
        ("base_url: 'https://api.openai.com/v1', limits_are: server", "server"),
    ],
)
def test_whose_limits_are_goes_by_the_kind_of_provider(tmp_path: Path, fields: str, whose: str) -> None:
    """A hosted provider counts by credential, a server of one's own counts everybody; the entry may say otherwise."""
    text = f"providers: {{p: {{dialect: openai, {fields}}}}}\nmodels: {{m: {{targets: [p]}}}}\n"

    assert load_text(tmp_path, text).providers["p"].limits_are == whose


def test_limits_of_nobody_are_an_error(tmp_path: Path) -> None:
    """With what may be said."""
    text = "providers: {p: {dialect: openai, base_url: 'https://x', limits_are: mine}}\nmodels: {m: {targets: [p]}}\n"

    (problem,) = problems_of(tmp_path, text)
    assert "account" in problem
    assert "server" in problem
