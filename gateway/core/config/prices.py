"""Prices of tokens and other units, and tokenizers for exact counts; in this order.

Rates are plain numbers per unit, worked out once per model name and remembered until the price changes, because working
them out takes up to a millisecond. Invariants: the cost of a usage is the one that the price list's own package calculates;
a hostile stream of model names cannot grow the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.core.config.schema import PriceEntry, TierPrices
from gateway.core.snapshot import Provider, Rates
from gateway.core.types import plain_name

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice
    from genai_prices.types import Provider as Seller


MAX_REMEMBERED_PRICES = 4096
MAX_NAME_CHARS = 200
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
_STATED: Final = {
    **{name: (f"{name}_per_million", 1e6) for name, (_, size) in _UNITS.items() if size == 1e6},
    **{name: (f"{name}_per_thousand", 1e3) for name, (_, size) in _UNITS.items() if size == 1e3},
    "audio_second_usd": ("audio_usd_per_hour", 3600.0),
    "image_usd": ("image_usd", 1.0),
}
"""The rates, by the fields of a target's `price`."""
_TIERS: Final[Mapping[str, Mapping[str, str]]] = {
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
    "fast": {"service_tier": "fast", "speed": "fast"},
    "batch": {"processing": "batch"},
}
"""The price list's words for a tier, by that of a `Usage`; with any other word the standard price holds."""


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


def price_finder(provider: Provider, wall: Callable[[], float]) -> Callable[[str], Rates | None]:
    """Returns a function that looks up a model's rates by the provider's price list, at the time of the call by `wall`."""
    book = PriceBook(provider)

    @lru_cache(maxsize=MAX_REMEMBERED_PRICES)
    def look_up(name: str) -> _Remembered:
        return _Remembered(book.find(name))

    def find(name: str) -> Rates | None:
        # A caller may send any name, and each that is looked up is remembered.
        if len(name) > MAX_NAME_CHARS:
            return None
        found = look_up(name)
        if found.until < inf and (now := wall()) >= found.until:
            found.rates, found.until = (None, inf) if found.model is None else found.model.all_at(now)
        return found.rates

    return find


class _Remembered:
    """The rates of a model until they change; of most they never do, and no clock is asked."""

    __slots__ = ("model", "rates", "until")

    def __init__(self, model: PricedModel | None) -> None:
        self.model = model
        self.rates: Rates | None = None
        self.until = -inf


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


# --- exact token counts with the package tiktoken, where it is installed (the extra `tokenizer`) and asked for ---


NOT_INSTALLED: Final = (
    "exact counts need the Python package tiktoken, which is not installed (the extra tokenizer: "
    "pip install 'llm-gateway-sidecar[tokenizer]')"
)
LOAD_S: Final = 10.0
MAX_REMEMBERED_COUNTERS: Final = 4096
WHOLE_CHARS: Final = 32_768
"""Characters above which a text is counted by samples: a megabyte would block the event loop for half a second."""

_OF_ANY_NAME = "o200k_base"  # for targets that take any model's name: the one of all current models
_SAMPLES = 8

CountTokens = Callable[[str], int]


class Tokenizers(NamedTuple):
    """The loaded tokenizers; `find` returns (and caches) that of a model, None where it is unknown.

    Vocabularies are loaded while a config is compiled, never while a call waits: the package fetches them from the network
    the first time, without a timeout of its own. Invariants: loading takes a bounded time and never fails a config;
    counting a text takes milliseconds however long it is.
    """

    find: Callable[[str], CountTokens | None]
    notices: tuple[str, ...]


def is_installed() -> bool:
    """Returns whether tiktoken is installed, so that exact counts are possible."""
    return find_spec("tiktoken") is not None


def load_tokenizers(models: Iterable[str | None], *, wait_s: float = LOAD_S) -> Tokenizers:
    """Loads these models' vocabularies (None: a target for any name), without those that take longer than `wait_s`."""
    try:
        tiktoken: Any = import_module("tiktoken")  # an extra: neither mypy nor a config without it need know it
    except ImportError:
        return Tokenizers(
            lambda _model: None, ("the package tiktoken cannot be imported: the heuristic counts instead",)
        )

    def name_of(model: str) -> str | None:
        try:
            return str(tiktoken.encoding_name_for_model(model))
        except KeyError:
            return None

    wanted = {model: _OF_ANY_NAME if model is None else name_of(model) for model in models}
    names = sorted({name for name in wanted.values() if name is not None})
    counts, failures = _load_all(names, tiktoken.get_encoding, wait_s)

    @lru_cache(maxsize=MAX_REMEMBERED_COUNTERS)
    def look_up(model: str) -> CountTokens | None:
        return counts.get(name_of(model) or "")

    unknown = [model for model, name in wanted.items() if model is not None and name is None]
    return Tokenizers(
        lambda model: look_up(model) if len(model) <= MAX_NAME_CHARS else None,
        (
            *failures,
            *([f"no tokenizer is known for {', '.join(unknown)}: the heuristic counts there"] if unknown else ()),
        ),
    )


def _load_all(names: list[str], load: Callable[[str], Any], wait_s: float) -> tuple[dict[str, CountTokens], list[str]]:
    """Loads one after the other, in a thread that is abandoned when the network does not answer."""
    loaded: dict[str, CountTokens] = {}
    reasons: dict[str, str] = {}

    def work() -> None:
        for name in names:
            try:
                loaded[name] = partial(_count, load(name))
            except (OSError, ValueError, ImportError) as error:  # no network, no space, a damaged file
                reasons[name] = getattr(error, "strerror", None) or type(error).__name__

    thread = Thread(target=work, name="load-tokenizers", daemon=True)
    thread.start()
    thread.join(wait_s)
    # A copy, because an abandoned thread may still add to it.
    counts = dict(loaded)
    return counts, [
        f"the tokenizer {name} could not be loaded ({reasons.get(name, f'not there after {wait_s:g} s')}): "
        "the heuristic counts instead"
        for name in names
        if name not in counts
    ]


def _count(encoding: Any, text: str) -> int:
    if len(text) <= WHOLE_CHARS:
        return len(encoding.encode_ordinary(text))
    size = WHOLE_CHARS // _SAMPLES
    step = (len(text) - size) // (_SAMPLES - 1)
    starts = range(0, step * _SAMPLES, step)
    tokens = sum([len(encoding.encode_ordinary(text[start : start + size])) for start in starts])
    return round(tokens * len(text) / WHOLE_CHARS)
