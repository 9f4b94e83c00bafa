"""The models and their plans: the order of targets and fallbacks that a call may use.

First everything is checked, by name alone: entries of models (`check_routes`), and of targets what they change in bodies; then
what no target can serve (`check_endpoints`). When the whole config is sound, models are built (`build_models`) from targets,
one for each credential of a provider (`build_targets`), whose limits are made equal where models share them (`share_limits`).
Invariants: a plan holds each target once and never depends on a fallback that leads back to itself; the targets of one model
have different names, and those of a lower tier come first, within a tier in the order of the file; targets of one name have
the same limits, counting and breaker, for limits are kept at run time under that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Final, Protocol

import orjson

from gateway.core.config.admission import FindTokenizer
from gateway.core.config.fields import is_label, is_pattern
from gateway.core.config.policies import PolicySets
from gateway.core.config.prices import PriceEntry, stated_rates
from gateway.core.config.product_sections import (
    ConfigReading,
    ModelReading,
    Settings,
    entry_kinds,
    merged,
)
from gateway.core.config.providers import Groups, account_of, bind_credentials, is_first
from gateway.core.config.schema import (
    BodyEntry,
    CapabilitiesEntry,
    ConfigFile,
    Kind,
    LimitedEntry,
    ModelEntry,
    ProviderEntry,
    TargetEntry,
    check,
    check_part,
)
from gateway.core.config.source import Document, Path, kind_of, quoted
from gateway.core.ledger import fixed_rates
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import NOT_EDITABLE, BodyEdits, Capabilities
from gateway.core.openai.transcript import is_thinker
from gateway.core.snapshot import FindRates, HasSettings, Model, Provider, Target, with_settings
from gateway.core.types import Conversions, FindUnsupportedFields, Upstream

Pair = tuple[str, str | None]
"""The names of a provider and of its model; None: the model that the client asked for."""
Converse = Callable[[Upstream, Provider, Kind], Upstream]
"""Returns an upstream of a provider as conversations use it: with what they need there and others do not."""


def as_wired(upstream: Upstream, _provider: Provider, _kind: Kind) -> Upstream:
    """Returns the upstream itself."""
    return upstream


class TargetLanguage(Protocol):
    """What one target speaks, and what a call in another language loses on its way there."""

    @property
    def speaks(self) -> frozenset[str] | None:
        """Its languages; None: its answers tell."""
        ...

    @property
    def gaps(self) -> Mapping[str, FindUnsupportedFields]:
        """By endpoint, what finds the gaps of a request; endpoints that it speaks have none."""
        ...

    @property
    def find_most_input(self) -> Callable[[str], int | None] | None:
        """Finds how many tokens a model reads; None: nothing has to be known of the model."""
        ...

    def why_never(self, endpoint: str) -> str | None:
        """Returns why it refuses each call to this endpoint; None: it takes some, or it is not known."""
        ...

    def conversions(self, upstream: Upstream, place: str) -> Conversions | None:
        """Returns what puts calls into another language beside a server; None: they go as they are.

        `place` names the server and its model, for what is learned of it.
        """
        ...


class LanguageTable(Protocol):
    """What is known of the languages of providers, and of their models: their prices and tokenizers."""

    def address_of(self, document: Document, path: Path, entry: ProviderEntry) -> str:
        """Returns the base URL of the provider at this path, with the version of the API; notes its problems."""
        ...

    def messages_address_of(self, document: Document, path: Path, entry: ProviderEntry) -> str | None:
        """Returns where the provider takes Messages; None: where it takes everything else. Notes its problems."""
        ...

    def check_provider(self, document: Document, path: Path, entry: ProviderEntry) -> None:
        """Notes fields of the provider at this path that are for other dialects."""
        ...

    def check_speaks(self, document: Document, path: Path, dialect: str, speaks: object) -> None:
        """Notes languages that no provider of this dialect has."""
        ...

    def check_name(
        self, document: Document, path: Path, names: tuple[str, str], why_never: Callable[[str], str | None]
    ) -> None:
        """Notes that the target at this path cannot serve the endpoint for which models of its names are there."""
        ...

    def why_no_passthrough(self, provider: Provider) -> str | None:
        """Returns why other endpoints cannot be passed through to the provider; None: they can."""
        ...

    def of(
        self,
        policies: HasSettings,
        provider: Provider,
        kind: str,
        declared: Sequence[str] | None,
        place: tuple[str, str | None],
        *,
        approximates: bool = False,
        sets: frozenset[str] = frozenset(),
        as_listed: bool = False,
    ) -> TargetLanguage:
        """Returns what a target speaks; `declared` is what the config says of that.

        `place` is a name for its model, and that of the provider, None: the caller's own. With `approximates`, calls go as what
        comes near; `sets` are the fields that the config sets in its requests; `as_listed`: the provider's own list of its
        models counts, where it is asked for.
        """
        ...

    def price_finder(self, provider: Provider, wall: Callable[[], float]) -> FindRates:
        """Returns what finds the prices of a provider's models, at the time of the call by `wall`."""
        ...

    def load_tokenizers(self, models: Iterable[str | None]) -> tuple[FindTokenizer, Sequence[str]]:
        """Loads the tokenizers of these models (None: a target for any name); returns their finder, and notices."""
        ...


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """One checked entry of a model's `targets:`; `model` is None where the client's own name goes on."""

    entry: TargetEntry
    model: str | None
    capabilities: CapabilitiesEntry
    price: PriceEntry | None
    edits: BodyEdits | None = None
    model_name: str = ""
    """The name of the entry of `models`, a pattern perhaps, without what the target strips of it."""

    @property
    def pair(self) -> Pair:
        """Returns provider and model, which identify an entry among those of a model."""
        return self.entry.provider, self.model


@dataclass(frozen=True, slots=True)
class ConfigParts:
    """The parts of the config besides its models. Groups and kinds are indexed by a provider's name in the config."""

    groups: Groups
    kinds: Mapping[str, Kind]
    policies: PolicySets
    languages: LanguageTable

    def why_never(self, endpoint: str, place: TargetPlace) -> str | None:
        """Returns why a target refuses each call to this endpoint; None: it takes some, or it is not known."""
        group = self.groups.get(place.entry.provider)
        if group is None:
            return None
        provider, kind = group[0], self.kinds[place.entry.provider]
        declared = provider.speaks if place.entry.speaks is None else place.entry.speaks
        language = self.languages.of(
            self.policies, provider, kind, declared, (place.model or place.model_name, place.model)
        )
        return language.why_never(endpoint)


@dataclass(frozen=True, slots=True)
class TargetParts(ConfigParts):
    """The parts of targets that are not in their entries.

    Prices are indexed by a provider's name in the config, upstreams by that of the credential.
    """

    upstreams: Mapping[Pair, Upstream]
    find_prices: Callable[[str], FindRates]
    find_tokenizer: FindTokenizer | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One checked entry of `models:`."""

    name: str
    entry: ModelEntry
    places: tuple[TargetPlace, ...]
    settings: Settings
    """What products have read of it."""

    def reading(self, parts: ConfigParts) -> ModelReading:
        """Returns the entry as products see it."""

        def why_never(endpoint: str) -> list[str | None]:
            return [parts.why_never(endpoint, place) for place in self.places]

        return ModelReading(
            self.name, self.entry, self.settings, [place.entry.provider for place in self.places], why_never
        )


# --- checking single entries ---


def check_routes(reading: ConfigReading, parts: ConfigParts) -> dict[str, Route]:
    """Returns every readable entry, and notes the problems of entries and between them."""
    document, config = reading.document, reading.config
    kinds = entry_kinds(reading.sections)
    routes: dict[str, Route] = {}
    for name in config.models:
        if not is_label(name):
            document.complain(("models", name), "a model's name must be printable ASCII, for it goes into headers")
        entry = check(kinds.model, document, ("models", name))
        if entry is not None:
            places = _check_places(document, config, name, kinds.target)
            settings = merged(section.read_model(reading, name, entry) for section in reading.sections)
            routes[name] = Route(name, entry, places, settings)
            _check_names(reading, name, entry, parts.policies)
    for kind in ("fallbacks", "context_fallbacks"):
        _check_cycles(document, routes, kind)
    reading.models = {name: route.reading(parts) for name, route in routes.items()}
    return routes


def _check_places(
    document: Document, config: ConfigFile, name: str, kind: type[TargetEntry]
) -> tuple[TargetPlace, ...]:
    places: list[TargetPlace] = []
    listed = document.at(("models", name, "targets"))
    for index in range(len(listed) if isinstance(listed, list) else 0):
        path: Path = ("models", name, "targets", index)
        entry = check(kind, document, path)
        if entry is None:
            continue
        if config.providers and entry.provider not in config.providers:
            document.no_such((*path, "provider"), "provider", entry.provider, config.providers)
        check_fail_closed(document, path, entry, learns=True)
        place = _place(document, path, name, entry)
        if any(place.pair == other.pair for other in places):
            document.complain(path, "is the same place as a target above it: list it once, with all its limits")
        places.append(place)
    return tuple(places)


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


def _check_names(reading: ConfigReading, name: str, entry: ModelEntry, policies: PolicySets) -> None:
    """Notes names of the entry that do not exist."""
    document, config = reading.document, reading.config
    for kind, names in (("fallbacks", entry.fallbacks), ("context_fallbacks", entry.context_fallbacks)):
        for index, other in enumerate(names):
            if other not in config.models:
                document.no_such(("models", name, kind, index), "model", other, config.models)
    sets: list[tuple[str, str, Mapping[str, object]]] = [
        ("admission", entry.admission, policies.admission),
        ("queue", entry.queue, policies.queue.holding),
        ("retries", entry.retries, policies.retries),
        ("breakers", entry.breakers, policies.breakers),
        ("timeouts", entry.timeouts, policies.timeouts),
        *((one.name, one.of(entry), known) for section in reading.sections for one, known in section.sets(reading)),
    ]
    for option, picked, known in sets:
        if picked not in known:
            document.no_such(("models", name, option), "set", picked, known)


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


_TASK: Final = "input_type"
"""The field for the purpose of texts; OpenAI has no word for it, and this is the one of servers that know its API."""
_NAME: Final = re.compile(r"[\w\-]+")
"""Names that are the same in JSON, whoever wrote it. One with a point is meant for a field of a field."""
_WILD: Final = re.compile(r"[*?\[]")


def read_edits(document: Document, path: Path, model: str, entry: TargetEntry) -> BodyEdits | None:
    """Returns the edits of the target at this path, which is one of `model`; notes problems of them and of `strip`."""
    _check_strip(document, path, model, entry)
    edits = check(BodyEntry, document, (*path, "body")) if entry.body is not None else BodyEntry()
    if edits is None:
        return None
    here: Path = (*path, "body")
    if entry.embedding_task is not None:
        if _TASK in edits.set or _TASK in edits.drop:
            document.complain((*path, "embedding_task"), f"and {quoted(_TASK)} in body say the same: leave one out")
        edits.set[_TASK] = entry.embedding_task
    for name in (*edits.set, *edits.drop):
        if name in NOT_EDITABLE:
            document.complain(here, f"{quoted(name)} is not to be changed here: it decides where a call goes, and how")
        elif not _NAME.fullmatch(name):
            document.complain(here, f"{quoted(name)} is no top-level field: those have letters, digits, `_` and `-`")
    for name in edits.set.keys() & set(edits.drop):
        document.complain(here, f"{quoted(name)} is both set and dropped")
    try:
        json.dumps(edits.set, allow_nan=False, default=str)  # orjson would write null for what is no number
        values = tuple((name, orjson.dumps(value)) for name, value in edits.set.items())
    except (TypeError, ValueError):
        document.complain((*here, "set"), "holds a value that cannot be written as JSON: put it into quotes")
        return None
    return BodyEdits(values, tuple(edits.drop)) if values or edits.drop else None


def _check_strip(document: Document, path: Path, model: str, entry: TargetEntry) -> None:
    if entry.strip is None:
        return
    if entry.model is not None or not is_pattern(model):
        document.complain((*path, "strip"), "is for targets without a model, of a model whose name is a pattern")
    elif not _WILD.split(model, maxsplit=1)[0].startswith(entry.strip):
        shown = document.show((*path, "strip"), entry.strip)
        document.complain((*path, "strip"), f"{shown} does not begin the names that {quoted(model)} takes")


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


def check_fail_closed(document: Document, path: Path, entry: LimitedEntry, *, learns: bool) -> None:
    """Notes problems of `fail_closed` of the entry at this path; `learns`: it may get limits that it does not set.

    With `fail_closed` a limit lets no call through while replicas cannot share it. `true` means all of its limits, those
    learned from a provider's answers included; a list names some of those that are set.
    """
    here = (*path, "fail_closed")
    if entry.fail_closed is True and not learns and not any(_is_set(entry, name) for name in _known(entry)):
        document.complain(here, "there is no limit here that it could be about")
    for index, name in enumerate(entry.fail_closed if isinstance(entry.fail_closed, list) else ()):
        if not isinstance(name, str):
            document.complain((*here, index), f"expected text, not {kind_of(name)}")
        elif name not in _known(entry):
            document.no_such((*here, index), "limit", name, _known(entry))
        elif not _is_set(entry, name):
            document.complain((*here, index), f"{document.show((*here, index), name)} is not set here")


def _known(entry: LimitedEntry) -> list[str]:
    return [name for name in LIMITS if name in type(entry).model_fields]


def _is_set(entry: LimitedEntry, name: str) -> bool:
    return getattr(entry, name) is not None


# --- checking what the config asks of targets that have no word for it ---


def check_endpoints(reading: ConfigReading, routes: Mapping[str, Route], parts: ConfigParts) -> None:
    """Notes what no target of a model can serve, although the config asks for it.

    That is: a model whose name is that of a kind of model (embeddings, sound, pictures, …), languages that a provider cannot
    have, and what products ask of models.
    """
    document = reading.document
    _check_languages(document, routes, parts)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            if place.model is not None:
                why_never = partial(parts.why_never, place=place)
                parts.languages.check_name(document, ("models", name, "targets", index), (name, place.model), why_never)
        for section in reading.sections:
            section.check_model(reading, reading.models[name])
    for section in reading.sections:
        section.check_models(reading)


def _check_languages(document: Document, routes: Mapping[str, Route], parts: ConfigParts) -> None:
    for name, group in parts.groups.items():
        path: Path = ("providers", name)
        if document.at((*path, "dialect")) == group[0].dialect:
            parts.languages.check_speaks(document, (*path, "speaks"), group[0].dialect, group[0].speaks)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            owner = parts.groups.get(place.entry.provider)
            if owner is not None:
                here = ("models", name, "targets", index, "speaks")
                parts.languages.check_speaks(document, here, owner[0].dialect, place.entry.speaks)


# --- building ---


def places_of(routes: Mapping[str, Route]) -> Iterator[TargetPlace]:
    """Yields the places of all models; a place of several models occurs several times."""
    for route in routes.values():
        yield from route.places


def pairs_of(places: Iterable[TargetPlace], groups: Groups) -> Iterator[Pair]:
    """Yields every provider and model that some target needs."""
    for place in places:
        for provider in groups[place.entry.provider]:
            yield provider.name, place.model


def build_models(
    reading: ConfigReading, routes: Mapping[str, Route], parts: TargetParts
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """Returns the models of sound routes, and notices about targets that several models describe differently."""
    apart = {name: build_targets(route.places, route.entry, parts) for name, route in routes.items()}
    targets, notices = share_limits(apart)
    return {name: _model(reading, route, routes, targets, parts) for name, route in routes.items()}, notices


def _model(
    reading: ConfigReading,
    route: Route,
    routes: Mapping[str, Route],
    targets: Mapping[str, tuple[Target, ...]],
    parts: TargetParts,
) -> Model:
    name, entry, policies = route.name, route.entry, parts.policies
    own = targets[name]
    plan = _follow(name, "fallbacks", routes, targets)
    context_plan = _follow(name, "context_fallbacks", routes, targets)[len(own) :]
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
        on_loss=entry.on_loss,
        prefers_native=entry.prefer_native,
        remembers_thinking=entry.remember_thinking,
        include_usage=policies.admission[entry.admission].include_usage,
        settings=route.settings,
    )
    settings = merged(section.finish_model(reading, entry, model) for section in reading.sections)
    return bind_credentials(with_settings(model, settings), parts.groups)


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
            continue  # two models may name the same one, or each other
        seen.add(here)
        for target in targets[here]:
            plan.setdefault(target.name, target)
        # The last one in the list is followed first.
        ahead.extend(reversed(getattr(routes[here].entry, field)))
    return tuple(plan.values())


def compile_patterns(models: Mapping[str, Model]) -> tuple[tuple[re.Pattern[str], Model], ...]:
    """Returns the patterns, longest first, then alphabetically."""
    names = sorted((name for name in models if is_pattern(name)), key=lambda name: (-len(name), name))
    return tuple((re.compile(translate(name)), models[name]) for name in names)


UNSTATED_BURST_S = 10.0
"""Seconds' worth of its limit that a provider takes at once where no burst is known; many take only a few."""


def build_targets(places: tuple[TargetPlace, ...], entry: ModelEntry, parts: TargetParts) -> tuple[Target, ...]:
    """Returns the targets of one model."""
    built = [
        _build(place, provider, entry, parts) for place in places for provider in parts.groups[place.entry.provider]
    ]
    return tuple(sorted(built, key=lambda target: target.order))


def _build(place: TargetPlace, provider: Provider, model: ModelEntry, parts: TargetParts) -> Target:
    entry, capabilities, policies = place.entry, place.capabilities, parts.policies
    kind = parts.kinds[entry.provider]
    timeouts = policies.timeouts[model.timeouts]
    declared = provider.speaks if entry.speaks is None else entry.speaks
    language = parts.languages.of(
        *(policies, provider, kind, declared, (place.model or place.model_name, place.model)),
        approximates=model.on_loss == "approximate",
        sets=frozenset(name for name, _ in place.edits.set) if place.edits is not None else frozenset(),
        as_listed=True,
    )
    upstream = parts.upstreams[provider.name, place.model]
    conversions = language.conversions(upstream, f"{provider.base_url} {place.model}")
    return Target(
        name=f"{provider.name}/{place.model or '*'}",
        provider=provider.name,
        model=place.model,
        upstream=upstream,
        converters_by_path={} if conversions is None else conversions.converters_by_path,
        on_unknown_path=None if conversions is None else conversions.on_unknown_path,
        gaps=language.gaps,
        clocks=timeouts.default,
        clocks_by=timeouts.by,
        limits=replace(
            limits_of(entry),
            input_tokens_per_min=entry.input_tpm,
            output_tokens_per_min=entry.output_tpm,
            request_burst=entry.burst,
            unstated_burst_s=UNSTATED_BURST_S,
        ),
        counting=policies.admission[model.admission].counting(
            kind, adaptive=entry.adaptive_concurrency, find_tokenizer=parts.find_tokenizer
        ),
        weight=entry.weight,
        order=entry.order,
        capabilities=Capabilities(
            capabilities.tools, capabilities.images, capabilities.structured_output, capabilities.context_window
        ),
        account=account_of(provider),
        breaker=policies.breakers[model.breakers],
        thinks=is_thinker(place.model or "") if model.thinks is None else model.thinks,
        errors=policies.errors.of(kind),
        edits=place.edits,
        strip=entry.strip or "",
        find_most_input=language.find_most_input,
        find_rates=parts.find_prices(entry.provider) if place.price is None else fixed_rates(stated_rates(place.price)),
    )


def limits_of(entry: LimitedEntry) -> Limits:
    """Returns the limits that targets and keys have in common."""
    return Limits(
        requests_per_min=entry.rpm,
        tokens_per_min=entry.tpm,
        requests_per_day=entry.rpd,
        max_concurrency=entry.max_concurrency,
        fail_closed=closed_limits(entry),
    )


def closed_limits(entry: LimitedEntry) -> frozenset[str]:
    """Returns the limits that fail closed, by their names at run time."""
    if isinstance(entry.fail_closed, list):
        return frozenset(LIMITS[name] for name in _known(entry) if name in entry.fail_closed)
    return frozenset(LIMITS[name] for name in _known(entry)) if entry.fail_closed else frozenset()


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
    given = {
        field: {value for _, target in among if (value := getattr(target.limits, field)) is not None}
        for field in FIELDS
    }
    smallest = {field: min(values) for field, values in given.items() if values}
    disputed = [f"{FIELDS[field]} {value:.15g}" for field, value in smallest.items() if len(given[field]) > 1]
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
