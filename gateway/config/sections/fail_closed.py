"""`fail_closed`: which limits of a target or a key let nothing through while replicas cannot share them.

`true` is all of its limits, those that a provider's answers will tell among them; a list names some that are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.reading.problems import Document, Path, did_you_mean, kind_of
from gateway.config.schema import LimitedEntry

LIMITS: Final[Mapping[str, str]] = {
    "rpm": "requests_per_min",
    "tpm": "tokens_per_min",
    "rpd": "requests_per_day",
    "max_concurrency": "concurrency",
    "input_tpm": "input_tokens_per_min",
    "output_tpm": "output_tokens_per_min",
}
"""Every limit that can be shared as a config calls it, and what it is called at run time."""


def check_fail_closed(document: Document, path: Path, entry: LimitedEntry, *, learns: bool) -> None:
    """Note what is wrong with that of the entry at this path. `learns`: it may get limits that it does not set."""
    here = (*path, "fail_closed")
    if entry.fail_closed is True and not learns and not any(_is_set(entry, name) for name in _known(entry)):
        document.complain(here, "there is no limit here that it could be about")
    for index, name in enumerate(entry.fail_closed if isinstance(entry.fail_closed, list) else ()):
        _check_name(document, (*here, index), entry, name)


def closed_limits(entry: LimitedEntry) -> frozenset[str]:
    """The limits by the names they have at run time, as far as there are such."""
    if isinstance(entry.fail_closed, list):
        return frozenset(LIMITS[name] for name in _known(entry) if name in entry.fail_closed)
    return frozenset(LIMITS[name] for name in _known(entry)) if entry.fail_closed else frozenset()


def _check_name(document: Document, path: Path, entry: LimitedEntry, name: Any) -> None:
    if not isinstance(name, str):
        document.complain(path, f"expected text, not {kind_of(name)}")
    elif name not in _known(entry):
        suggestion = "" if document.origin_of(path) else did_you_mean(name, _known(entry))
        document.complain(path, f"no limit {document.show(path, name)}{suggestion}")
    elif not _is_set(entry, name):
        document.complain(path, f"{document.show(path, name)} is not set here")


def _known(entry: LimitedEntry) -> list[str]:
    return [name for name in LIMITS if name in type(entry).model_fields]


def _is_set(entry: LimitedEntry, name: str) -> bool:
    return getattr(entry, name) is not None
