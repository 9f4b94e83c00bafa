"""The conditions of branches, in JMESPath: an expression over `input`, `steps` and `item`, which runs no code.

Source: the JMESPath specification; "true" is what is not empty, false or null there. The package is an extra, and is imported
when the first condition is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from gateway.policy.pipelines.problems import Path, PlanProblem
from gateway.policy.pipelines.values.templates import ROOTS, Scope

NEEDS_EXTRA: Final = "needs packages that are not installed: pip install '.[pipelines]'"
MOST_CHARS: Final = 2_000
_RELATIVE_BEHIND_FIRST: Final = frozenset(
    ("subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe")
)
"""Nodes of which only the first child sees all values; the others see what the first came to."""
_UNFIT: Final = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What the package lets through where values do not fit, such as a text that is compared with a number."""


class ConditionFailed(Exception):
    """A condition cannot be judged on these values, such as a function that wants a number."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read."""

    source: str
    steps: Sequence[tuple[str, ...]]
    """What it refers to of steps: paths such as ("steps", "language", "text")."""
    has_item: bool
    at: Path = field(compare=False)
    """Where it stands in its source."""
    parsed: Any = field(repr=False, compare=False)

    @property
    def names(self) -> frozenset[str]:
        """Returns the steps that it refers to."""
        return frozenset(path[1] for path in self.steps)

    def holds(self, scope: Scope) -> bool:
        """Tells whether it is true of these values. Raises ConditionFailed."""
        values = {"input": scope.input, "steps": scope.steps, "item": scope.item}
        try:
            found = self.parsed.search(values)
        except (import_module("jmespath.exceptions").JMESPathError, *_UNFIT) as error:
            raise ConditionFailed(f"`when` cannot be judged: {type(error).__name__}") from None
        return found is not None and found is not False and found not in ("", [], {})


def read_condition(source: object, path: Path, problems: list[PlanProblem]) -> Condition | None:
    """Reads a condition; None, with a problem, where it is none."""
    if not isinstance(source, str) or not source.strip():
        problems.append(PlanProblem(path, "must be a JMESPath expression, such as steps.language.text == 'es'"))
        return None
    if len(source) > MOST_CHARS:
        problems.append(PlanProblem(path, f"is longer than {MOST_CHARS} characters"))
        return None
    try:
        jmespath: Any = import_module("jmespath")  # an extra: whoever has no conditions need not have it
    except ImportError:
        problems.append(PlanProblem(path, NEEDS_EXTRA))
        return None
    try:
        parsed = jmespath.compile(source)
    except import_module("jmespath.exceptions").JMESPathError as error:
        told = " ".join(str(error).split())[:200]
        problems.append(PlanProblem(path, f"is not valid JMESPath: {told}"))
        return None
    except RecursionError:
        problems.append(PlanProblem(path, "is nested too deep"))
        return None
    for name in _functions(parsed.parsed):
        known = tuple(import_module("jmespath.functions").Functions.FUNCTION_TABLE)
        if name not in known:
            problems.append(PlanProblem(path, f"unknown function {name}", name, known))
    steps: list[tuple[str, ...]] = []
    has_item = False
    for chain in _chains(parsed.parsed):
        if chain[0] not in ROOTS:
            problems.append(PlanProblem(path, f"unknown value {chain[0]}", chain[0], ROOTS))
        elif chain[0] == "item":
            has_item = True
        elif chain[0] == "steps" and len(chain) < 2:
            problems.append(PlanProblem(path, "`steps` alone is no value: name one, such as steps.NAME.text"))
        elif chain[0] == "steps":
            steps.append(chain)
    return Condition(source, tuple(steps), has_item, path, parsed)


def _functions(node: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the functions that are called."""
    if node["type"] == "function_expression":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _functions(child)


def _chains(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the fields, with those behind them, that are looked up in all values."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield (node["value"],)
    elif kind == "subexpression" and children[0]["type"] == "field":
        names = [children[0]["value"]]
        for child in children[1:]:
            if child["type"] != "field":
                break
            names.append(child["value"])
        yield tuple(names)
    elif kind in _RELATIVE_BEHIND_FIRST:
        yield from _chains(children[0])
    elif kind not in ("expref", "literal", "current", "identity"):
        for child in children:
            yield from _chains(child)
