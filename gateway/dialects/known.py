"""What is known of models, by patterns of their names: the rows of `models.yaml` put together, and providers' own lists.

First the rows and how they hold (`ModelTable`), then how a list is read (`read_page`), then what calls cost by the price list
(`price_finder`), and exact counts of tokens (`load_tokenizers`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from fnmatch import translate
from functools import cached_property, lru_cache, partial
from importlib import import_module
from math import inf
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from gateway.core.config.prices import UnitPrice, rates_of
from gateway.core.ledger import remembered_rates
from gateway.core.snapshot import MAX_NAME_CHARS, FindRates, Provider, Rates, RatesAt
from gateway.core.types import name_in_cloud, plain_name
from gateway.dialects.base import Json, ModelFacts, object_of, objects, text_of

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice
    from genai_prices.types import Provider as Seller


# --- Rows, and how they hold ---


MOST_REMEMBERED: Final = 1024
"""Names that are looked up once. A caller may send any name to a target that takes every model."""
Row = tuple[str, Mapping[str, Any]]
"""A pattern, and the fields of `ModelFacts` that hold for names that fit it."""

_POINT: Final = re.compile(r"(?<=\d)\.(?=\d)")


class ListedModels:
    """What providers' own lists have of their models, by provider and by the provider's name for the model. Starts empty."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.version = 0
        """Grows with each change."""

    def tell(self, provider: str, facts: Mapping[str, Mapping[str, Any]]) -> int:
        """Takes a provider's list in place of its last one; returns for how many models it is new."""
        before = self._facts.get(provider, {})
        listed: dict[str, Mapping[str, Any]] = {
            plain_name(model): dict(fields) for model, fields in facts.items() if fields
        }
        if listed != before:
            self._facts[provider] = listed
            self.version += 1
        return sum(1 for model, fields in listed.items() if before.get(model) != fields)

    def shown(self) -> dict[str, Any]:
        """Returns all lists, for operators; empty: there is none yet."""
        return {"told_of_models": self._facts} if self._facts else {}

    def of(self, provider: str, model: str) -> Mapping[str, Any]:
        """Returns the fields of `ModelFacts` that a provider's list has of a model."""
        listed = self._facts.get(provider)
        return listed.get(plain_name(model), {}) if listed else {}


class Known(NamedTuple):
    """One fact of a model, and where it is from."""

    value: Any
    source: str


class ModelTable:
    """Rows in the order in which they hold: the last word is the last row's that fits.

    What a provider tells of its models goes over the built-in rows; the user's go over both.
    """

    def __init__(
        self,
        read_rows: Callable[[], Sequence[Row]],
        own: Sequence[Row] = (),
        listed: ListedModels | None = None,
        provider: str = "",
    ) -> None:
        """`read_rows` gives the built-in rows, and is asked when the first model is looked up: most configs have no target
        that needs the table. `own` are the user's; `listed` is of a provider that is asked for its models, if it is one."""
        self._read_rows = read_rows
        self._own_rows = own
        self._listed, self._provider = listed, provider
        self._by_provider: dict[str, ModelTable] = {}
        self._look_up: Callable[[str], ModelFacts] = lru_cache(maxsize=MOST_REMEMBERED)(self._find)
        self._forget: Callable[[], None] = self._look_up.cache_clear
        self._version = 0
        self.of: Callable[[str], ModelFacts] = self._look_up if listed is None else self._of
        """Returns what is known of a model by its provider's name for it."""

    def for_provider(self, listed: ListedModels, provider: str) -> ModelTable:
        """Returns the same table for the models of a provider that lists them; remembers."""
        if provider not in self._by_provider:
            self._by_provider[provider] = ModelTable(self._read_rows, self._own_rows, listed, provider)
        return self._by_provider[provider]

    def sources(self, model: str) -> dict[str, Known]:
        """Returns by field what is known of a model, and which row or list of a provider's says so."""
        return {name: Known(value, source) for source, fields in self._rows_of(model) for name, value in fields.items()}

    @cached_property
    def _rows(self) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
        return _compiled("built in", self._read_rows())

    @cached_property
    def _own(self) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
        return _compiled("models.yaml", self._own_rows)

    def _of(self, model: str) -> ModelFacts:
        if self._listed is not None and self._listed.version != self._version:
            self._version = self._listed.version
            self._forget()
        return self._look_up(model)

    def _find(self, model: str) -> ModelFacts:
        found: dict[str, Any] = {}
        for _, fields in self._rows_of(model):
            found.update(fields)
        return replace(ModelFacts(), **found)

    def _rows_of(self, model: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields what is known of a model, each with its source; later ones win."""
        name = name_in_cloud(model[:MAX_NAME_CHARS])
        plain = plain_name(name)
        names = {name, plain, _POINT.sub("-", plain)}  # the last as routers write `claude-opus-4.1`
        yield from ((source, fields) for source, pattern, fields in self._rows if any(map(pattern.match, names)))
        if self._listed is not None:
            yield f"told by {self._provider}", self._listed.of(self._provider, plain)
        yield from ((source, fields) for source, pattern, fields in self._own if any(map(pattern.match, names)))


def _compiled(source: str, rows: Sequence[Row]) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
    return [(f"{source}, {pattern}", re.compile(translate(pattern.lower())), fields) for pattern, fields in rows]


def in_order(rows: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Returns the rows with the longest pattern last; of equally long ones, in the order of the file."""
    return sorted(rows.items(), key=lambda row: len(row[0]))


# --- Providers' own lists of their models, as fields of `ModelFacts` ---


LISTS: Final = frozenset(("anthropic", "gemini"))
"""The dialects whose list of models has more than names."""
MOST_MODELS: Final = 2000
_A_PAGE: Final = "1000"
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_MODELS: Final = "models/"


class ListPage(NamedTuple):
    """One page of a list."""

    facts: Mapping[str, Mapping[str, Any]]
    """The fields of `ModelFacts`, by the provider's name for the model."""
    next: bytes | None
    """The query of the next page; None: this is the last one."""


def first_page(dialect: str) -> bytes:
    return urlencode({"limit" if dialect == "anthropic" else "pageSize": _A_PAGE}).encode()


def read_page(dialect: str, body: Json) -> ListPage:
    """Returns the facts of the models on a page. Total on any JSON object.

    What a list does not say, or says in a way that is not known, leaves the rows of `models.yaml` as they are. Source: the
    references of Anthropic's `GET /v1/models` and of the Gemini API's `models.list`.
    """
    if dialect == "anthropic":
        facts = {text_of(one.get("id")): _of_claude(one) for one in objects(body.get("data"))}
        last = text_of(body.get("last_id")) if body.get("has_more") is True else ""
        more = {"limit": _A_PAGE, "after_id": last}
    else:
        facts = {text_of(one.get("name")).removeprefix(_MODELS): _of_gemini(one) for one in objects(body.get("models"))}
        last = text_of(body.get("nextPageToken"))
        more = {"pageSize": _A_PAGE, "pageToken": last}
    known = {name: fields for name, fields in facts.items() if 0 < len(name) <= MAX_NAME_CHARS and fields}
    return ListPage(known, urlencode(more, errors="replace").encode() if last else None)


def _of_claude(model: Json) -> dict[str, Any]:
    counts = _counts(model, ("max_input", "max_input_tokens"), ("max_output", "max_tokens"))
    can = object_of(model.get("capabilities"))
    if (has_schema := _is_supported(can, "structured_outputs")) is not None:
        counts["json_schema"] = has_schema
    shown = {kind: _is_supported(can, f"{kind}_input") for kind in ("image", "pdf")}
    if None not in shown.values():
        counts["reads"] = tuple(kind for kind, is_read in shown.items() if is_read)
    if _is_supported(can, "effort") is not None:
        effort = object_of(can["effort"])
        counts["efforts"] = tuple(one for one in _EFFORTS if _is_supported(effort, one))
    return counts | _thinking_of(can)


def _thinking_of(can: Json) -> dict[str, Any]:
    supported, types = _is_supported(can, "thinking"), object_of(object_of(can.get("thinking")).get("types"))
    if supported is False:
        return {"thinking": "none"}
    thinking = {}
    if supported and _is_supported(types, "adaptive"):
        thinking["thinking"] = "adaptive"
    elif supported and _is_supported(types, "enabled"):
        thinking["thinking"] = "budget"
    ways = {way: _is_supported(types, way) for way in ("disabled", "between_tools")}
    if thinking and None not in ways.values():
        thinking["thinking_off"] = next((way for way, is_taken in ways.items() if is_taken), "never")
    return thinking


def _of_gemini(model: Json) -> dict[str, Any]:
    counts = _counts(model, ("max_input", "inputTokenLimit"), ("max_output", "outputTokenLimit"))
    return counts | ({"thinking": "none"} if model.get("thinking") is False else {})


def _counts(model: Json, *names: tuple[str, str]) -> dict[str, Any]:
    return {ours: count for ours, theirs in names if type(count := model.get(theirs)) is int and count > 0}


def _is_supported(can: Json, name: str) -> bool | None:
    """Returns whether a capability is there; None: the list does not say."""
    supported = object_of(can.get(name)).get("supported")
    return supported if isinstance(supported, bool) else None


# --- Prices, by the package genai_prices: of tokens and other units, by provider, model and service tier ---

# Rates are plain numbers per unit, worked out once per model name and remembered until the price changes, because working
# them out takes up to a millisecond. Invariant: the cost of a usage is the one that the price list's own package calculates.

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


# --- Exact token counts with the package tiktoken, where it is installed (the extra `tokenizer`) and asked for ---

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
