"""Exact token counts with the package tiktoken, where it is installed (the extra `tokenizer`) and asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib import import_module
from threading import Thread
from typing import Any, Final, NamedTuple

from gateway.core.snapshot import MAX_NAME_CHARS

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
