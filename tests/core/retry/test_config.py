"""retries.yaml: what a set compiles to, what it inherits, and every mistake in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.balancing import BUILT_IN_RULES, Action, Backoff, ClassRule, CostRule, Hedging, Retries
from gateway.core.config.retries import CLASSES
from gateway.core.types import ErrorClass
from tests.rows import rows
from tests.support.configs import load_text, problems_of, with_policies


def load_retries(folder: Path, text: str, environ: dict[str, str] | None = None) -> Retries:
    """What the set `default` of this retries.yaml compiles to, in the model that has picked nothing."""
    snapshot = load_text(folder, with_policies(folder, retries=text), {"OPENAI_API_KEY": "", **(environ or {})})
    return snapshot.models["gpt-4o"].retries


def test_every_field_is_compiled(tmp_path: Path) -> None:
    """In the units of its name."""
    text = """
default:
  attempts: 7
  backoff: {base: 200ms, factor: 3, max: 1m, jitter: none}
  budget: {percent_of_active: 12.5, min_concurrent: 0, tokens: 50, retry_tokens: 1, timeout_tokens: 2}
  by_class: {auth: pass_through}
  by_cost: [{above_usd: 1, attempts: 1}, {below_usd: 1, above_usd: 0.5, attempts: 9}]
  max_usd_per_call: 2.5
  hedge: {percentile: 90, at_least: 1s, min_samples: 5}
"""

    assert load_retries(tmp_path, text) == Retries(
        attempts=7,
        backoff=Backoff(base_s=0.2, factor=3, max_s=60, has_jitter=False),
        budget_percent_of_active=12.5,
        budget_min_concurrent=0,
        tokens=50,
        retry_tokens=1,
        timeout_tokens=2,
        by_class={**BUILT_IN_RULES, ErrorClass.AUTH: ClassRule(Action.PASS_THROUGH)},
        by_cost=(CostRule(1, above_usd=1), CostRule(9, above_usd=0.5, below_usd=1)),
        max_usd_per_call=2.5,
        hedging=Hedging(percentile=90, at_least_s=1, min_samples=5),
    )


@pytest.mark.parametrize(
    "text",
    [
        "# nothing yet\n",
        "default:\n",
        "default: {attempts: , backoff: , budget: {}, by_class: {auth: }, by_cost: , max_usd_per_call: , hedge: }",
    ],
)
def test_what_is_left_out_is_built_in(tmp_path: Path, text: str) -> None:
    """A file, a set, a section and a field alike."""
    assert load_retries(tmp_path, text) == Retries()


def test_model_picks_a_set_that_names_only_what_it_changes(tmp_path: Path) -> None:
    """A set inherits from the built-in one, not from `default`; its sections and rules do, too."""
    text = with_policies(
        tmp_path,
        retries="default: {attempts: 2}\nx: {backoff: {max: 2s}, budget: {tokens: 60}, by_class: {timeout: {attempts: 4}}}\n",
    )

    models = load_text(tmp_path, f"{text}  o3: {{targets: [openai], retries: x}}\n").models

    assert models["gpt-4o"].retries == Retries(attempts=2, by_cost=())  # so many, whatever the call costs
    assert models["o3"].retries == Retries(
        backoff=Backoff(max_s=2),
        tokens=60,
        by_class={**BUILT_IN_RULES, ErrorClass.TIMEOUT: ClassRule(Action.RETRY, 4)},
    )


@rows(
    ("said", "error_class", "rule"),
    [
        ("connection: {attempts: 5}", "connection", ClassRule(Action.RETRY, 5, is_first_immediate=True)),
        ("connection: {first: backoff}", "connection", ClassRule(Action.RETRY, 3)),
        ("unknown: {attempts: 2}", "unknown", ClassRule(Action.RETRY, 2)),
        ("server_error: {first: immediate}", "server_error", ClassRule(Action.RETRY, 3, is_first_immediate=True)),
        ("timeout: {attempts: 1}", "timeout", ClassRule(Action.RETRY, 1)),
        ("overloaded: next_target", "overloaded", ClassRule(Action.NEXT_TARGET)),
        ("quota_exhausted: hold", "quota_exhausted", ClassRule(Action.HOLD)),
        ("payload_too_large: context_fallbacks", "payload_too_large", ClassRule(Action.CONTEXT_FALLBACKS)),
        ("auth: '${A}'", "auth", ClassRule(Action.PASS_THROUGH)),
        ("timeout: {attempts: '${N}'}", "timeout", ClassRule(Action.RETRY, 6)),
    ],
)
def test_class_is_treated_as_its_rule_says(tmp_path: Path, said: str, error_class: str, rule: ClassRule) -> None:
    """By name or by a number of attempts; what a rule leaves out is that of its class; values may come from variables."""
    text = f"default: {{by_class: {{{said}}}}}"

    found = load_retries(tmp_path, text, {"A": "pass_through", "N": "6"}).by_class

    assert found == {**BUILT_IN_RULES, error_class: rule}


def test_alias_means_both_rate_limits_and_a_class_of_its_own_wins(tmp_path: Path) -> None:
    """Whatever the order in the file."""
    found = load_retries(
        tmp_path, "default: {by_class: {rate_limit_tokens: pass_through, rate_limit: next_target}}"
    ).by_class

    assert found[ErrorClass.RATE_LIMIT_REQUESTS] == ClassRule(Action.NEXT_TARGET)
    assert found[ErrorClass.RATE_LIMIT_TOKENS] == ClassRule(Action.PASS_THROUGH)


def test_every_class_has_a_name_and_a_rule(tmp_path: Path) -> None:
    """A class without a rule would be a KeyError in the middle of an outage."""
    assert set(CLASSES) == {str(one) for one in ErrorClass} | {"rate_limit"}
    assert set(load_retries(tmp_path, "default: {by_class: {auth: pass_through}}").by_class) == set(ErrorClass)


def test_list_of_costs_replaces_the_built_in_one(tmp_path: Path) -> None:
    """Lines of two lists would get in each other's way; an empty list means that cost does not matter."""
    assert load_retries(tmp_path, "default: {by_cost: []}") == replace(Retries(), by_cost=())
    assert load_retries(tmp_path, "default: {by_cost: [{below_usd: 1, attempts: 3}]}").by_cost == (
        CostRule(3, below_usd=1),
    )


@pytest.mark.parametrize("said", ["{}", "{percentile: 95}"])
def test_hedging_is_on_as_soon_as_it_is_named(tmp_path: Path, said: str) -> None:
    """With the built-in numbers; without it there is none."""
    assert load_retries(tmp_path, f"default: {{hedge: {said}}}").hedging == Hedging()


SAME_AGAIN = "the same target would only say it again: write next_target or pass_through"
NO_RATE = "hold waits for a limit to refill, and this class is about none: write {attempts: N} or next_target"


@rows(
    ("text", "problem"),
    [
        ("atempts: 3", 'default.atempts: unknown field; did you mean "attempts"?'),
        ("attempts: 0", "default.attempts: must be at least 1, for the first attempt is one of them"),
        ("attempts: 101", "default.attempts: must be at most 100"),
        ("attempts: '3'", "default.attempts: expected a whole number, not text"),
        ("backoff: 100ms", "default.backoff: expected a mapping, not text"),
        ("backoff: {base: 100}", "default.backoff.base: 100 has no unit: write for example 300ms, 30s, 5m, 6h or 1d"),
        ("backoff: {base: 10s}", "default.backoff: max must not be less than base"),
        ("backoff: {factor: 0.5}", "default.backoff.factor: must be at least 1"),
        ("backoff: {jitter: half}", 'default.backoff.jitter: "half" is not one of full, none'),
        ("budget: {percent_of_active: 101}", "default.budget.percent_of_active: must be at most 100"),
        ("budget: {min_concurrent: -1}", "default.budget.min_concurrent: must be at least 0"),
        (
            "budget: {percent_of_active: 0, min_concurrent: 0}",
            "default.budget: percent_of_active and min_concurrent of 0 leave no retry at all: write attempts: 1 for that",
        ),
        (
            "budget: {tokens: 9}",
            "default.budget: tokens must be enough for one retry: not less than retry_tokens and timeout_tokens",
        ),
        ("by_class: [auth]", "default.by_class: expected a mapping, not a list"),
        (
            "by_class: {overlaoded: {attempts: 2}}",
            'default.by_class.overlaoded: unknown class of errors; did you mean "overloaded"?',
        ),
        ("by_class: {auth: next_taget}", 'default.by_class.auth: no action "next_taget"; did you mean "next_target"?'),
        (
            "by_class: {auth: zzz}",
            'default.by_class.auth: no action "zzz"; there are: hold, next_target, context_fallbacks, pass_through, '
            "{attempts: N}",
        ),
        ("by_class: {timeout: 3}", "default.by_class.timeout: expected a mapping, not a number"),
        (
            "by_class: {timeout: {attempts: 0}}",
            "default.by_class.timeout.attempts: must be at least 1, for the first attempt is one of them",
        ),
        ("by_class: {unknown: {first: backoff}}", "default.by_class.unknown.attempts: is missing"),
        (
            "by_class: {timeout: {attempts: 1, first: immediate}}",
            "default.by_class.timeout.first: with attempts: 1 there is no retry that could be immediate",
        ),
        (
            "by_class: {timeout: {frist: immediate}}",
            'default.by_class.timeout.frist: unknown field; did you mean "first"?',
        ),
        ("by_class: {server_error: hold}", f"default.by_class.server_error: {NO_RATE}"),
        ("by_class: {connection: hold}", f"default.by_class.connection: {NO_RATE}"),
        (
            "by_class: {rate_limit: context_fallbacks}",
            "default.by_class.rate_limit: a larger context window does not help against this class: write next_target",
        ),
        *(
            (f"by_class: {{{name}: {{attempts: 2}}}}", f"default.by_class.{name}: {SAME_AGAIN}")
            for name in (
                "auth",
                "bad_request",
                "content_policy",
                "context_length_exceeded",
                "not_found",
                "payload_too_large",
                "permission",
                "quota_exhausted",
            )
        ),
        ("by_cost: {attempts: 3}", "default.by_cost: expected a list, not a mapping"),
        ("by_cost: [3]", "default.by_cost[0]: expected a mapping, not a number"),
        ("by_cost: [{below_usd: 1}]", "default.by_cost[0].attempts: is missing"),
        (
            "by_cost: [{attempts: 3}]",
            "default.by_cost[0]: needs above_usd or below_usd; attempts for every call stand beside by_cost",
        ),
        (
            "by_cost: [{above_usd: 2, below_usd: 1, attempts: 3}]",
            "default.by_cost[0]: above_usd must be less than below_usd",
        ),
        (
            "by_cost: [{above_usd: 1, below_usd: 1, attempts: 3}]",
            "default.by_cost[0]: above_usd must be less than below_usd",
        ),
        (
            "by_cost: [{above_usd: 1, attempts: 3}, {above_usd: 2, attempts: 2}]",
            "default.by_cost[1]: is never reached: one above it matches the same calls; put the narrower first",
        ),
        ("max_usd_per_call: 0", "default.max_usd_per_call: must be more than 0"),
        ("hedge: true", "default.hedge: expected a mapping, not true or false"),
        ("hedge: {percentile: 100}", "default.hedge.percentile: must be at most 99.9"),
        ("hedge: {percentile: 10}", "default.hedge.percentile: must be at least 50"),
        ("attempts: 1, hedge: {}", "default: hedge is a second attempt: it needs attempts: 2 or more"),
    ],
)
def test_mistake_in_retries_is_said_once(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and the remedy."""
    config = with_policies(tmp_path, retries=f"default: {{{text}}}")

    assert problems_of(tmp_path, config) == [f"rules/retries.yaml:1: {problem}"]


def test_action_from_a_variable_is_not_shown(tmp_path: Path) -> None:
    """It may be a secret in the wrong place, and a suggestion would give it away."""
    config = with_policies(tmp_path, retries="default: {by_class: {auth: '${S}'}}")

    assert problems_of(tmp_path, config, {"OPENAI_API_KEY": "", "S": "next_targat"}) == [
        "rules/retries.yaml:1: default.by_class.auth: no action the value of ${S}"
    ]


def test_set_that_a_model_picks_must_be_there(tmp_path: Path) -> None:
    """With a suggestion."""
    text = with_policies(tmp_path, retries="dear: {attempts: 2}") + "  o3: {targets: [openai], retries: daer}\n"

    assert problems_of(tmp_path, text) == ['config.yaml:6: models.o3.retries: no set "daer"; did you mean "dear"?']
