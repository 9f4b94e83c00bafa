"""Builds targets from their checked entries, one for each credential of their provider.

Invariant: the targets of one model have different names, and those of a lower
tier come first; within a tier, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.config.admission import FindTokenizer
from gateway.core.config.load.folder import PolicySets
from gateway.core.config.prices import stated_rates
from gateway.core.config.providers import Groups, account_of
from gateway.core.config.schema import CapabilitiesEntry, Kind, LimitedEntry, ModelEntry, PriceEntry, TargetEntry
from gateway.core.config.state.shared_limits import closed_limits
from gateway.core.limits.table.rules import Limits
from gateway.core.openai.bodies import BodyEdits
from gateway.core.openai.transcript import is_thinker
from gateway.core.openai.usage import Capabilities
from gateway.core.snapshot.snapshot import Provider, Rates, Target
from gateway.core.types import Conversions, Upstream
from gateway.dialects.known import ListedModels, ModelTable
from gateway.dialects.spoken import TargetLanguages, gaps_by_endpoint, languages_of

Pair = tuple[str, str | None]
"""The names of a provider and of its model; None: the model that the client asked for."""
FindRates = Callable[[str], Rates | None]
Convert = Callable[[Upstream, TargetLanguages, str], Conversions | None]
"""Returns what puts calls into another language for a server that speaks these; None: it speaks all.

The last argument names the server and its model, for what is learned of it."""

Converse = Callable[[Upstream, Provider, Kind], Upstream]
"""Returns an upstream of a provider as conversations use it: with what they need there and others do not."""


def as_wired(upstream: Upstream, _provider: Provider, _kind: Kind) -> Upstream:
    """Returns the upstream itself."""
    return upstream


def as_it_is(_upstream: Upstream, _languages: TargetLanguages, _place: str) -> None:
    """Converts nothing."""


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
class TargetParts:
    """The parts of targets that are not in their entries.

    Groups, kinds and prices are indexed by a provider's name in the config, upstreams by that of the credential.
    """

    groups: Groups
    upstreams: Mapping[Pair, Upstream]
    find_prices: Callable[[str], FindRates]
    kinds: Mapping[str, Kind]
    convert: Convert
    find_tokenizer: FindTokenizer | None = None
    listed: ListedModels | None = None
    """What providers tell of their models; None: none is asked."""
    _tables: dict[str, ModelTable] = field(default_factory=dict)

    def models_of(self, provider: Provider, policies: PolicySets) -> ModelTable:
        """Returns what is known of a provider's models."""
        if self.listed is None or not provider.learns_models:
            return policies.models
        if provider.group not in self._tables:
            self._tables[provider.group] = policies.models.for_provider(self.listed, provider.group)
        return self._tables[provider.group]


def pairs_of(places: Iterable[TargetPlace], groups: Groups) -> Iterator[Pair]:
    """Yields every provider and model that some target needs."""
    for place in places:
        for provider in groups[place.entry.provider]:
            yield provider.name, place.model


UNTOLD_BURST_S = 10.0
"""Seconds' worth of its limit that a provider takes at once where no burst is known; many take only a few."""


def build_targets(
    places: tuple[TargetPlace, ...], entry: ModelEntry, policies: PolicySets, parts: TargetParts
) -> tuple[Target, ...]:
    """Returns the targets of one model."""
    built = [
        _build(place, provider, entry, policies, parts)
        for place in places
        for provider in parts.groups[place.entry.provider]
    ]
    return tuple(sorted(built, key=lambda target: target.order))


def _build(
    place: TargetPlace, provider: Provider, model: ModelEntry, policies: PolicySets, parts: TargetParts
) -> Target:
    entry = place.entry
    kind = parts.kinds[entry.provider]
    timeouts = policies.timeouts[model.timeouts]
    declared = provider.speaks if entry.speaks is None else entry.speaks
    table = parts.models_of(provider, policies)
    language = TargetLanguages(
        kind,
        languages_of(provider.dialect, kind, declared),
        provider.dialect,
        table.of,
        approximates=model.on_loss == "approximate",
        sets=frozenset(name for name, _ in place.edits.set) if place.edits is not None else frozenset(),
        find_sources=table.sources,
    ).at(place.model or place.model_name)
    upstream = parts.upstreams[provider.name, place.model]
    conversions = parts.convert(upstream, language, f"{provider.base_url} {place.model}")
    return Target(
        name=f"{provider.name}/{place.model or '*'}",
        provider=provider.name,
        model=place.model,
        upstream=upstream,
        converters_by_path={} if conversions is None else conversions.converters_by_path,
        on_unknown_path=None if conversions is None else conversions.on_unknown_path,
        gaps=gaps_by_endpoint(language, place.model),
        clocks=timeouts.default,
        clocks_by=timeouts.by,
        limits=replace(
            limits_of(entry),
            input_tokens_per_min=entry.input_tpm,
            output_tokens_per_min=entry.output_tpm,
            request_burst=entry.burst,
            untold_burst_s=UNTOLD_BURST_S,
        ),
        counting=policies.admission[model.admission].counting(
            kind, adaptive=entry.adaptive_concurrency, find_tokenizer=parts.find_tokenizer
        ),
        weight=entry.weight,
        order=entry.order,
        capabilities=_capabilities(place.capabilities),
        account=account_of(provider),
        breaker=policies.breakers[model.breakers],
        thinks=is_thinker(place.model or "") if model.thinks is None else model.thinks,
        errors=policies.errors.of(kind),
        edits=place.edits,
        strip=entry.strip or "",
        find_most_input=language.find_most_input if language.has_own_language else None,
        find_rates=_rates_of(entry, place.price, parts.find_prices),
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


def _capabilities(entry: CapabilitiesEntry) -> Capabilities:
    return Capabilities(entry.tools, entry.images, entry.structured_output, entry.context_window)


def _rates_of(entry: TargetEntry, price: PriceEntry | None, find_prices: Callable[[str], FindRates]) -> FindRates:
    if price is None:
        return find_prices(entry.provider)
    rates = stated_rates(price)
    return lambda _model: rates
