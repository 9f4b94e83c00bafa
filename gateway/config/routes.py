"""The models and where their calls may go: targets, fallbacks and the plan made of both.

First everything is checked, by name alone; then, when the whole config is sound, targets are built and connected.
Invariant: a plan holds each target once and never depends on a fallback that leads back to itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from graphlib import CycleError, TopologicalSorter

from gateway.config.check import check
from gateway.config.counting import Admission, FindTokenizer
from gateway.config.fields import is_label
from gateway.config.policies import Policies
from gateway.config.prices import fixed_rates
from gateway.config.problems import Document, Path, did_you_mean
from gateway.config.schema import ConfigFile, Kind, LimitedEntry, ModelEntry, PriceEntry, TargetEntry
from gateway.config.sharing import share_limits
from gateway.policy.snapshot import Limits, Model, Rates, Target
from gateway.ports import Clocks, Upstream

Pair = tuple[str, str | None]
"""A provider's name and what it calls the model; None: as the client asked."""
FindRates = Callable[[str], Rates | None]


@dataclass(frozen=True, slots=True)
class Route:
    """One checked entry of `models:`."""

    name: str
    entry: ModelEntry
    targets: tuple[tuple[TargetEntry, PriceEntry | None], ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """What targets are made of besides what their entries say; by the provider's name, or by provider and model."""

    upstreams: Mapping[Pair, Upstream]
    find_prices: Callable[[str], FindRates]
    kinds: Mapping[str, Kind]
    find_tokenizer: FindTokenizer | None = None


def is_pattern(name: str) -> bool:
    """`fnmatch` would not take it literally."""
    return any(c in name for c in "*?[")


def compile_patterns(models: Mapping[str, Model]) -> tuple[tuple[re.Pattern[str], Model], ...]:
    """Longest first; of two as long, the first in the alphabet."""
    names = sorted((name for name in models if is_pattern(name)), key=lambda name: (-len(name), name))
    return tuple((re.compile(translate(name)), models[name]) for name in names)


# --- checking ---


def check_routes(document: Document, config: ConfigFile, policies: Policies) -> dict[str, Route]:
    """Every entry that can be read; whatever is wrong with it or between entries is noted in the document."""
    routes: dict[str, Route] = {}
    for name in config.models:
        if not is_label(name):
            document.complain(("models", name), "a model's name must be printable ASCII, for it goes into headers")
        entry = check(ModelEntry, document, ("models", name))
        if entry is not None:
            routes[name] = Route(name, entry, _check_targets(document, config, name))
            _check_names(document, config, name, entry, policies)
    for field in ("fallbacks", "context_fallbacks"):
        _check_cycles(document, routes, field)
    return routes


def _check_targets(
    document: Document, config: ConfigFile, name: str
) -> tuple[tuple[TargetEntry, PriceEntry | None], ...]:
    targets: list[tuple[TargetEntry, PriceEntry | None]] = []
    listed = document.at(("models", name, "targets"))
    for index in range(len(listed) if isinstance(listed, list) else 0):
        path: Path = ("models", name, "targets", index)
        target = check(TargetEntry, document, path)
        if target is None:
            continue
        if config.providers and target.provider not in config.providers:
            _no_such(document, (*path, "provider"), "provider", target.provider, config.providers)
        if any(_place(name, target) == _place(name, other) for other, _ in targets):
            document.complain(path, "is the same place as a target above it: list it once, with all its limits")
        price = check(PriceEntry, document, (*path, "price")) if target.price is not None else None
        targets.append((target, price))
    return tuple(targets)


def _check_names(document: Document, config: ConfigFile, name: str, entry: ModelEntry, policies: Policies) -> None:
    """What the entry picks by name must be there."""
    for field, names in (("fallbacks", entry.fallbacks), ("context_fallbacks", entry.context_fallbacks)):
        for index, other in enumerate(names):
            if other not in config.models:
                _no_such(document, ("models", name, field, index), "model", other, config.models)
    sets: tuple[tuple[str, str, Mapping[str, object]], ...] = (
        ("admission", entry.admission, policies.admission),
        ("queue", entry.queue, policies.queue.holding),
        ("timeouts", entry.timeouts, policies.clocks),
    )
    for field, picked, known in sets:
        if picked not in known:
            _no_such(document, ("models", name, field), "set", picked, known)


def _no_such(document: Document, path: Path, what: str, name: str, known: Mapping[str, object]) -> None:
    # A value from the environment gets no suggestion: a close match would give it away.
    suggestion = "" if path in document.origins else did_you_mean(name, known)
    document.complain(path, f"no {what} {document.show(path, name)}{suggestion}")


def _check_cycles(document: Document, routes: Mapping[str, Route], field: str) -> None:
    graph = {name: {n for n in getattr(route.entry, field) if n in routes} for name, route in routes.items()}
    while cycle := _find_cycle(graph):
        first = next(name for name in routes if name in cycle)
        chain = [*cycle[cycle.index(first) :], *cycle[: cycle.index(first)], first]
        document.complain(("models", first, field), f"leads back to itself: {' -> '.join(chain)}")
        graph[first].discard(chain[1])  # with this one mended, what else is wrong?


def _find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """The names of one cycle in the order of falling back, each once; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        members: list[str] = error.args[1]
        return members[:0:-1]
    return []


# --- building ---


def pairs_of(routes: Mapping[str, Route]) -> Iterator[Pair]:
    """Every provider and model that some target needs."""
    for route in routes.values():
        for entry, _ in route.targets:
            yield _place(route.name, entry)


def _place(model: str, entry: TargetEntry) -> Pair:
    return entry.provider, entry.model or (None if is_pattern(model) else model)


def build_models(
    routes: Mapping[str, Route], policies: Policies, parts: Parts
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """The models of sound routes, and a word on targets that several models describe differently."""
    apart = {
        name: _build_targets(
            route, policies.clocks[route.entry.timeouts], policies.admission[route.entry.admission], parts
        )
        for name, route in routes.items()
    }
    targets, notices = share_limits(apart)
    models = {
        name: Model(
            name=name,
            targets=targets[name],
            plan=_plan(name, routes, targets),
            holding=policies.queue.holding[route.entry.queue],
            fallbacks=tuple(route.entry.fallbacks),
            context_fallbacks=tuple(route.entry.context_fallbacks),
            include_usage=policies.admission[route.entry.admission].include_usage,
        )
        for name, route in routes.items()
    }
    return models, notices


def _build_targets(route: Route, clocks: Clocks, admission: Admission, parts: Parts) -> tuple[Target, ...]:
    built = []
    for entry, price in route.targets:
        provider, model = place = _place(route.name, entry)
        target = Target(
            name=f"{provider}/{model or '*'}",
            provider=provider,
            model=model,
            upstream=parts.upstreams[place],
            clocks=clocks,
            limits=replace(
                limits_of(entry),
                input_tokens_per_min=entry.input_tpm,
                output_tokens_per_min=entry.output_tpm,
                request_burst=entry.burst,
            ),
            counting=admission.counting(
                parts.kinds[provider], adaptive=entry.adaptive_concurrency, find_tokenizer=parts.find_tokenizer
            ),
            weight=entry.weight,
            find_rates=_rates_of(entry, price, parts.find_prices),
        )
        built.append(target)
    return tuple(built)


def limits_of(entry: LimitedEntry) -> Limits:
    """The limits that targets and keys have in common."""
    return Limits(
        requests_per_min=entry.rpm,
        tokens_per_min=entry.tpm,
        requests_per_day=entry.rpd,
        max_concurrency=entry.max_concurrency,
    )


def _rates_of(entry: TargetEntry, price: PriceEntry | None, find_prices: Callable[[str], FindRates]) -> FindRates:
    if price is None:
        return find_prices(entry.provider)
    return fixed_rates(price.input_usd_per_million, price.output_usd_per_million, price.cached_input_usd_per_million)


def _plan(name: str, routes: Mapping[str, Route], targets: Mapping[str, tuple[Target, ...]]) -> tuple[Target, ...]:
    """Depth first along the fallbacks; of targets with one name the first stays."""
    plan: dict[str, Target] = {}
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        here = ahead.pop()
        if here in seen:
            continue
        seen.add(here)
        for target in targets[here]:
            plan.setdefault(target.name, target)
        ahead.extend(reversed(routes[here].entry.fallbacks))
    return tuple(plan.values())
