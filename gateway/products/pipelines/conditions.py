"""The conditions of branches, in JMESPath: an expression over `input`, `steps` and `item`, which runs no code.

Source: the JMESPath specification; "true" is what is not empty, false or null there. The package is an extra, and is imported
when the first condition is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from gateway.products.pipelines.templates.templates import ROOTS, ConditionJudge, Path, PlanProblem, Scope, StepFilling

NEEDS_EXTRA: Final = "needs packages that are not installed: pip install '.[pipelines]'"
MOST_CHARS: Final = 2_000
_RELATIVE_BEHIND_FIRST: Final = frozenset(
    ("subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe")
)
"""Nodes of which only the first child sees all values; the others see what the first came to."""
_OF_ALL: Final = frozenset(("current", "value_projection"))
"""Nodes that may see all values where they stand first; where else they stand, they are taken to."""
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
    has_all: bool
    """It may look at all values together, such as by `@`."""
    at: Path = field(compare=False)
    """Where it stands in its source."""
    parsed: Any = field(repr=False, compare=False)

    @property
    def names(self) -> frozenset[str]:
        """Returns the steps that it refers to."""
        return frozenset(path[1] for path in self.steps)

    def holds(self, scope: Scope, filling: StepFilling) -> bool:
        """Tells whether it is true of these values; one that says nothing of an item is judged once for all of them.

        Raises ConditionFailed, TooMuchWork.
        """
        verdict = filling.verdicts.get(self)
        if verdict is None:
            verdict = self._judged(scope, filling.judge)
            if not self._may_see_item:
                filling.verdicts[self] = verdict
        if isinstance(verdict, str):
            raise ConditionFailed(f"`when` cannot be judged: {verdict}")
        return verdict

    def _judged(self, scope: Scope, judge: ConditionJudge) -> bool | str:
        """Returns whether it is true, or the name of what was raised instead. Raises TooMuchWork."""
        values = {"input": scope.input, "steps": scope.steps, "item": scope.item}
        try:
            found = judge.visit(self.parsed.parsed, values)
        except (import_module("jmespath.exceptions").JMESPathError, *_UNFIT) as error:
            return type(error).__name__
        return found is not None and found is not False and found not in ("", [], {})

    @property
    def _may_see_item(self) -> bool:
        """Tells whether it may come to something else for another item: by its name, or with all that there is."""
        return self.has_item or self.has_all


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
        reason = " ".join(str(error).split())[:200]
        problems.append(PlanProblem(path, f"is not valid JMESPath: {reason}"))
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
    has_all = any(node["type"] in _OF_ALL for node in _nodes(parsed.parsed))
    return Condition(source, tuple(steps), has_item, has_all, path, parsed)


def _functions(node: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the functions that are called."""
    return (one["value"] for one in _nodes(node) if one["type"] == "function_expression")


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields all parts of an expression."""
    yield node
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _nodes(child)


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
