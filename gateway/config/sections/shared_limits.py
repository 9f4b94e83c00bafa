"""One place, one bucket: what several models say about the same target is put together.

Limits are kept at run time under a target's name, whichever model a call asked for. Invariant: targets of one name have
the same limits, are counted in the same way and have the same breaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.config.sections.credentials import is_first
from gateway.policy.snapshot import Target

FIELDS: Final[Mapping[str, str]] = {
    "requests_per_min": "rpm",
    "request_burst": "burst",
    "tokens_per_min": "tpm",
    "input_tokens_per_min": "input_tpm",
    "output_tokens_per_min": "output_tpm",
    "requests_per_day": "rpd",
    "max_concurrency": "max_concurrency",
}
"""Every limit, and what it is called in a config."""
_Named = list[tuple[str, Target]]
"""The models that name one target, in the order of the file, each with the target as it describes it."""


def share_limits(targets: Mapping[str, tuple[Target, ...]]) -> tuple[dict[str, tuple[Target, ...]], tuple[str, ...]]:
    """The targets of each model, made equal where they share a name, and a sentence wherever something had to give way.

    Of each limit the smallest that any model says holds; it fails closed if any of them says so. How calls are counted, the
    first model in the file decides; that concurrency is adaptive, any of them. The breaker is that of the first model, too.
    """
    named: dict[str, _Named] = {}
    for model, own in targets.items():
        for target in own:
            named.setdefault(target.name, []).append((model, target))
    notices: list[str] = []
    shared = {
        name: _share(name, among, notices if is_first(among[0][1].provider) else []) for name, among in named.items()
    }
    return {
        model: tuple(
            replace(target, limits=one.limits, counting=one.counting, breaker=one.breaker)
            for target in own
            for one in (shared[target.name],)
        )
        for model, own in targets.items()
    }, tuple(notices)


def _share(name: str, among: _Named, notices: list[str]) -> Target:
    said = {
        field: {value for _, target in among if (value := getattr(target.limits, field)) is not None}
        for field in FIELDS
    }
    smallest = {field: min(values) for field, values in said.items() if values}
    disputed = [f"{FIELDS[field]} {value:.15g}" for field, value in smallest.items() if len(said[field]) > 1]
    models = ", ".join(model for model, _ in among)
    if disputed:
        notices.append(
            f"target {name} has different limits in the models {models}: the smallest hold ({', '.join(disputed)})"
        )
    first_model, first = among[0]
    if any(_way(target) != _way(first) for _, target in among):
        notices.append(
            f"target {name} is counted differently in the models {models}: it is counted as {first_model} says"
        )
    if any(target.breaker != first.breaker for _, target in among):
        notices.append(f"target {name} has different breakers in the models {models}: it has that of {first_model}")
    closed = frozenset[str]().union(*(target.limits.fail_closed for _, target in among))
    counting = replace(first.counting, adaptive=any(target.counting.adaptive for _, target in among))
    return replace(first, limits=replace(first.limits, **smallest, fail_closed=closed), counting=counting)


def _way(target: Target) -> tuple[object, ...]:
    """How a target is counted, but for what any model may switch on."""
    return replace(target.counting, adaptive=False), target.counting.exact_tokens is None
