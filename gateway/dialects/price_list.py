"""Prices of the package genai_prices: of tokens and other units, by provider, model and service tier.

Rates are plain numbers per unit, worked out once per model name and remembered until the price changes, because working
them out takes up to a millisecond. Invariant: the cost of a usage is the one that the price list's own package calculates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from importlib import import_module
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from gateway.core.config.prices import UnitPrice, rates_of
from gateway.core.ledger import remembered_rates
from gateway.core.snapshot import FindRates, Provider, Rates, RatesAt
from gateway.core.types import plain_name

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice
    from genai_prices.types import Provider as Seller


SOON_S: Final = 600.0
"""A price that begins within so many seconds counts for what is reserved now: an answer is billed when it is complete."""

_CLIENT = "httpx2"
_UNITS: Final = {
    "input_usd": ("input_mtok", 1e6),
    "output_usd": ("output_mtok", 1e6),
    "cached_input_usd": ("cache_read_mtok", 1e6),
    "cache_write_usd": ("cache_write_mtok", 1e6),
    "cache_write_1h_usd": ("cache_write_1h_mtok", 1e6),
    "audio_input_usd": ("input_audio_mtok", 1e6),
    "audio_output_usd": ("output_audio_mtok", 1e6),
    "cached_audio_input_usd": ("cache_audio_read_mtok", 1e6),
    "image_input_usd": ("input_image_mtok", 1e6),
    "image_output_usd": ("output_image_mtok", 1e6),
    "cached_image_input_usd": ("cache_image_read_mtok", 1e6),
    "video_input_usd": ("input_video_mtok", 1e6),
    "video_output_usd": ("output_video_mtok", 1e6),
    "reasoning_usd": ("output_reasoning_mtok", 1e6),
    "search_usd": ("web_searches_kcount", 1e3),
    "character_usd": ("input_mchars", 1e6),
    "audio_second_usd": ("input_audio_hours", 3600.0),
    "request_usd": ("requests_kcount", 1e3),
}
"""The rates, by the names and the quantities of the price list."""
_TIERS: Final[Mapping[str, Mapping[str, str]]] = {
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
    "fast": {"service_tier": "fast", "speed": "fast"},
    "batch": {"processing": "batch"},
}
"""The price list's words for a tier, by that of a `Usage`; with any other word the standard price holds."""


def price_finder(provider: Provider, wall: Callable[[], float]) -> FindRates:
    """Returns a function that looks up a model's rates by the provider's price list, at the time of the call by `wall`."""
    book = PriceBook(provider)

    def look_up(name: str) -> RatesAt | None:
        found = book.find(name)
        return None if found is None else found.all_at

    return remembered_rates(look_up, wall)


class PriceBook:
    """The prices of one provider's models, at any time."""

    def __init__(self, provider: Provider) -> None:
        """Finds the provider in the price list by its URL, else by its dialect."""
        _import_without_client()
        # Imported here because it takes 50 ms and 6 MB, which a config whose targets all state their price need not pay.
        from genai_prices.data_snapshot import find_provider_by_id, get_snapshot

        book = get_snapshot()
        self._sellers = book.providers
        self._seller: Seller | None
        try:
            self._seller = book.find_provider(None, None, provider.base_url)
        except LookupError:
            self._seller = find_provider_by_id(book.providers, provider.dialect)
        self._is_native = provider.dialect not in ("openai", "azure")
        """Names may have something around them then: `models/gemini-x`, or `anthropic.claude-x` at Bedrock's own Messages."""

    def find(self, name: str) -> PricedModel | None:
        """Returns what the list has of a model; None: it does not know it."""
        seller = self._seller
        if seller is None:
            return None
        # Not the package's own `find_provider_model`: that one remembers every name for ever.
        names = dict.fromkeys((name, plain_name(name) if self._is_native else name))
        found = next(filter(None, (seller.find_model(one, all_providers=self._sellers) for one in names)), None)
        return None if found is None else PricedModel(seller, found)


class PricedModel:
    """One model of the price list, as one provider sells it."""

    __slots__ = ("_is_own", "_least_audio_s", "_model")

    def __init__(self, seller: Seller, model: ModelInfo) -> None:
        self._model = model
        self._is_own = any(model is one for one in seller.models)  # others' prices of tiers are not taken over
        is_whisper = seller.id == "groq" and model.id in ("whisper-large-v3", "whisper-large-v3-turbo")
        self._least_audio_s = 10.0 if is_whisper else 0.0  # https://groq.com/pricing; not in the list's data

    def at(self, context: Mapping[str, str], now: float) -> tuple[Rates | None, float]:
        """Returns the rates of calls of one context (a service tier, a batch) at `now`, and until when they hold: seconds
        since the epoch, or inf."""
        moment = datetime.fromtimestamp(now, UTC)
        listed = self._model.get_prices(moment, context if self._is_own else None)
        changes = [_next_change(constraint, moment) for constraint in self._constraints()]
        return rates_of(_listed_prices(listed), self._least_audio_s), min(changes, default=inf)

    def all_at(self, now: float) -> tuple[Rates | None, float]:
        """As `at`, with the rates of all service tiers, and those that follow soon."""
        rates, until = self._tiers_at(now)
        if until == inf or rates is None:
            return rates, until
        if now < until - SOON_S:
            return rates, until - SOON_S
        return replace(rates, soon=self._tiers_at(until)[0]), until

    def _tiers_at(self, now: float) -> tuple[Rates | None, float]:
        rates, until = self.at({}, now)
        tiers: dict[str, Rates] = {}
        variants = (self._model.price_variants or ()) if self._is_own else ()
        for tier, context in _TIERS.items():
            is_listed = any(variant.when.items() <= context.items() for variant in variants)
            if is_listed and (of_tier := self.at(context, now)[0]) is not None:
                tiers[tier] = of_tier
        return None if rates is None else replace(rates, by_tier=tiers), until

    def _constraints(self) -> Iterator[Any]:
        prices = self._model.prices
        for one in (*(prices if isinstance(prices, list) else ()), *(self._model.price_variants or ())):
            if one.constraint is not None:
                yield one.constraint


def _listed_prices(listed: ModelPrice) -> dict[str, UnitPrice]:
    """Returns the prices of the list, each for one unit."""
    prices = {}
    for name, (key, size) in _UNITS.items():
        price: Any = getattr(listed, key)
        if name == "audio_second_usd" and price is None:
            price = listed.audio_hours
        if price is not None:
            tiers = reversed(getattr(price, "tiers", ()))
            above = tuple((tier.start, float(tier.price) / size) for tier in tiers)
            prices[name] = UnitPrice(float(getattr(price, "base", price)) / size, above)
    return prices


def _next_change(constraint: Any, moment: datetime) -> float:
    """Returns when a constraint of the list begins or ceases to hold after the moment, in seconds since the epoch."""
    start_date = getattr(constraint, "start_date", None)
    if start_date is not None:
        begin = datetime.combine(start_date, time(), UTC)
        return begin.timestamp() if begin > moment else inf
    times = (constraint.start_time, constraint.end_time)
    daily = (datetime.combine(moment.date(), one if one.tzinfo else one.replace(tzinfo=UTC)) for one in times)
    return (
        min((one - moment) % timedelta(days=1) or timedelta(days=1) for one in daily) / timedelta(seconds=1)
        + moment.timestamp()
    )


def _import_without_client() -> None:
    """Imports genai_prices, which could fetch newer lists, without the HTTP client that it would do so with.

    The client's 30 modules are a second httpx: 1 MB of memory and some 15 ms of every start. Nothing here ever fetches a
    list, so an empty module takes the client's place while the package is imported.
    """
    if "genai_prices" in sys.modules or _CLIENT in sys.modules:
        return
    sys.modules[_CLIENT] = ModuleType(_CLIENT)
    try:
        import_module("genai_prices")
    finally:
        # Whoever imports the real client later gets it.
        del sys.modules[_CLIENT]
