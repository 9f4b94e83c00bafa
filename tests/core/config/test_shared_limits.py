"""Targets that several models name: one bucket, so the same limits and the same way of counting in all of them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config.models import FIELDS, share_limits
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting, PolicySnapshot, Provider, Target
from gateway.core.types import Clocks
from tests.support.configs import ENVIRON, connect, load_text, with_policies

CLOCKS = Clocks(1, 1, 1, 1, 1)
UPSTREAM = connect(Provider("p", "openai", "https://x"), None)


def load_models(folder: Path, models: str, **files: str) -> PolicySnapshot:
    """The snapshot of these models at the provider `openai`."""
    head = with_policies(folder, **files).splitlines()[0]
    provider = '{dialect: openai, base_url: "https://api.openai.com/v1", api_key: "${OPENAI_API_KEY}"}'
    return load_text(folder, f"{head}\nproviders: {{openai: {provider}}}\nmodels: {{{models}}}\n", ENVIRON)


def limits_by_model(snapshot: PolicySnapshot) -> dict[str, Limits]:
    """Of the first target of each."""
    models = {**snapshot.models, **{model.name: model for _, model in snapshot.patterns}}
    return {name: model.targets[0].limits for name, model in models.items()}


def test_limits_that_one_model_says_hold_for_all(tmp_path: Path) -> None:
    """Each limit by itself, and nothing is worth a word; in plans too."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [openai/x], fallbacks: [b]}, b: {targets: [{provider: openai, model: x, rpm: 5}]}, "
        "c: {targets: [{provider: openai, model: x, tpm: 9}]}, d: {targets: [openai/y]}",
    )

    shared = Limits(unstated_burst_s=10.0, requests_per_min=5, tokens_per_min=9)
    assert limits_by_model(snapshot) == {
        "a": shared,
        "b": shared,
        "c": shared,
        "d": Limits(
            unstated_burst_s=10.0,
        ),
    }
    assert [target.limits for target in snapshot.models["a"].plan] == [shared]
    assert snapshot.notices == ()


def test_where_two_models_differ_the_smaller_holds_and_is_announced(tmp_path: Path) -> None:
    """In the words of the config, one sentence for each target."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [{provider: openai, model: x, rpm: 5, tpm: 2000000, rpd: 7}]}, "
        "b: {targets: [{provider: openai, model: x, rpm: 3, tpm: 3000000, rpd: 7, max_concurrency: 2}]}",
    )

    shared = Limits(
        unstated_burst_s=10.0, requests_per_min=3, tokens_per_min=2000000, requests_per_day=7, max_concurrency=2
    )
    assert limits_by_model(snapshot) == {"a": shared, "b": shared}
    assert snapshot.notices == (
        "target openai/x has different limits in the models a, b: the smallest hold (rpm 3, tpm 2000000)",
    )


def test_targets_for_any_name_share_among_themselves(tmp_path: Path) -> None:
    """`openai/*` is one target in two patterns, and another than `openai/x`."""
    snapshot = load_models(
        tmp_path,
        "'a*': {targets: [{provider: openai, rpm: 5}]}, 'b*': {targets: [openai]}, x: {targets: [openai]}",
    )

    wildcard = Limits(unstated_burst_s=10.0, requests_per_min=5)
    assert limits_by_model(snapshot) == {
        "x": Limits(
            unstated_burst_s=10.0,
        ),
        "a*": wildcard,
        "b*": wildcard,
    }


def test_adaptive_concurrency_of_one_model_holds_for_all(tmp_path: Path) -> None:
    """It is the target that queues, whoever asks."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [openai/x]}, b: {targets: [{provider: openai, model: x, adaptive_concurrency: true}]}",
    )

    assert [model.targets[0].counting.adaptive for model in snapshot.models.values()] == [True, True]
    assert snapshot.notices == ()


def test_limit_that_fails_closed_in_one_model_does_in_all(tmp_path: Path) -> None:
    """The stricter word holds, as with the limits themselves."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [{provider: openai, model: x, rpm: 5}]}, "
        "b: {targets: [{provider: openai, model: x, tpm: 9, fail_closed: [tpm]}]}",
    )

    shared = Limits(
        unstated_burst_s=10.0, requests_per_min=5, tokens_per_min=9, fail_closed=frozenset({"tokens_per_min"})
    )
    assert limits_by_model(snapshot) == {"a": shared, "b": shared}


def test_target_is_counted_as_the_first_model_says(tmp_path: Path) -> None:
    """A provider counts in one way; that models pick sets that differ is announced."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [openai/x]}, b: {targets: [openai/x, openai/y], admission: careful}",
        admission="careful: {providers: {openai: {charge: sum}}}",
    )

    a, b = (snapshot.models[name].targets for name in "ab")
    assert [target.counting.charge for target in (*a, *b)] == ["max", "max", "sum"]
    assert snapshot.notices == ("target openai/x is counted differently in the models a, b: it is counted as a says",)


def test_target_has_the_breaker_of_the_first_model(tmp_path: Path) -> None:
    """It is open or not, whoever asks; that models pick sets that differ is announced."""
    snapshot = load_models(
        tmp_path,
        "a: {targets: [openai/x], breakers: soon}, b: {targets: [openai/x, openai/y]}, c: {targets: [openai/y]}",
        breakers="soon: {consecutive_failures: 2}",
    )

    a, b = (snapshot.models[name].targets for name in "ab")
    soon = BreakerRules(consecutive_failures=2)
    assert [target.breaker for target in (*a, *b)] == [soon, soon, BreakerRules()]
    assert snapshot.models["b"].plan[0].breaker == soon
    assert snapshot.notices == ("target openai/x has different breakers in the models a, b: it has that of a",)


def test_every_limit_is_shared() -> None:
    """A new one must not be forgotten here."""
    assert set(FIELDS) | {"fail_closed", "unstated_burst_s"} == {field.name for field in fields(Limits)}


AMOUNTS = st.one_of(st.none(), st.integers(1, 9))
CLOSED = st.frozensets(st.sampled_from(["tokens_per_min", "concurrency"]))
LIMITS = st.builds(Limits, **dict.fromkeys(FIELDS, AMOUNTS), fail_closed=CLOSED)
TARGETS = st.lists(st.tuples(st.sampled_from("xyz"), LIMITS, st.booleans()), max_size=3, unique_by=lambda one: one[0])


@given(st.dictionaries(st.sampled_from("abcd"), TARGETS))
def test_targets_of_one_name_are_equal_and_never_wider_than_any_said(
    said: dict[str, list[tuple[str, Limits, bool]]],
) -> None:
    """And what nobody limits stays free; order and number of the targets stay."""
    before = {
        model: tuple(
            Target(name, "p", name, UPSTREAM, CLOCKS, limits=limits, counting=Counting(adaptive=adaptive))
            for name, limits, adaptive in own
        )
        for model, own in said.items()
    }

    after, notices = share_limits(before)

    assert {model: [t.name for t in own] for model, own in after.items()} == {
        model: [t.name for t in own] for model, own in before.items()
    }
    for name in "xyz":
        was = [target for own in before.values() for target in own if target.name == name]
        now = [target for own in after.values() for target in own if target.name == name]
        assert len({(target.limits, target.counting) for target in now}) <= 1
        for target in now[:1]:
            assert target.limits.fail_closed == frozenset().union(*(one.limits.fail_closed for one in was))
        for field in FIELDS if now else ():
            amounts = {amount for target in was if (amount := getattr(target.limits, field)) is not None}
            assert getattr(now[0].limits, field) == min(amounts, default=None)
            assert len(amounts) <= 1 or any(f"target {name} " in notice for notice in notices)
    assert share_limits(after) == (after, ())
