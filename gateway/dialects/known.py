"""What is known of models, by patterns of their names: the rows of `models.yaml` put together, and providers' own lists.

First the rows and how they hold (`ModelTable`), then how a list is read (`read_page`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from gateway.core.types import name_in_cloud, plain_name
from gateway.dialects.base import Json, ModelFacts, object_of, objects, text_of

# --- Rows, and how they hold ---


MOST_REMEMBERED: Final = 1024
"""Names that are looked up once. A caller may send any name to a target that takes every model."""
MOST_NAME_CHARS: Final = 200
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
        name = name_in_cloud(model[:MOST_NAME_CHARS])
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
    known = {name: fields for name, fields in facts.items() if 0 < len(name) <= MOST_NAME_CHARS and fields}
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
