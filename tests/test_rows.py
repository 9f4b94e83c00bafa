"""A table in one test leaves no row out, and names those that fail."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from tests.rows import rows


def test_every_row_is_run_with_the_fixtures_of_the_test() -> None:
    """Tables on top of each other make every combination; what is no row's is left to pytest."""
    seen = []

    @rows(("a", "b"), [(1, 2), (3, 4)])
    @rows("c", ["x", "y"])
    def table(a: int, b: int, c: str, t: str) -> None:
        seen.append((a, b, c, t))

    assert list(inspect.signature(table).parameters) == ["t"]
    table(t="t")
    assert seen == [(1, 2, "x", "t"), (1, 2, "y", "t"), (3, 4, "x", "t"), (3, 4, "y", "t")]


def test_no_row_finds_the_files_of_another(tmp_path: Path) -> None:
    """Each has an empty folder, which is below that of the test."""
    folders = set()

    @rows("n", [1, 2, 3])
    def table(n: int, tmp_path: Path) -> None:
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").write_text("left")
        folders.add(tmp_path)

    table(tmp_path=tmp_path)
    assert {folder.parent for folder in folders} == {tmp_path}
    assert len(folders) == 3


def test_a_row_that_fails_is_named_and_stops_no_other() -> None:
    """One alone keeps its type; several come together."""
    seen = []

    @rows("n", [1, 2, 3], ids=["one", "two", "three"])
    def one(n: int) -> None:
        seen.append(n)
        assert n != 2

    @rows("n", [1, 2, 3])
    def two(n: int) -> None:
        assert n == 2

    with pytest.raises(AssertionError) as caught:
        one()
    assert (seen, caught.value.__notes__) == ([1, 2, 3], ["in the row two"])
    with pytest.raises(ExceptionGroup) as several:
        two()
    assert [error.__notes__ for error in several.value.exceptions] == [["in the row 1"], ["in the row 3"]]


def test_tests_that_wait_may_have_tables() -> None:
    """The same for coroutines."""
    seen = []

    @rows("n", [1, 2], ids=str)
    async def table(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    asyncio.run(table())
    assert seen == [1, 2]


def test_a_table_fits_its_test() -> None:
    """No row, or a name that the test does not take, is a mistake."""
    with pytest.raises(AssertionError, match="without rows"):
        rows("n", [])
    with pytest.raises(AssertionError, match="takes n"):
        rows("n", [1])(lambda m: None)
