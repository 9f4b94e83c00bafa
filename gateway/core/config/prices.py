"""Prices of tokens, and tokenizers for exact counts.

Rates are plain numbers per token, resolved once per model name and remembered, because working one out takes up to a
millisecond. Tiers above a prompt length are not followed: the base rate counts. Invariant: a hostile stream of model
names cannot grow the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.core.snapshot.snapshot import Provider, Rates
from gateway.dialects.known import plain_name

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelPrice, TieredPrices
    from genai_prices.types import Provider as Seller


MAX_REMEMBERED_PRICES = 4096
MAX_NAME_CHARS = 200

Audio = tuple[float | None, float | None, float | None]
"""US dollars per million tokens of sound: input, output, and input read from a cache; None: as text."""

_PER_MILLION = 1e-6
_CLIENT = "httpx2"


def price_finder(provider: Provider, now_wall: float) -> Callable[[str], Rates | None]:
    """Returns a function that looks up a model's rates at `now_wall`, by the provider's URL, else by its dialect."""
    _import_without_client()
    # Imported here because it takes 50 ms and 6 MB, which a config whose targets all state their price need not pay.
    from genai_prices.data_snapshot import find_provider_by_id, get_snapshot

    book = get_snapshot()
    seller: Seller | None
    try:
        seller = book.find_provider(None, None, provider.base_url)
    except LookupError:
        seller = find_provider_by_id(book.providers, provider.dialect)
    now = datetime.fromtimestamp(now_wall, UTC)
    is_native = provider.dialect not in ("openai", "azure")
    """Names may have something around them then: `models/gemini-x`, or `anthropic.claude-x` at Bedrock's own Messages."""

    @lru_cache(maxsize=MAX_REMEMBERED_PRICES)
    def look_up(model: str) -> Rates | None:
        if seller is None:
            return None
        # Not the package's own `find_provider_model`: that one remembers every name for ever.
        names = dict.fromkeys((model, plain_name(model) if is_native else model))
        found = next(filter(None, (seller.find_model(name, all_providers=book.providers) for name in names)), None)
        if found is None or not found.prices:
            return None
        return _rates(found.get_prices(now))

    return lambda model: look_up(model) if len(model) <= MAX_NAME_CHARS else None


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
        del sys.modules[_CLIENT]


def fixed_rates(
    input_usd: float,
    output_usd: float,
    cached_input_usd: float | None,
    cache_write_usd: float | None = None,
    cache_write_1h_usd: float | None = None,
    audio: Audio = (None, None, None),
) -> Callable[[str], Rates | None]:
    """Returns a function with the same rates for every model; the arguments are per million tokens."""
    cached = input_usd if cached_input_usd is None else cached_input_usd
    written = [None if usd is None else usd * _PER_MILLION for usd in (cache_write_usd, cache_write_1h_usd)]
    sound = [None if usd is None else usd * _PER_MILLION for usd in audio]
    rates = Rates(input_usd * _PER_MILLION, output_usd * _PER_MILLION, cached * _PER_MILLION, *written, *sound)
    return lambda _model: rates


def _rates(price: ModelPrice) -> Rates | None:
    """Returns the rates; None where the model is not sold by input tokens (but by image, minute or call)."""
    if price.input_mtok is None:
        return None
    paid = _per_token(price.input_mtok)
    cached = paid if price.cache_read_mtok is None else _per_token(price.cache_read_mtok)
    longer = getattr(price, "cache_write_1h_mtok", None)
    written = [None if usd is None else _per_token(usd) for usd in (price.cache_write_mtok, longer)]
    sound = (price.input_audio_mtok, price.output_audio_mtok, price.cache_audio_read_mtok)
    audio = [None if usd is None else _per_token(usd) for usd in sound]
    return Rates(paid, _per_token(price.output_mtok), cached, *written, *audio)


def _per_token(price: Decimal | TieredPrices | None) -> float:
    """Returns the price per token; of tiered prices, the base one."""
    per_million: Any = getattr(price, "base", price)
    return float(per_million) * _PER_MILLION if per_million is not None else 0.0


# Exact token counts with the package tiktoken, where it is installed (the extra `tokenizer`) and asked for.
#
# Vocabularies are loaded while a config is compiled, never while a call waits: the package fetches them from the network
# the first time, without a timeout of its own. Invariants: loading takes a bounded time and never fails a config; counting
# a text takes milliseconds however long it is.


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
    """The loaded tokenizers; `find` returns (and caches) that of a model, None where it is unknown."""

    find: Callable[[str], CountTokens | None]
    notices: tuple[str, ...]


def is_installed() -> bool:
    """Tells whether tiktoken is installed, so that exact counts are possible."""
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
