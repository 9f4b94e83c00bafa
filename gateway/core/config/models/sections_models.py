"""The models and their plans: the order of targets and fallbacks that a call may use.

First everything is checked, by name alone; then, when the whole config is sound, targets are built and connected.
Invariant: a plan holds each target once and never depends on a fallback that leads back to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from graphlib import CycleError, TopologicalSorter
from pathlib import Path as FilePath
from typing import Final

from gateway.core.config.fields.check import check, check_part
from gateway.core.config.fields.fields import is_label, is_pattern
from gateway.core.config.load.folder import PolicySets
from gateway.core.config.prices import stated_rates
from gateway.core.config.providers import Groups, bind_credentials
from gateway.core.config.schema import (
    CapabilitiesEntry,
    ConfigFile,
    GroupEntry,
    Kind,
    ModelEntry,
    PriceEntry,
    TargetEntry,
)
from gateway.core.config.sections import read_edits
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.config.state.shared_limits import check_fail_closed, share_limits
from gateway.core.config.targets.targets import TargetParts, TargetPlace, build_targets
from gateway.core.snapshot.snapshot import Model, Target
from gateway.dialects.known import name_in_cloud
from gateway.dialects.spoken import TargetLanguages, languages_of, why_never
from gateway.features.degrade.lower import LatencyRules
from gateway.features.degrade_config import read_degrade
from gateway.features.grouping.bodies import GroupRules
from gateway.features.output.config import CompiledOutput, check_output
from gateway.features.reuse.config import check_caching, with_routes
from gateway.products.batches.native.rules import has_batch_api
from gateway.products.pipelines.compile.compiling import PipelinePlan


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
    group = check(GroupEntry, document, ("models", name, "group_embeddings"))
    return None if group is None else GroupRules(group.window, group.most)


_NO_PRICE: Final = (
    "is missing: write what a million tokens of input cost (0: they are free), or a price by the character, hour of sound, "
    "picture or call"
)


def _place(document: Document, path: Path, name: str, entry: TargetEntry) -> TargetPlace:
    problems_before = len(document.problems)
    price = check(PriceEntry, document, (*path, "price")) if entry.price is not None else None
    # What is written wrong is there: that it is missing would be told of one mistake as a second.
    if price is not None and stated_rates(price) is None and len(document.problems) == problems_before:
        document.complain((*path, "price", "input_usd_per_million"), _NO_PRICE)
    return TargetPlace(
        entry,
        entry.model or (None if is_pattern(name) else name),
        check_part(CapabilitiesEntry, document, (*path, "capabilities")),
        price,
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


# Finds what is asked of targets in whose provider's language there is no word for it, where the config says so by itself.
#
# That is: a model whose name is that of a kind of model (embeddings, sound, pictures, …), calls that are put together, the
# embeddings of a semantic cache, steps of pipelines, batches at half price, and languages that a provider cannot have.


_KNOWN_BY_NAMES: Final = (
    ("embeddings", re.compile(r"text-embedding-|.*-embedding-\d|.*\.(titan-embed|embed)-|amazon\..*-embeddings$")),
    (
        "realtime",
        re.compile(r"(gpt-(4o-)?(mini-)?|gpt-4o-mini-)realtime|gemini-live-|.*-native-audio|.*nova-(2-)?sonic"),
    ),
    ("transcriptions", re.compile(r"whisper|gpt-4o-(mini-)?transcribe")),
    ("speech", re.compile(r"tts-1|gpt-4o-mini-tts|.*-preview-tts")),
    ("images", re.compile(r"dall-e-|gpt-image-|imagen-|.*nova-canvas|.*titan-image|stability\.")),
    ("moderations", re.compile(r"(omni|text)-moderation-")),
)
"""Endpoints, and the names of models that are asked there and nowhere else."""
DEFAULT: Final = "default"
_OWN: Final = frozenset(("gemini", "vertex", "bedrock"))
_HAVE_EMBEDDINGS: Final = "; Gemini, Vertex AI, and Titan and Cohere at Bedrock have embeddings, and so have OpenAI's"


@dataclass(frozen=True, slots=True)
class ConfigParts:
    """The parts of the config, besides its models, that the checks of its endpoints read."""

    groups: Groups
    kinds: Mapping[str, Kind]
    policies: PolicySets
    plans: Mapping[str, PipelinePlan]

    def why_never(self, endpoint: str, place: TargetPlace) -> str | None:
        """Returns why a target refuses each call to this endpoint; None: it takes some, or it is not known."""
        group = self.groups.get(place.entry.provider)
        if group is None:
            return None
        provider, kind = group[0], self.kinds[place.entry.provider]
        declared = provider.speaks if place.entry.speaks is None else place.entry.speaks
        speaks = languages_of(provider.dialect, kind, declared)
        language = TargetLanguages(kind, speaks, provider.dialect, self.policies.models.of).at(
            place.model or place.model_name
        )
        return why_never(endpoint, language, place.model)


def check_endpoints(document: Document, routes: Mapping[str, Route], parts: ConfigParts) -> None:
    """Notes what no target of a model can serve, although the config asks for it."""
    _check_languages(document, routes, parts)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            if place.model is not None:
                _check_name(document, ("models", name, "targets", index), (name, place.model), place, parts)
        if route.grouping is not None:
            whys = [parts.why_never("embeddings", one) and parts.why_never("moderations", one) for one in route.places]
            if whys and all(whys):
                problem = f"no target of the model has embeddings, or moderations: {whys[0]}"
                document.complain(("models", name, "group_embeddings"), problem)
    _check_caches(routes, parts)
    _check_pipelines(routes, parts)
    _check_batches(document, routes, parts)


def _check_batches(document: Document, routes: Mapping[str, Route], parts: ConfigParts) -> None:
    """Notes models that pick half price at providers that have none; what `default` says of all models is no error."""
    for name, route in routes.items():
        picked = parts.policies.jobs.get(route.entry.jobs)
        if route.entry.jobs == DEFAULT or picked is None or picked.batches.run != "native":
            continue
        owners = {place.entry.provider: parts.groups.get(place.entry.provider) for place in route.places}
        found = {owner: group[0] for owner, group in owners.items() if group is not None}
        if found and len(found) == len(owners) and not any(map(has_batch_api, found.values())):
            named = ", ".join(f"{owner}: {provider.dialect}" for owner, provider in found.items())
            problem = (
                f"{document.show(('models', name, 'jobs'), route.entry.jobs)} has `batches.run: native`, and no provider of "
                f"the model has a Batch API that is known here ({named}): pick a set with `run: here`, or add a target at a "
                "provider of the dialect openai, azure or anthropic"
            )
            document.complain(("models", name, "jobs"), problem)


def _check_languages(document: Document, routes: Mapping[str, Route], parts: ConfigParts) -> None:
    for name, group in parts.groups.items():
        path: Path = ("providers", name)
        if document.at((*path, "dialect")) == group[0].dialect:
            _check_speaks(document, (*path, "speaks"), group[0].dialect, group[0].speaks)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            owner = parts.groups.get(place.entry.provider)
            if owner is not None:
                here = ("models", name, "targets", index, "speaks")
                _check_speaks(document, here, owner[0].dialect, place.entry.speaks)


def _check_speaks(document: Document, path: Path, dialect: str, speaks: object) -> None:
    if not isinstance(speaks, list | tuple):
        return
    if dialect in _OWN:
        document.complain(path, f"is not for the dialect {dialect}, which has a language of its own: leave it out")
    elif dialect == "anthropic" and "messages" not in speaks:
        problem = "lacks messages, which is the language of the dialect anthropic: add it, or use `dialect: openai`"
        document.complain(path, problem)


def _check_name(document: Document, path: Path, names: tuple[str, str], place: TargetPlace, parts: ConfigParts) -> None:
    found = ((one, endpoint) for one in dict.fromkeys(reversed(names)) for endpoint in _endpoints_of(one))
    for one, endpoint in found:
        why = parts.why_never(endpoint, place)
        if why is not None:
            remedy = _HAVE_EMBEDDINGS if endpoint == "embeddings" else ""
            document.complain(
                path, f"{quoted(one)} is asked for {endpoint}, and {why}: name a provider that has it{remedy}"
            )
            return


def _endpoints_of(model: str) -> Iterator[str]:
    name = name_in_cloud(model)
    yield from (endpoint for endpoint, pattern in _KNOWN_BY_NAMES if pattern.match(name))


def _check_caches(routes: Mapping[str, Route], parts: ConfigParts) -> None:
    """Notes semantic caches whose model makes no embeddings."""
    cache = parts.policies.cache
    for name in {route.entry.cache for route in routes.values()} & cache.sets.keys() if cache.document else ():
        semantic = cache.sets[name].semantic
        if cache.document is not None and semantic is not None:
            why = _why_none("embeddings", semantic.embeddings, routes, parts)
            if why is not None:
                shown = quoted(semantic.embeddings)
                problem = f"{shown} makes none: {why}{_HAVE_EMBEDDINGS}"
                cache.document.complain((name, "semantic", "embeddings"), problem)


def _check_pipelines(routes: Mapping[str, Route], parts: ConfigParts) -> None:
    """Notes steps whose model has no such endpoint."""
    documents = {FilePath(one.file).stem: one for one in parts.policies.pipelines}
    for name, plan in parts.plans.items():
        for step in plan.steps.values():
            for branch in step.branches:
                why = _why_none(branch.call.endpoint, branch.call.model, routes, parts)
                if why is not None:
                    problem = f"no target of the model {quoted(branch.call.model)} serves {branch.call.endpoint}: {why}"
                    documents[name].complain(("steps", step.name, "call", "endpoint"), problem)


def _why_none(endpoint: str, model: str, routes: Mapping[str, Route], parts: ConfigParts) -> str | None:
    """Returns why no target of a model takes a call to this endpoint; None: one does, or it is not known."""
    matching = [name for name in routes if name == model or fnmatchcase(model, name)]
    if not matching:
        return None
    route = routes[model if model in matching else max(matching, key=len)]
    whys = [parts.why_never(endpoint, place) for place in route.places]
    return whys[0] if whys and all(whys) and not route.entry.fallbacks else None
