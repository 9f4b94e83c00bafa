"""How much work a schema may make of an answer, before any is done.

A validator applies subschemas that contain one another through references as often as they are reached. Beside each other
(`anyOf` and the like) that doubles with every level of the answer, and a recursive schema of a hundred bytes takes hours
over an answer of a hundred. So the most times that one value of an answer can be visited is computed from the schema alone.
Where a reference leads that is not followed here (names below the root, the library's own schemas), the visits are taken to
be endless.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Final
from urllib.parse import unquote

MOST_VISITS: Final = 1_000_000.0
"""More need not be told apart."""
MOST_PARTS: Final = 8_000
"""Subschemas, of all closures together: a schema that is more entangled is not used."""
MOST_BESIDE: Final = 300
"""Steps from reference to reference without one into the answer."""
DEPTHS: Final = 64
"""The levels for which visits are computed; deeper answers are taken to be endlessly dear where visits grow."""

_BESIDE: Final = ("allOf", "anyOf", "oneOf")
_BESIDE_ONE: Final = ("not", "if", "then", "else")
_BESIDE_NAMED: Final = ("dependentSchemas", "dependencies")
_INTO_ANY: Final = (
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems"),
    *("unevaluatedItems", "contains"),
)
_NAMES_OF_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OTHER: Final = None
"""Stands for every name that no `properties` has, and for the places of a list."""

Part = dict[str, Any]


class TooEntangled(ValueError):
    """The schema leads back to itself without a step into the answer, or has too many ways through it."""


class Weights:
    """The visits of one schema. Raises TooEntangled."""

    __slots__ = ("_by_depth",)

    def __init__(self, root: Any) -> None:
        self._by_depth = _Ways(root).visits() if isinstance(root, dict) else [1.0]

    @property
    def most(self) -> float:
        """Returns the visits of one value of any answer; infinite where they grow with its levels, and never stop."""
        return self._by_depth[-1]

    def visits(self, depth: int) -> float:
        """Returns how often, at most, one value of an answer with so many levels is looked at."""
        return self._by_depth[min(depth, len(self._by_depth) - 1)]


class _Ways:
    """The ways through a schema, while its visits are computed."""

    def __init__(self, root: Part) -> None:
        self._root = root
        self._anchors: dict[str, Part] = {}
        self._has_bases = self._is_unknown = False
        self._find_names(root)
        self._closures: dict[int, dict[int, int]] = {}
        self._parts: dict[int, Part] = {}
        self._ahead: dict[int, list[list[tuple[int, int]]]] = {}
        self._total = 0
        self._explore(root)

    def _find_names(self, root: Part) -> None:
        """Finds subschemas by their names, and whether references may lead elsewhere than they seem to."""
        fields = ("$id", "id") if "draft-04" in str(root.get("$schema")) else ("$id",)
        todo: list[Any] = [root]
        while todo:
            part = todo.pop()
            if isinstance(part, dict):
                for field in ("$anchor", "$dynamicAnchor"):
                    name = part.get(field)
                    if isinstance(name, str):
                        self._has_bases = self._has_bases or self._anchors.get(name, part) is not part
                        self._anchors[name] = part
                if part is not root and any(isinstance(part.get(field), str) for field in fields):
                    self._has_bases = True
                todo.extend(part.values())
            elif isinstance(part, list):
                todo.extend(part)

    def visits(self) -> list[float]:
        """Returns the visits by the levels of an answer; the last number is that of all further levels. They never fall."""
        if self._is_unknown:
            return [inf]
        own = {name: _own_work(part) for name, part in self._parts.items()}
        level = {
            name: min(float(sum([own[inner] * times for inner, times in self._closures[name].items()])), MOST_VISITS)
            for name in self._ahead
        }
        found = [level[id(self._root)]]
        for _ in range(DEPTHS):
            deeper = {name: self._deeper(level, visits, self._ahead[name]) for name, visits in level.items()}
            if deeper == level:
                return found
            level = deeper
            found.append(level[id(self._root)])
        return [*found, inf]

    def _deeper(self, level: dict[int, float], visits: float, ways: list[list[tuple[int, int]]]) -> float:
        for ahead in ways:
            visits = max(visits, sum([level[part] * times for part, times in ahead]))
        return min(visits, MOST_VISITS)

    def _explore(self, root: Part) -> None:
        todo = [root]
        while todo:
            part = todo.pop()
            if id(part) in self._ahead:
                continue
            closure = self._closure(part, set())
            by_name: dict[str | None, dict[int, int]] = {_OTHER: {}}
            for inner, times in closure.items():
                for name, child in _into(self._parts[inner]):
                    todo.append(child)
                    steps = by_name.setdefault(name, {})
                    steps[id(child)] = steps.get(id(child), 0) + times
            anywhere = by_name[_OTHER]
            self._ahead[id(part)] = [
                [*steps.items(), *(anywhere.items() if name is not _OTHER else ())] for name, steps in by_name.items()
            ]

    def _closure(self, part: Part, above: set[int]) -> dict[int, int]:
        """Returns the subschemas that look at the same value as this one, itself among them, and how often each does."""
        known = self._closures.get(id(part))
        if known is not None:
            return known
        if id(part) in above or len(above) > MOST_BESIDE:
            raise TooEntangled("it refers to itself without a step into the answer")
        above.add(id(part))
        found = {id(part): 1}
        for child in self._beside(part):
            for inner, times in self._closure(child, above).items():
                found[inner] = min(found.get(inner, 0) + times, int(MOST_VISITS))
        above.discard(id(part))
        self._total += len(found)
        if self._total > MOST_PARTS:
            raise TooEntangled("it has too many parts that refer to each other")
        self._parts[id(part)] = part
        self._closures[id(part)] = found
        return found

    def _beside(self, part: Part) -> Iterator[Part]:
        for name in _BESIDE:
            listed = part.get(name)
            yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, dict))
        for name in _BESIDE_ONE:
            if isinstance(part.get(name), dict):
                yield part[name]
        for name in _BESIDE_NAMED:
            named = part.get(name)
            yield from (one for one in (named.values() if isinstance(named, dict) else ()) if isinstance(one, dict))
        for name in _NAMES_OF_REFS:
            target = self._target(part.get(name))
            if target is not None:
                yield target

    def _target(self, ref: Any) -> Part | None:
        """Returns where a reference leads; None: to no subschema, or to one that is not found here, though the library may."""
        if not isinstance(ref, str):
            return None
        base, _, fragment = ref.partition("#")
        root_id = self._root.get("$id")
        is_here = not base or (isinstance(root_id, str) and base == root_id.partition("#")[0])
        here: Any = None
        if is_here and not self._has_bases:
            fragment = unquote(fragment)
            here = self._at(fragment) if not fragment or fragment.startswith("/") else self._anchors.get(fragment)
        if here is None:
            self._is_unknown = True
        return here if isinstance(here, dict) else None

    def _at(self, pointer: str) -> Any:
        here: Any = self._root
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(here, list):
                here = here[int(step)] if step.isdecimal() and int(step) < len(here) else None
            else:
                here = here.get(step) if isinstance(here, dict) else None
        return here


def _own_work(part: Part) -> int:
    """Returns what one visit by this subschema alone is worth: those keywords that go through all they have each time."""
    work = 1
    for field in ("patternProperties", "dependentRequired", "dependencies"):
        work += len(part[field]) if isinstance(part.get(field), dict) else 0
    listed = part.get("enum")
    if isinstance(listed, list):  # words and numbers are looked up
        work += sum([isinstance(one, dict | list) for one in listed])
    divisor = part.get("multipleOf")
    if isinstance(divisor, float):  # fractions of whole numbers of any length
        work += _DIVIDING if divisor >= _USUAL_DIVISOR else 10 * _DIVIDING
    return work


_DIVIDING: Final = 20
_USUAL_DIVISOR: Final = 1e-6


def _into(part: Part) -> Iterator[tuple[str | None, Part]]:
    """Yields the subschemas for what is inside of a value, with the name that leads there."""
    named = part.get("properties")
    for name, child in named.items() if isinstance(named, dict) else ():
        if isinstance(child, dict):
            yield name, child
    patterns = part.get("patternProperties")
    for child in patterns.values() if isinstance(patterns, dict) else ():
        if isinstance(child, dict):
            yield _OTHER, child
    for field in _INTO_ANY:
        child = part.get(field)
        if isinstance(child, dict):
            yield _OTHER, child
    for field in ("prefixItems", "items"):
        listed = part.get(field)
        for child in listed if isinstance(listed, list) else ():
            if isinstance(child, dict):
                yield _OTHER, child
