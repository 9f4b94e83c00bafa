"""One JSON Schema, compiled once, and what it says of an answer's text.

The validator is the Rust library behind the package `jsonschema-rs` (the extra `output`), imported when the first schema is
compiled. Nothing is fetched: a reference to another document makes a schema unusable. Patterns run in linear time. The
library holds Python's lock while it works, so that a thread would not help: texts of more than INLINE_BYTES, and schemas that
may take long over them, are `dear`, and checked by a process of their own.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final, NoReturn

import orjson

from gateway.features.output.schema.patterns import PatternWeight
from gateway.features.output.schema.weight import TooEntangled, Weights

NOT_INSTALLED: Final = (
    "schemas for answers need the Python package jsonschema-rs, which is not installed (the extra output: "
    "pip install '.[output]')"
)
MOST_BYTES: Final = 65_536
"""Of one schema."""
MOST_DEPTH: Final = 100
"""The levels of one schema."""
MOST_PATH: Final = 200
"""Characters of a place that are told: it goes into log lines, and a caller's schema may have long names."""
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


class OutputSchema:
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
            self._validator.validate(
                value
            )  # `iter_errors` makes all errors at once, each with a copy of what it is about
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


def compile_schema(source: bytes) -> OutputSchema:
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
    return OutputSchema(source, value, validator, weights, patterns)


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
