"""Reads templates and places out of the texts of a source, with what is wrong with them."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.products.pipelines.templates.templates.problems import Path, PlanProblem
from gateway.products.pipelines.templates.templates.templates import (
    FILTERS,
    ROOTS,
    TEXT_FIELDS,
    FilledText,
    Filter,
    Place,
    Template,
)

_PLACE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_FILTER: Final = re.compile(r"([A-Za-z_]\w*)(?:\((.*)\))?", re.DOTALL)
_MOST_NUMBER: Final = 100_000_000


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
