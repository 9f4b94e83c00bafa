"""breakers.yaml: what a set compiles to, what it inherits, and every mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.health.detector import BreakerRules
from tests.rows import rows
from tests.support.configs import load_text, problems_of, with_policies

BUILT_IN = {"critical": 21600, "interactive": 21600, "batch": 21600, "background": 21600}


def load_rules(folder: Path, text: str) -> BreakerRules:
    """The breaker of the only target under this breakers.yaml."""
    return load_text(folder, with_policies(folder, breakers=text)).models["gpt-4o"].targets[0].breaker


def test_every_field_is_compiled(tmp_path: Path) -> None:
    """In the units of its name."""
    text = """
default:
  enabled: false
  consecutive_failures: 7
  failure_rate_percent: 12.5
  min_calls: 8
  window: 2m
  slow_rate_percent: 90
  slow_factor: 2.5
  slow_at_least: 1s
  slow_at_most: 3s
  open_for: 4s
  max_open_for: 5s
  jitter_percent: 0
  probes: 1
  ramp: 0s
  hold_for: {critical: 1s, interactive: 2s, batch: 3s, background: 4s}
"""

    assert load_rules(tmp_path, text) == BreakerRules(
        is_enabled=False,
        consecutive_failures=7,
        failure_rate_percent=12.5,
        min_calls=8,
        window_s=120,
        slow_rate_percent=90,
        slow_factor=2.5,
        slow_at_least_s=1,
        slow_at_most_s=3,
        open_s=4,
        max_open_s=5,
        jitter_percent=0,
        probes=1,
        ramp_s=0,
        hold_for_s={"critical": 1, "interactive": 2, "batch": 3, "background": 4},
    )


@pytest.mark.parametrize("text", ["# nothing yet\n", "default:\n", "default: {window: , hold_for: {batch: }}"])
def test_what_is_left_out_is_built_in(tmp_path: Path, text: str) -> None:
    """A file, a set and a field alike."""
    assert load_rules(tmp_path, text) == BreakerRules()


def test_critical_is_held_as_interactive_unless_it_is_named(tmp_path: Path) -> None:
    """Who asks to go before all others waits no shorter than they do."""
    follows = load_rules(tmp_path, "default: {hold_for: {interactive: 5s}}")
    named = load_rules(tmp_path, "default: {hold_for: {interactive: 5s, critical: 1s}}")

    assert follows.hold_for_s == BUILT_IN | {"critical": 5, "interactive": 5}
    assert named.hold_for_s == BUILT_IN | {"critical": 1, "interactive": 5}


def test_targets_of_a_model_get_the_set_it_picks(tmp_path: Path) -> None:
    """It inherits from the built-in one, not from `default`."""
    text = with_policies(tmp_path, breakers="default: {probes: 1}\npatient: {window: 10m}\n")

    models = load_text(tmp_path, f"{text}  o3: {{targets: [openai], breakers: patient}}\n").models

    assert models["gpt-4o"].targets[0].breaker == BreakerRules(probes=1)
    assert models["o3"].targets[0].breaker == BreakerRules(window_s=600)


@rows(
    ("text", "problem"),
    [
        ("enable: true", 'default.enable: unknown field; did you mean "enabled"?'),
        ("enabled: 1", "default.enabled: expected true or false, not a number"),
        ("consecutive_failures: 0", "default.consecutive_failures: must be at least 1"),
        ("failure_rate_percent: 0", "default.failure_rate_percent: must be more than 0"),
        ("failure_rate_percent: 101", "default.failure_rate_percent: must be at most 100"),
        ("slow_factor: 0.5", "default.slow_factor: must be at least 1"),
        ("window: 60", "default.window: 60 has no unit: write for example 300ms, 30s, 5m, 6h or 1d"),
        ("open_for: 0s", 'default.open_for: "0s" must be longer than nothing'),
        ("open_for: 2m", "default: max_open_for must not be less than open_for"),
        ("slow_at_most: 5s", "default: slow_at_most must not be less than slow_at_least"),
        ("probes: 0", "default.probes: must be at least 1"),
        ("hold_for: 5s", "default.hold_for: expected a mapping, not text"),
        ("hold_for: {bacth: 5s}", 'default.hold_for.bacth: unknown field; did you mean "batch"?'),
        (
            "hold_for: {batch: 5}",
            "default.hold_for.batch: 5 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
    ],
)
def test_mistake_in_breakers_is_said_once(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and a suggestion."""
    config = with_policies(tmp_path, breakers=f"default: {{{text}}}")

    assert problems_of(tmp_path, config) == [f"rules/breakers.yaml:1: {problem}"]


def test_set_that_a_model_picks_must_be_there(tmp_path: Path) -> None:
    """With a suggestion."""
    text = with_policies(tmp_path, breakers="patient: {probes: 2}") + "  o3: {targets: [openai], breakers: patent}\n"

    assert problems_of(tmp_path, text) == [
        'config.yaml:6: models.o3.breakers: no set "patent"; did you mean "patient"?'
    ]
