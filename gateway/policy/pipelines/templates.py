"""Texts with places for values: `{{ steps.extract.json.title | first(200) }}`.

A place is a path and filters, and nothing else: no code runs. Values are put in once and never read as templates themselves,
so that no input can change what a request is. A place that is a whole text keeps the type of its value, unless it stands where
only text can (`TEXT_FIELDS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from gateway.policy.pipelines.problems import Path, PlanProblem
from gateway.policy.pipelines.splitting import Count, split_text

FILTERS: Final = ("first", "split", "json", "join")
ROOTS: Final = ("input", "steps", "item")
TEXT_FIELDS: Final = frozenset(("content", "text", "instructions"))
"""Fields of requests whose value is a text, whatever is put into it."""
BETWEEN: Final = "\n\n"
"""What `join` puts between texts where it is not told."""
MOST_TEXT_CHARS: Final = 20_000_000
"""Of a text with its values: as large as a request may be by default."""
_PLACE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_FILTER: Final = re.compile(r"([A-Za-z_]\w*)(?:\((.*)\))?", re.DOTALL)
_MOST_NUMBER: Final = 100_000_000


class ValueMissing(Exception):
    """A value cannot be put in: it is not there, or its filter cannot use it. The message names the path, never the value."""


class Scope(NamedTuple):
    """What paths lead into."""

    input: Any
    steps: Mapping[str, Mapping[str, Any]]
    """What is known of each step that has ended; no entry: it was left out, or has failed and that was accepted."""
    item: Any = None
    has_item: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a place."""

    name: str
    number: int = 0
    text: str = BETWEEN


@dataclass(frozen=True, slots=True)
class Place:
    """A path, or a text that stands for itself, and what is done to it."""

    path: tuple[str, ...]
    literal: str
    """What it is where it has no path."""
    filters: tuple[Filter, ...]
    at: Path = field(default=(), compare=False)
    """Where it stands in its source."""

    @property
    def step(self) -> str | None:
        """Returns the name of the step that it refers to; None: to none."""
        return self.path[1] if len(self.path) > 1 and self.path[0] == "steps" else None

    def value(self, scope: Scope, count: Count) -> Any:
        """Returns its value. Raises ValueMissing."""
        value = _look_up(self.path, scope) if self.path else self.literal
        for one in self.filters:
            value = _filtered(value, one, ".".join(self.path), count)
        return value


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with places."""

    parts: tuple[str | Place, ...]
    is_text: bool
    """It is a text in any case; False: a lone place keeps its value's type."""

    def value(self, scope: Scope, count: Count) -> Any:
        """Returns the text, or the value of a lone place. Raises ValueMissing."""
        if not self.is_text and len(self.parts) == 1 and isinstance(self.parts[0], Place):
            return self.parts[0].value(scope, count)
        parts = [part if isinstance(part, str) else as_text(part.value(scope, count)) for part in self.parts]
        if sum(map(len, parts)) > MOST_TEXT_CHARS:
            raise ValueMissing(f"a text with its values has more than {MOST_TEXT_CHARS} characters")
        return "".join(parts)


Template = Any
"""Plain data in which texts with places are `FilledText`."""


def as_text(value: object) -> str:
    """Returns a value as it is put into a text: texts as they are, nothing as nothing, all else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def as_json(value: object) -> str:
    """Returns a value as JSON. Raises ValueMissing for what is nested too deep."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise ValueMissing("a value is nested too deep") from None


def read_template(source: Any, path: Path, problems: list[PlanProblem]) -> Template:
    """Reads all texts of plain data."""
    if isinstance(source, dict):
        return {name: read_template(value, (*path, name), problems) for name, value in source.items()}
    if isinstance(source, list):
        return [read_template(value, (*path, index), problems) for index, value in enumerate(source)]
    if not isinstance(source, str) or "{{" not in source:
        return source
    parts: list[str | Place] = []
    end = 0
    for found in _PLACE.finditer(source):
        if found.start() > end:
            parts.append(source[end : found.start()])
        place = read_place(found[1], path, problems)
        parts.append("" if place is None else place)
        end = found.end()
    if "{{" in source[end:]:
        problems.append(PlanProblem(path, 'a `{{` has no `}}`; write {{ "{{" }} for the characters'))
    if end < len(source):
        parts.append(source[end:])
    return FilledText(tuple(parts), is_text=bool(path) and path[-1] in TEXT_FIELDS)


def read_place(source: str, path: Path, problems: list[PlanProblem]) -> Place | None:
    """Reads `PATH | FILTER | …`, as it stands between braces; None, with a problem, where it is none."""
    first, *rest = (part.strip() for part in _bars(source))
    filters = [one for one in (_read_filter(part, path, problems) for part in rest) if one is not None]
    if first.startswith('"'):
        try:
            return Place((), str(orjson.loads(first)), tuple(filters), path)
        except orjson.JSONDecodeError:
            first = ""
    if not _PATH.fullmatch(first):
        problems.append(
            PlanProblem(
                path, f"`{source.strip()[:60]}` is no value: write a path such as input.document, then filters behind |"
            )
        )
        return None
    steps = tuple(first.split("."))
    if steps[0] not in ROOTS:
        problems.append(PlanProblem(path, f"unknown value {steps[0]}", steps[0], ROOTS))
        return None
    if steps == ("steps",):
        problems.append(PlanProblem(path, "`steps` is no value: name one, such as steps.NAME.text"))
        return None
    return Place(steps, "", tuple(filters), path)


def places_of(template: Template) -> Iterator[Place]:
    """Yields all places of a template."""
    if isinstance(template, dict):
        for value in template.values():
            yield from places_of(value)
    elif isinstance(template, list):
        for value in template:
            yield from places_of(value)
    elif isinstance(template, FilledText):
        yield from (part for part in template.parts if isinstance(part, Place))
    elif isinstance(template, Place):
        yield template


def fill(template: Template, scope: Scope, count: Count) -> Any:
    """Returns the template with its values. Raises ValueMissing."""
    if isinstance(template, dict):
        return {name: fill(value, scope, count) for name, value in template.items()}
    if isinstance(template, list):
        return [fill(value, scope, count) for value in template]
    return template.value(scope, count) if isinstance(template, FilledText | Place) else template


def size_of(value: object) -> int:
    """Returns about how many characters plain data has as JSON."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return sum(len(name) + 4 + size_of(one) for name, one in value.items())
    return sum(map(size_of, value)) + len(value) if isinstance(value, list) else 8


def _bars(source: str) -> list[str]:
    """Divides at bars, but not at those in quotes."""
    parts, is_quoted, begin = [], False, 0
    for at, char in enumerate(source):
        if char == '"' and (at == 0 or source[at - 1] != "\\"):
            is_quoted = not is_quoted
        elif char == "|" and not is_quoted:
            parts.append(source[begin:at])
            begin = at + 1
    return [*parts, source[begin:]]


def _read_filter(source: str, path: Path, problems: list[PlanProblem]) -> Filter | None:
    found = _FILTER.fullmatch(source)
    name, said = (source, None) if found is None else (found[1], found[2])
    if name not in FILTERS:
        problems.append(PlanProblem(path, f"unknown filter `{name[:60]}`", name, FILTERS))
        return None
    if name in ("first", "split"):
        if said is None or not re.fullmatch(r"\s*[0-9]{1,9}\s*", said) or not 0 < int(said) <= _MOST_NUMBER:
            problems.append(PlanProblem(path, f"`{name}` takes a number above 0, such as {name}(2000)"))
            return None
        return Filter(name, int(said))
    if name == "join" and said is not None:
        try:
            between = orjson.loads(said)
        except orjson.JSONDecodeError:
            between = None
        if not isinstance(between, str):
            problems.append(PlanProblem(path, '`join` takes nothing, or a text in quotes, such as join(", ")'))
            return None
        return Filter(name, text=between)
    if said is not None:
        problems.append(PlanProblem(path, f"`{name}` takes nothing: leave the parentheses out"))
        return None
    return Filter(name)


def _look_up(path: tuple[str, ...], scope: Scope) -> Any:
    """Follows a path; through a step that has no result, all is nothing."""
    if path[0] == "input":
        value, rest = scope.input, path[1:]
    elif path[0] == "item":
        if not scope.has_item:
            raise ValueMissing("there is no `item` outside of for_each")
        value, rest = scope.item, path[1:]
    elif path[1] not in scope.steps:
        return None
    else:
        value, rest = scope.steps[path[1]], path[2:]
    for at, name in enumerate(rest, len(path) - len(rest)):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ValueMissing(f"{'.'.join(path[: at + 1])} is not there")
    return value


def _filtered(value: Any, one: Filter, where: str, count: Count) -> Any:
    return _APPLIED[one.name](value, one, where, count)


def _first(value: Any, one: Filter, where: str, _count: Count) -> Any:
    if value is None:
        return None
    if not isinstance(value, str | list):
        raise ValueMissing(f"{where} is neither a text nor a list, of which `first` takes a part")
    return value[: one.number]


def _split(value: Any, one: Filter, where: str, count: Count) -> Any:
    if value is None:
        return []
    if not isinstance(value, str):
        raise ValueMissing(f"{where} is no text that `split` could divide")
    return split_text(value, one.number, count)


def _join(value: Any, one: Filter, where: str, _count: Count) -> Any:
    if value is None:
        return ""
    if not isinstance(value, list):
        raise ValueMissing(f"{where} is no list that `join` could put together")
    return one.text.join(as_text(item) for item in value if item is not None)


def _json(value: Any, _one: Filter, _where: str, _count: Count) -> Any:
    return as_json(value)


_APPLIED: Final[Mapping[str, Callable[[Any, Filter, str, Count], Any]]] = {
    "first": _first, "split": _split, "join": _join, "json": _json,
}  # fmt: skip
