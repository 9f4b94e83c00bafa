"""The field `price` of a target: what its model's units cost, in the words of the config and as rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

from pydantic import Field, model_validator

from gateway.core.config.fields import Count, Text, Usd, problem_of
from gateway.core.config.schema import Entry
from gateway.core.openai.usage import USUAL_TIERS
from gateway.core.snapshot import Rates


class UnitPrices(Entry):
    """Prices in US dollars per so many tokens or other units."""

    input_usd_per_million: Usd | None = None
    output_usd_per_million: Usd | None = None
    cached_input_usd_per_million: Usd | None = None
    cache_write_usd_per_million: Usd | None = None
    cache_write_1h_usd_per_million: Usd | None = None
    audio_input_usd_per_million: Usd | None = None
    audio_output_usd_per_million: Usd | None = None
    cached_audio_input_usd_per_million: Usd | None = None
    image_input_usd_per_million: Usd | None = None
    image_output_usd_per_million: Usd | None = None
    cached_image_input_usd_per_million: Usd | None = None
    video_input_usd_per_million: Usd | None = None
    video_output_usd_per_million: Usd | None = None
    reasoning_usd_per_million: Usd | None = None
    character_usd_per_million: Usd | None = None
    search_usd_per_thousand: Usd | None = None
    request_usd_per_thousand: Usd | None = None
    audio_usd_per_hour: Usd | None = None
    image_usd: Usd | None = None


class LongInputPrices(UnitPrices):
    """One entry of `above` of a price: what calls with more input cost."""

    input_tokens: Count


class TierPrices(UnitPrices):
    """One entry of `service_tiers` of a price."""

    above: list[LongInputPrices] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        first_at: dict[int, int] = {}
        for index, one in enumerate(self.above):
            alone = sorted(one.model_fields_set - self.model_fields_set - {"input_tokens"})
            if alone:
                raise problem_of(
                    f"above[{index}] has {alone[0]}, which has no price for less input: state that beside above"
                )
            if (first := first_at.setdefault(one.input_tokens, index)) < index:
                raise problem_of(
                    f"above[{index}] has the input_tokens of above[{first}]: one entry says all prices from there on"
                )
        return self


class PriceEntry(TierPrices):
    """The field `price` of a target."""

    service_tiers: dict[Text, TierPrices] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_other_tiers(self) -> Self:
        for tier in self.service_tiers:
            if tier != tier.lower():
                raise problem_of(f"service_tiers.{tier} must be in lower case: answers are compared so")
            if tier == "auto":
                raise problem_of(
                    "service_tiers.auto is no tier: an answer names the one that has served it, such as priority"
                )
            if tier in USUAL_TIERS:
                raise problem_of(f"service_tiers.{tier} is the usual tier: state its prices beside service_tiers")
        return self


_SIZES: Final = {"_per_million": 1e6, "_per_thousand": 1e3}
_STATED: Final[Mapping[str, tuple[str, float]]] = {
    **{
        field.removesuffix(suffix): (field, size)
        for suffix, size in _SIZES.items()
        for field in UnitPrices.model_fields
        if field.endswith(suffix)
    },
    "audio_second_usd": ("audio_usd_per_hour", 3600.0),
    "image_usd": ("image_usd", 1.0),
}
"""The rates, each with its field of the config and the quantity that is priced there."""


class UnitPrice(NamedTuple):
    """US dollars per unit: `usd`, or above so many input tokens what `above` has, its largest number first."""

    usd: float
    above: tuple[tuple[int, float], ...] = ()

    def at(self, input_tokens: int) -> float:
        """Returns the price for calls with more input tokens than the number."""
        return next((usd for start, usd in self.above if input_tokens >= start), self.usd)


def rates_of(prices: Mapping[str, UnitPrice], least_audio_s: float = 0.0) -> Rates | None:
    """Returns rates by their prices; None: no price that a whole call could be billed by."""
    if not prices.keys() & {"input_usd", "character_usd", "audio_second_usd", "image_usd", "request_usd"}:
        return None
    paid = prices.get("input_usd", UnitPrice(0.0))
    cached = prices.get("cached_input_usd")
    known = {"output_usd": UnitPrice(0.0), "cached_input_usd": paid, **prices, "input_usd": paid}
    if cached is None:  # then the kind of input alone decides
        for kind in ("audio", "image"):
            if f"{kind}_input_usd" in prices:
                known.setdefault(f"cached_{kind}_input_usd", prices[f"{kind}_input_usd"])

    def at(input_tokens: int) -> Rates:
        usd: dict[str, Any] = {name: price.at(input_tokens) for name, price in known.items()}
        return Rates(**usd, least_audio_s=least_audio_s, prices_tokens="input_usd" in prices)

    starts = sorted({start for price in known.values() for start, _ in price.above}, reverse=True)
    return replace(at(-1), above=tuple((start, at(start)) for start in starts))


def stated_rates(entry: PriceEntry) -> Rates | None:
    """Returns the rates that a target's `price` states; None: it lacks a price that a whole call could be billed by."""
    prices = _stated_prices(entry)
    rates = rates_of(prices)
    if rates is None:
        return None
    tiers = {tier: rates_of(prices | _stated_prices(other)) for tier, other in entry.service_tiers.items()}
    return replace(rates, by_tier={tier: of_tier for tier, of_tier in tiers.items() if of_tier is not None})


def _stated_prices(entry: TierPrices) -> dict[str, UnitPrice]:
    """Returns the prices of the fields that are stated."""
    prices = {}
    longest_first = sorted(entry.above, key=lambda one: -one.input_tokens)
    for name, (field, size) in _STATED.items():
        above = tuple(
            (one.input_tokens, usd / size) for one in longest_first if (usd := getattr(one, field)) is not None
        )
        usd = getattr(entry, field)
        if usd is not None:
            prices[name] = UnitPrice(usd / size, above)
    return prices
