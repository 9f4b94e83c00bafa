"""JSON Schemas, compiled once, and what they say of a text: of an answer, or of an input.

In this order: the work of a schema's patterns; the work of its subschemas; and the compiled schema. The validator is the Rust
library behind the package `jsonschema-rs` (the extra `output`), imported when the first schema is compiled. Nothing is fetched:
a reference to another document makes a schema unusable. Patterns run in linear time. The library holds Python's lock while it
works, so that a thread would not help: texts of more than INLINE_BYTES, and schemas that may take long over them, are `dear`,
and checked by a process of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from itertools import accumulate
from math import inf
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import orjson

# --- the work of patterns, to compile and to match, estimated from their text ---

MOST_PATTERNS: Final = 400
"""The most patterns of one schema: each takes its tenth of a millisecond to compile, whatever it says."""
MOST_STATES: Final = 40_000
"""The most states of all patterns of one schema together, as estimated: some 20 ms to compile."""
INLINE_STEPS: Final = 4_000_000
"""Characters times states: some 30 ms where the cheap way is given up, which few patterns make it do."""

_TIMES = re.compile(r"\{(\d{1,6})(?:,(\d{0,6}))?\}")


class PatternWeight:
    """The patterns of one schema, together.

    The library's automata run in linear time, but what they do for each character grows with their states where the cheap way
    (a lazily built DFA) is given up: a repetition such as `[ab]{900}` takes seconds over a hundred kilobytes.
    """

    __slots__ = ("count", "heaviest", "states")

    def __init__(self, schema: Any) -> None:
        sizes = [states_of(one) for one in _patterns(schema)]
        self.count = len(sizes)
        self.states = sum(sizes)
        self.heaviest = max(sizes, default=0)

    @property
    def is_too_much(self) -> bool:
        """Returns whether to compile them might keep everybody else waiting."""
        return self.count > MOST_PATTERNS or self.states > MOST_STATES

    def is_dear(self, length: int, visits: float) -> bool:
        """Returns whether to match texts of so many bytes might, each value being looked at `visits` times at most."""
        return self.heaviest * min(self.count, visits) * length > INLINE_STEPS


def states_of(pattern: str) -> int:
    """Returns about how many states the automaton of a pattern has: never far too few."""
    times = [max(1, int(least), int(most or 0)) for least, most in _TIMES.findall(pattern)]
    if "){" not in pattern:
        return len(pattern) + sum(times)
    states = len(pattern)
    for one in times:  # they may be inside of each other
        states = min(states * one, 10 * MOST_STATES)
    return states


def _patterns(schema: Any) -> Iterator[str]:
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            pattern, named = part.get("pattern"), part.get("patternProperties")
            if isinstance(pattern, str):
                yield pattern
            if isinstance(named, dict):
                yield from named
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)


# --- the work of a schema over an answer, before any is done ---

MOST_VISITS: Final = 1_000_000.0
"""The most visits that are counted: more need not be distinguished."""
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
    """The visits of one schema. Raises TooEntangled.

    A validator applies subschemas that contain one another through references as often as they are reached. Beside each other
    (`anyOf` and the like) that doubles with every level of the answer, and a recursive schema of a hundred bytes takes hours
    over an answer of a hundred. So the most times that one value of an answer can be visited is computed from the schema alone.
    Where a reference leads that is not followed here (names below the root, the library's own schemas), the visits are taken to
    be endless.
    """

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


# --- the compiled schema ---

NOT_INSTALLED: Final = (
    "schemas for answers need the Python package jsonschema-rs, which is not installed (the extra output: "
    "pip install '.[output]')"
)
MOST_BYTES: Final = 65_536
"""The longest schema."""
MOST_DEPTH: Final = 100
"""The levels of one schema."""
MOST_PATH: Final = 200
"""The characters that are named of a place: it goes into log lines, and a caller's schema may have long names."""
REGEX_BYTES: Final = 1_048_576
"""A pattern's automaton may take so much memory."""
INLINE_BYTES: Final = 131_072
"""A text up to here is parsed and validated in a few milliseconds (measured: 3 ms for 100 KB)."""
INLINE_VISITS: Final = 20_000.0
"""Values of an answer times visits of each: a few milliseconds, with all that the library notes of an error."""
MOST_INLINE_VISITS_PER_VALUE: Final = 32.0
"""Of the errors below an `anyOf` the library keeps copies of copies: what is visited oftener is dear, however short."""


class SchemaUnusable(ValueError):
    """The schema is none, or is outside the bounds; the message says why, in words for whoever wrote it."""


class JsonSchema:
    """A compiled schema."""

    __slots__ = ("_names", "_patterns", "_validator", "_weights", "digest", "source")

    def __init__(self, source: bytes, value: Any, validator: Any, weights: Weights, patterns: PatternWeight) -> None:
        self.source = source
        """JSON, as it was given."""
        self.digest = sha256(source).digest()
        self._validator = validator
        self._weights = weights
        self._patterns = patterns
        self._names = frozenset(_names(value))

    def is_dear(self, text: bytes) -> bool:
        """Returns whether to check this text might keep everybody else waiting."""
        if len(text) > INLINE_BYTES:
            return True
        return self.is_heavy(text, INLINE_VISITS)

    def is_heavy(self, text: bytes, visits: float) -> bool:
        """Returns whether the check of a text, of any length, might take more than so many visits of values."""
        if self._patterns.is_dear(len(text), self._weights.most):
            return True
        values = 1 + text.count(b",") + text.count(b"{") + text.count(b"[")
        most = min(MOST_INLINE_VISITS_PER_VALUE, visits / values)
        return most < 1.0 or (self._weights.most > most and self._weights.visits(depth_of(text)) > most)

    def accepts(self, value: Any) -> bool:
        """Returns whether a parsed answer is what the schema asks for."""
        try:
            accepted: bool = self._validator.is_valid(value)
        except ValueError:  # nested deeper than the library goes
            return False
        return accepted

    def first_error(self, value: Any) -> tuple[str, str]:
        """Returns the keyword that a parsed answer breaks first, and the place, as a JSON Pointer without foreign names."""
        import jsonschema_rs  # an extra, which is loaded by now

        try:
            # Not `iter_errors`: that makes all errors at once, each with a copy of what it is about.
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error.kind.name, self._path(error.instance_path)
        except ValueError:  # nested deeper than the library goes
            pass
        return "schema", ""

    def _path(self, steps: list[str | int]) -> str:
        path = ""
        for step in steps:
            name = str(step) if isinstance(step, int) or step in self._names else "*"
            path += "/" + name.replace("~", "~0").replace("/", "~1")
            if len(path) > MOST_PATH:
                return path[:MOST_PATH] + "…"
        return path


def is_installed() -> bool:
    """Returns whether schemas can be compiled here."""
    return find_spec("jsonschema_rs") is not None


def compile_schema(source: bytes) -> JsonSchema:
    """Returns the compiled schema. Raises SchemaUnusable; also where the extra is not installed."""
    if len(source) > MOST_BYTES:
        raise SchemaUnusable(f"it has {len(source)} bytes; at most {MOST_BYTES} are allowed")
    try:
        value = orjson.loads(source)
    except orjson.JSONDecodeError as error:
        raise SchemaUnusable(f"it is no JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise SchemaUnusable("a schema is an object, or true or false")
    if depth_of(source) > MOST_DEPTH:
        raise SchemaUnusable(f"it is nested more than {MOST_DEPTH} levels deep")
    if not is_installed():
        raise SchemaUnusable(NOT_INSTALLED)
    try:
        weights = Weights(value)
    except TooEntangled as error:
        raise SchemaUnusable(str(error)) from None
    patterns = PatternWeight(value)
    if patterns.is_too_much:
        raise SchemaUnusable("its patterns are too many or too long")
    import jsonschema_rs  # an extra: nobody pays for it who has no schema

    try:
        validator = jsonschema_rs.validator_for(
            value,
            retriever=_fetch_nothing,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES, dfa_size_limit=REGEX_BYTES),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaUnusable(f"it is no JSON Schema that can be used: {_first_line(error)}") from None
    return JsonSchema(source, value, validator, weights, patterns)


def depth_of(text: bytes) -> int:
    """Returns the levels of objects and lists in a JSON text; brackets inside of its strings may add to them."""
    steps = map(_STEPS.__getitem__, text.translate(None, _NO_BRACKETS))
    return max(accumulate(steps, initial=0))


_STEPS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"references to other documents are not followed ({uri[:200]})")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _names(value: Any) -> list[str]:
    """Returns every name and every word of the schema: what may be shown of an answer, for its author knows it."""
    names: list[str] = []
    todo = [value]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            names.extend(here)
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)
        elif isinstance(here, str):
            names.append(here)
    return names
