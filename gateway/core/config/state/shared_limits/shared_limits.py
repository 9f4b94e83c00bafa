"""Limits that are shared: by the models that name the same target, and by replicas (`fail_closed`).

Limits are kept at run time under a target's name, whichever model a call asked for. Invariant: targets of one name have
the same limits, the same counting and the same breaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.core.config.providers.credentials import is_first
from gateway.core.config.schema import LimitedEntry
from gateway.core.config.source.problems import Document, Path, did_you_mean, kind_of
from gateway.core.snapshot.snapshot.snapshot import Target

FIELDS: Final[Mapping[str, str]] = {
    "requests_per_min": "rpm",
    "request_burst": "burst",
    "tokens_per_min": "tpm",
    "input_tokens_per_min": "input_tpm",
    "output_tokens_per_min": "output_tpm",
    "requests_per_day": "rpd",
    "max_concurrency": "max_concurrency",
}
"""The config's name of every limit."""
LIMITS: Final[Mapping[str, str]] = {
    "rpm": "requests_per_min",
    "tpm": "tokens_per_min",
    "rpd": "requests_per_day",
    "max_concurrency": "concurrency",
    "input_tpm": "input_tokens_per_min",
    "output_tpm": "output_tokens_per_min",
}
"""The limits that replicas can share: the config's names and those at run time."""
_Named = list[tuple[str, Target]]
"""The models that name one target, in the order of the file, each with its description of the target."""


def share_limits(targets: Mapping[str, tuple[Target, ...]]) -> tuple[dict[str, tuple[Target, ...]], tuple[str, ...]]:
    """Returns the targets of each model, made equal where they share a name, and a notice for each value that gave way.

    Of each limit the smallest holds; it fails closed if any model says so. The first model in the file decides the counting
    and the breaker; concurrency is adaptive if any model says so.
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
    """Returns a target's counting without the part that any model may switch on."""
    return replace(target.counting, adaptive=False), target.counting.exact_tokens is None


def check_fail_closed(document: Document, path: Path, entry: LimitedEntry, *, learns: bool) -> None:
    """Notes problems of `fail_closed` of the entry at this path; `learns`: it may get limits that it does not set.

    With `fail_closed` a limit lets no call through while replicas cannot share it. `true` means all of its limits, those
    learned from a provider's answers included; a list names some of those that are set.
    """
    here = (*path, "fail_closed")
    if entry.fail_closed is True and not learns and not any(_is_set(entry, name) for name in _known(entry)):
        document.complain(here, "there is no limit here that it could be about")
    for index, name in enumerate(entry.fail_closed if isinstance(entry.fail_closed, list) else ()):
        _check_name(document, (*here, index), entry, name)


def closed_limits(entry: LimitedEntry) -> frozenset[str]:
    """Returns the limits that fail closed, by their names at run time."""
    if isinstance(entry.fail_closed, list):
        return frozenset(LIMITS[name] for name in _known(entry) if name in entry.fail_closed)
    return frozenset(LIMITS[name] for name in _known(entry)) if entry.fail_closed else frozenset()


def _check_name(document: Document, path: Path, entry: LimitedEntry, name: Any) -> None:
    if not isinstance(name, str):
        document.complain(path, f"expected text, not {kind_of(name)}")
    elif name not in _known(entry):
        suggestion = "" if document.origin_of(path) else did_you_mean(name, _known(entry))
        document.complain(path, f"no limit {document.show(path, name)}{suggestion}")
    elif not _is_set(entry, name):
        document.complain(path, f"{document.show(path, name)} is not set here")


def _known(entry: LimitedEntry) -> list[str]:
    return [name for name in LIMITS if name in type(entry).model_fields]


def _is_set(entry: LimitedEntry, name: str) -> bool:
    return getattr(entry, name) is not None
