"""Tables of tests: many rows that prove one rule, in one test.

A test of its own costs a row several milliseconds, and a gateway where one is a fixture; for a table of spellings that is
more than the proof. Where rows could disturb each other, each takes a test: `pytest.mark.parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from _pytest.mark import ParameterSet


def rows(
    names: str | Sequence[str], table: Iterable[Any], ids: Callable[[Any], Any] | Iterable[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `pytest.mark.parametrize`, but the decorated test runs once, for one row after the other, to the last.

    All rows share the fixtures, but for `tmp_path`: each has a folder of its own in it. Every row that fails is named: one
    in a note on its error, several in an exception group.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    arguments = [_values(row, len(parameters)) for row in table]
    labels = list(_labels(arguments, ids))
    calls = [(label, dict(zip(parameters, row, strict=True))) for label, row in zip(labels, arguments, strict=True)]
    assert calls, "a table without rows proves nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def one_after_the_other(**fixtures: Any) -> None:
            failures = []
            for label, row in calls:
                try:
                    test(**row, **_of_its_own(fixtures))
                except Exception as error:  # noqa: BLE001 - raised again, with the row's name, when all have run
                    failures.append(_named(error, label))
            _raise(failures)

        @functools.wraps(test)
        async def one_after_the_other_async(**fixtures: Any) -> None:
            failures = []
            for label, row in calls:
                try:
                    await test(**row, **_of_its_own(fixtures))
                except Exception as error:  # noqa: BLE001 - raised again, with the row's name, when all have run
                    failures.append(_named(error, label))
            _raise(failures)

        run: Any = one_after_the_other_async if inspect.iscoroutinefunction(test) else one_after_the_other
        signature = inspect.signature(test)
        rest = [each for name, each in signature.parameters.items() if name not in parameters]
        assert len(rest) == len(signature.parameters) - len(parameters), (
            f"{test.__name__} takes {', '.join(parameters)}"
        )
        run.__signature__ = signature.replace(parameters=rest)
        decorated: Callable[..., Any] = run
        return decorated

    return decorate


def _of_its_own(fixtures: dict[str, Any]) -> dict[str, Any]:
    if "tmp_path" not in fixtures:
        return fixtures
    return {**fixtures, "tmp_path": Path(mkdtemp(dir=fixtures["tmp_path"]))}


def _values(row: Any, count: int) -> tuple[Any, ...]:
    if isinstance(row, ParameterSet):  # `pytest.param(…)`
        return tuple(row.values)
    return (row,) if count == 1 else tuple(row)


def _labels(arguments: Sequence[tuple[Any, ...]], ids: Callable[[Any], Any] | Iterable[str] | None) -> Iterator[str]:
    if ids is None:
        yield from (", ".join(f"{value!r:.200}" for value in row) for row in arguments)
    elif callable(ids):
        yield from (", ".join(str(ids(value)) for value in row) for row in arguments)
    else:
        yield from ids


def _named(error: Exception, label: str) -> Exception:
    error.add_note(f"in the row {label}")
    return error


def _raise(failures: list[Exception]) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} rows fail", failures)
