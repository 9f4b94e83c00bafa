"""What is known of models, by patterns of their names: the rows of `models.yaml`, put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from gateway.dialects.base.base import ModelFacts

MOST_REMEMBERED: Final = 1024
"""Names that are looked up once. A caller may send any name to a target that takes every model."""
MOST_NAME_CHARS: Final = 200
Row = tuple[str, Mapping[str, Any]]
"""A pattern, and the fields of `ModelFacts` that hold for names that fit it."""

_REGIONS: Final = re.compile(r"(?:us|us-gov|eu|apac|jp|au|ca|sa|global)\.")
_MAKERS: Final = re.compile(
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|nvidia|openai|qwen|writer"
    r"|xai|zai)\."
)
_POINT: Final = re.compile(r"(?<=\d)\.(?=\d)")
_VERSION: Final = re.compile(r"-v\d+(?::\d+)?(?::\d+k)?$|@[^@]*$")


def plain_name(model: str) -> str:
    """Returns a model's name without what clouds and routers put around it: `us.anthropic.claude-x-v1:0` is `claude-x`."""
    return _MAKERS.sub("", name_in_cloud(model), count=1)


def name_in_cloud(model: str) -> str:
    """Returns a model's name with its maker's before it where a cloud has it so: `us.anthropic.claude-x-v1:0` is
    `anthropic.claude-x`."""
    return _VERSION.sub("", without_region(model.lower().rpartition("/")[2]))


def without_region(model: str) -> str:
    """Returns the name of the model that a profile of several regions is for: of `us.anthropic.claude-x`, all but `us.`."""
    region = _REGIONS.match(model)
    return model[region.end() :] if region is not None and _MAKERS.match(model, region.end()) else model


class ToldModels:
    """What providers have told of their models, by provider and by the provider's name for the model. Starts empty."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.version = 0
        """Grows with each thing that is told."""

    def tell(self, provider: str, facts: Mapping[str, Mapping[str, Any]]) -> int:
        """Takes what a provider tells of its models in place of what it told before; returns of how many it is new."""
        before = self._told.get(provider, {})
        told: dict[str, Mapping[str, Any]] = {
            plain_name(model): dict(fields) for model, fields in facts.items() if fields
        }
        if told != before:
            self._told[provider] = told
            self.version += 1
        return sum(1 for model, fields in told.items() if before.get(model) != fields)

    def shown(self) -> dict[str, Any]:
        """Returns all that was told, for who looks after the gateway; empty: nothing was."""
        return {"told_of_models": self._told} if self._told else {}

    def of(self, provider: str, model: str) -> Mapping[str, Any]:
        """Returns the fields of `ModelFacts` that a provider has told of a model."""
        told = self._told.get(provider)
        return told.get(plain_name(model), {}) if told else {}


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
        told: ToldModels | None = None,
        provider: str = "",
    ) -> None:
        """`read_rows` gives the built-in rows, and is asked when the first model is looked up: most configs have no target
        that needs the table. `own` are the user's; `told` is of a provider that is asked for its models, if it is one."""
        self._read_rows = read_rows
        self._own_rows = own
        self._told, self._provider = told, provider
        self._look_up: Callable[[str], ModelFacts] = lru_cache(maxsize=MOST_REMEMBERED)(self._find)
        self._forget: Callable[[], None] = self._look_up.cache_clear
        self._version = 0
        self.of: Callable[[str], ModelFacts] = self._look_up if told is None else self._of
        """Returns what is known of a model by its provider's name for it."""

    def told_by(self, told: ToldModels, provider: str) -> ModelTable:
        """Returns the same table for the models of a provider that tells of them."""
        return ModelTable(self._read_rows, self._own_rows, told, provider)

    def sources(self, model: str) -> dict[str, Known]:
        """Returns by field what is known of a model, and which row or list of a provider's says so."""
        return {name: Known(value, source) for source, fields in self._said(model) for name, value in fields.items()}

    @cached_property
    def _rows(self) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
        return _compiled("built in", self._read_rows())

    @cached_property
    def _own(self) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
        return _compiled("models.yaml", self._own_rows)

    def _of(self, model: str) -> ModelFacts:
        if self._told is not None and self._told.version != self._version:
            self._version = self._told.version
            self._forget()
        return self._look_up(model)

    def _find(self, model: str) -> ModelFacts:
        found: dict[str, Any] = {}
        for _, fields in self._said(model):
            found.update(fields)
        return replace(ModelFacts(), **found)

    def _said(self, model: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields what is said of a model, the last word last, each with its source."""
        name = name_in_cloud(model[:MOST_NAME_CHARS])
        plain = plain_name(name)
        names = {name, plain, _POINT.sub("-", plain)}  # the last as routers write `claude-opus-4.1`
        yield from ((source, fields) for source, pattern, fields in self._rows if any(map(pattern.match, names)))
        if self._told is not None:
            yield f"told by {self._provider}", self._told.of(self._provider, plain)
        yield from ((source, fields) for source, pattern, fields in self._own if any(map(pattern.match, names)))


def _compiled(source: str, rows: Sequence[Row]) -> list[tuple[str, re.Pattern[str], Mapping[str, Any]]]:
    return [(f"{source}, {pattern}", re.compile(translate(pattern.lower())), fields) for pattern, fields in rows]


def in_order(rows: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Returns the rows with the longest pattern last; of equally long ones, in the order of the file."""
    return sorted(rows.items(), key=lambda row: len(row[0]))
