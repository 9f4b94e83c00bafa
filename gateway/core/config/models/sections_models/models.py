"""The models and their plans: the order of targets and fallbacks that a call may use.

First everything is checked, by name alone; then, when the whole config is sound, targets are built and connected.
Invariant: a plan holds each target once and never depends on a fallback that leads back to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from graphlib import CycleError, TopologicalSorter

from gateway.core.config.fields.check import check, check_part
from gateway.core.config.fields.fields.fields import is_label, is_pattern
from gateway.core.config.load.folder import PolicySets
from gateway.core.config.providers.credentials import Groups
from gateway.core.config.providers.vendors import bind_credentials
from gateway.core.config.schema import CapabilitiesEntry, ConfigFile, GroupEntry, ModelEntry, PriceEntry, TargetEntry
from gateway.core.config.sections.body_edits import read_edits
from gateway.core.config.source.problems import Document, Path, did_you_mean
from gateway.core.config.state.shared_limits.shared_limits import check_fail_closed, share_limits
from gateway.core.config.targets.targets import TargetParts, TargetPlace, build_targets
from gateway.core.snapshot.snapshot.snapshot import Model, Target
from gateway.features.degrade.lower import LatencyRules
from gateway.features.degrade_config import read_degrade
from gateway.features.grouping.bodies.rules import GroupRules
from gateway.features.output.config import CompiledOutput, check_output
from gateway.features.reuse.config import check_caching, with_routes


@dataclass(frozen=True, slots=True)
class Route:
    """One checked entry of `models:`."""

    name: str
    entry: ModelEntry
    places: tuple[TargetPlace, ...]
    grouping: GroupRules | None
    output: CompiledOutput | None
    degrade: LatencyRules | None


def compile_patterns(models: Mapping[str, Model]) -> tuple[tuple[re.Pattern[str], Model], ...]:
    """Returns the patterns, longest first, then alphabetically."""
    names = sorted((name for name in models if is_pattern(name)), key=lambda name: (-len(name), name))
    return tuple((re.compile(translate(name)), models[name]) for name in names)


# --- checking ---


def check_routes(document: Document, config: ConfigFile, policies: PolicySets) -> dict[str, Route]:
    """Returns every readable entry, and notes the problems of entries and between them."""
    routes: dict[str, Route] = {}
    for name in config.models:
        if not is_label(name):
            document.complain(("models", name), "a model's name must be printable ASCII, for it goes into headers")
        entry = check(ModelEntry, document, ("models", name))
        if entry is not None:
            places, grouping = _check_places(document, config, name), _check_grouping(document, name, entry)
            output = check_output(document, name, entry.output, config.models)
            degrade = None if entry.degrade is None else read_degrade(document, name)
            routes[name] = Route(name, entry, places, grouping, output, degrade)
            _check_names(document, config, name, entry, policies)
    for field in ("fallbacks", "context_fallbacks"):
        _check_cycles(document, routes, field)
    picked = {name: routes[name].entry.cache if name in routes else None for name in config.models}
    check_caching(policies.cache, picked)
    return routes


def _check_places(document: Document, config: ConfigFile, name: str) -> tuple[TargetPlace, ...]:
    places: list[TargetPlace] = []
    listed = document.at(("models", name, "targets"))
    for index in range(len(listed) if isinstance(listed, list) else 0):
        path: Path = ("models", name, "targets", index)
        entry = check(TargetEntry, document, path)
        if entry is None:
            continue
        if config.providers and entry.provider not in config.providers:
            _no_such(document, (*path, "provider"), "provider", entry.provider, config.providers)
        check_fail_closed(document, path, entry, learns=True)
        place = _place(document, path, name, entry)
        if any(place.pair == other.pair for other in places):
            document.complain(path, "is the same place as a target above it: list it once, with all its limits")
        places.append(place)
    return tuple(places)


def _check_grouping(document: Document, name: str, entry: ModelEntry) -> GroupRules | None:
    if entry.group_embeddings is None:
        return None
    said = check(GroupEntry, document, ("models", name, "group_embeddings"))
    return None if said is None else GroupRules(said.window, said.most)


def _place(document: Document, path: Path, name: str, entry: TargetEntry) -> TargetPlace:
    return TargetPlace(
        entry,
        entry.model or (None if is_pattern(name) else name),
        check_part(CapabilitiesEntry, document, (*path, "capabilities")),
        check(PriceEntry, document, (*path, "price")) if entry.price is not None else None,
        read_edits(document, path, name, entry),
        name.removeprefix(entry.strip or ""),
    )


def _check_names(document: Document, config: ConfigFile, name: str, entry: ModelEntry, policies: PolicySets) -> None:
    """Notes names of the entry that do not exist."""
    for field, names in (("fallbacks", entry.fallbacks), ("context_fallbacks", entry.context_fallbacks)):
        for index, other in enumerate(names):
            if other not in config.models:
                _no_such(document, ("models", name, field, index), "model", other, config.models)
    sets: tuple[tuple[str, str, Mapping[str, object]], ...] = (
        ("admission", entry.admission, policies.admission),
        ("queue", entry.queue, policies.queue.holding),
        ("retries", entry.retries, policies.retries),
        ("breakers", entry.breakers, policies.breakers),
        ("timeouts", entry.timeouts, policies.timeouts),
        ("cache", entry.cache, policies.cache.sets),
        ("jobs", entry.jobs, policies.jobs),
    )
    for field, picked, known in sets:
        if picked not in known:
            _no_such(document, ("models", name, field), "set", picked, known)


def _no_such(document: Document, path: Path, what: str, name: str, known: Mapping[str, object]) -> None:
    # A value from the environment gets no suggestion: a close match would give it away.
    suggestion = "" if document.origin_of(path) else did_you_mean(name, known)
    document.complain(path, f"no {what} {document.show(path, name)}{suggestion}")


def _check_cycles(document: Document, routes: Mapping[str, Route], field: str) -> None:
    graph = {name: {n for n in getattr(route.entry, field) if n in routes} for name, route in routes.items()}
    while cycle := _find_cycle(graph):
        first = next(name for name in routes if name in cycle)
        chain = [*cycle[cycle.index(first) :], *cycle[: cycle.index(first)], first]
        document.complain(("models", first, field), f"leads back to itself: {' -> '.join(chain)}")
        graph[first].discard(chain[1])  # with this one mended, what else is wrong?


def _find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Returns the names of one cycle in the order of falling back, each once; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        members: list[str] = error.args[1]
        return members[:0:-1]
    return []


# --- building ---


def places_of(routes: Mapping[str, Route]) -> Iterator[TargetPlace]:
    """Yields the places of all models; a place of several models occurs several times."""
    for route in routes.values():
        yield from route.places


def schema_files(routes: Mapping[str, Route]) -> dict[str, bytes]:
    """Returns the files with the schemas of answers, each with the digest of what it holds."""
    files = (route.output.file for route in routes.values() if route.output is not None)
    return dict(file for file in files if file is not None)


def build_models(
    routes: Mapping[str, Route], policies: PolicySets, parts: TargetParts
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """Returns the models of sound routes, and notices about targets that several models describe differently."""
    apart = {name: build_targets(route.places, route.entry, policies, parts) for name, route in routes.items()}
    targets, notices = share_limits(apart)
    return {name: _model(route, routes, targets, policies, parts.groups) for name, route in routes.items()}, notices


def _model(
    route: Route,
    routes: Mapping[str, Route],
    targets: Mapping[str, tuple[Target, ...]],
    policies: PolicySets,
    groups: Groups,
) -> Model:
    name, entry = route.name, route.entry
    own = targets[name]
    plan = _follow(name, "fallbacks", routes, targets)
    context_plan = _follow(name, "context_fallbacks", routes, targets)[len(own) :]
    output = None if route.output is None else route.output.rule
    model = Model(
        name=name,
        targets=own,
        plan=plan,
        holding=policies.queue.holding[entry.queue],
        fallbacks=tuple(entry.fallbacks),
        context_fallbacks=tuple(entry.context_fallbacks),
        context_plan=context_plan,
        choice=entry.choose,
        retries=policies.retries[entry.retries],
        caching=with_routes(policies.cache.sets[entry.cache], _places((*plan, *context_plan), groups), output),
        jobs=policies.jobs[entry.jobs],
        grouping=route.grouping,
        output=output,
        on_loss=entry.on_loss,
        prefers_native=entry.prefer_native,
        remembers_thinking=entry.remember_thinking,
        degrade=route.degrade,
        include_usage=policies.admission[entry.admission].include_usage,
    )
    return bind_credentials(model, groups)


def _places(targets: Iterable[Target], groups: Groups) -> Iterator[tuple[str, ...]]:
    """Yields the places of the targets, once per provider: the credential that pays does not change an answer."""
    providers = {one.name: one for group in groups.values() for one in group}
    for target in targets:
        provider = providers[target.provider]
        edits = () if target.edits is None else (repr(target.edits),)
        yield provider.group, provider.base_url, target.model or f"{target.strip}*", *edits


def _follow(
    name: str, field: str, routes: Mapping[str, Route], targets: Mapping[str, tuple[Target, ...]]
) -> tuple[Target, ...]:
    """Returns a model's targets, then depth first those of the models in this field; of equal names the first stays."""
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
        ahead.extend(reversed(getattr(routes[here].entry, field)))
    return tuple(plan.values())
