"""What a JMESPath expression comes to, with its work counted: it may look at each value of an input, once for each item.

The package walks an expression by a visitor, which is told here to say what it is about to do. What a function does at once
keeps the interpreter's lock, in a thread too, so that it has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from gateway.products.pipelines.templates.splitting import A_VALUE, TooMuchWork, Work

MOST_AT_ONCE: Final = 20_000_000
"""Of one function, in characters that are copied: some tens of milliseconds."""
_A_VISIT: Final = 600
"""What a part of an expression is taken for that is looked at, and a value that is written as JSON: one or two microseconds."""
_A_COMPARISON: Final = 64
"""What a comparison is taken for by which a list is sorted."""
_MADE_LISTS: Final = ("flatten", "slice")


class ConditionJudge:
    """Evaluates expressions at the expense of one step's work."""

    def __init__(self, work: Work) -> None:
        visitor: Any = import_module("jmespath.visitor")  # an extra: it is here, since a condition was read
        functions: Any = import_module("jmespath.functions")
        self._work = work
        self._functions = functions.Functions()
        tree = visitor.TreeInterpreter(visitor.Options(custom_functions=self))
        self._visit: Callable[..., Any] = tree.visit
        compare: Mapping[str, Callable[[Any, Any], Any]] = tree.COMPARATOR_FUNC
        tree.COMPARATOR_FUNC = {name: self._counted(one) for name, one in compare.items()}
        tree.visit = self.visit  # by which the tree goes on, too

    def visit(self, node: Mapping[str, Any], value: Any) -> Any:
        """Returns what a part of an expression comes to. Raises TooMuchWork, and what the package raises."""
        self._work.take(_A_VISIT)
        found = self._visit(node, value)
        if node["type"] in _MADE_LISTS and isinstance(found, list):
            self._work.take_values(len(found))
        return found

    def call_function(self, name: str, given: list[Any]) -> Any:
        """Returns what a function comes to, as the package calls it. Raises as `visit` does."""
        for value in given:
            if isinstance(value, str):
                self._take(len(value))
            elif isinstance(value, list | dict):
                self._take_values(len(value))
        if name in ("sort", "sort_by") and given and isinstance(given[0], list):
            self._take(_A_COMPARISON * len(given[0]) * len(given[0]).bit_length())
        elif name in ("to_string", "join"):
            self._take(sum(self._deep(value) for value in given))
        elif name == "contains" and len(given) == 2 and isinstance(given[0], list):
            self._take(len(given[0]) * self._compared(given[1]))
        return self._functions.call_function(name, given)

    def _counted(self, compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def counted(one: Any, other: Any) -> Any:
            if type(one) is type(other):
                self._take(self._compared(one))
            return compare(one, other)

        return counted

    def _compared(self, value: Any) -> int:
        """Returns what it is to compare a value with one like it."""
        if isinstance(value, str):
            return len(value)
        return self._deep(value) if isinstance(value, list | dict) else 0

    def _deep(self, value: Any) -> int:
        """Returns what it is to go through all of a value, which it does, and counts. Raises TooMuchWork."""
        todo, size = [value], 0
        while todo:
            one = todo.pop()
            step = _A_VISIT + (len(one) if isinstance(one, str) else 0)
            size += step
            self._work.take(step)
            if isinstance(one, dict):
                todo.extend(one.values())
            elif isinstance(one, list):
                todo.extend(one)
            if size > MOST_AT_ONCE:
                raise TooMuchWork(MOST_AT_ONCE)
        return size

    def _take_values(self, values: int) -> None:
        self._work.take_values(values)
        if values * A_VALUE > MOST_AT_ONCE:
            raise TooMuchWork(MOST_AT_ONCE)

    def _take(self, chars: int) -> None:
        self._work.take(chars)
        if chars > MOST_AT_ONCE:
            raise TooMuchWork(MOST_AT_ONCE)
