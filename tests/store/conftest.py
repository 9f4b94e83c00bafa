"""The stores that the conformance suite runs on: a new one on every call, closed when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.ports import Store, StoreBounds
from tests.store.conformance import MakeStore, Wall
from tests.store.sqlite_support import connect_hastily

Wallclock = Callable[[], float]
Maker = Callable[[StoreBounds, Wallclock, Path], Store]


def _memory(bounds: StoreBounds, wall: Wallclock, folder: Path) -> Store:
    from gateway.store.memory import MemoryStore  # one implementation that is broken leaves the others' tests be

    return MemoryStore(bounds, wall)


def _sqlite(bounds: StoreBounds, wall: Wallclock, folder: Path) -> Store:
    from gateway.store.sqlite import SqliteStore  # as above

    return SqliteStore(str(folder / "state.db"), wall, bounds, connect=connect_hastily)


MAKERS: dict[str, Maker] = {"memory": _memory, "sqlite": _sqlite}
"""Each store by name; `folder` is new and empty, for one that keeps files."""


@pytest.fixture
def wall() -> Wall:
    return Wall()


LASTING = [name for name in MAKERS if name != "memory"]
"""Those that keep more than this process's memory does."""


@pytest.fixture(params=MAKERS)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """Makes stores of one implementation."""
    async for make in _makes(request.param, tmp_path):
        yield make


@pytest.fixture(params=LASTING)
async def make_lasting_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """As `make_store`, of those that outlive the process."""
    async for make in _makes(request.param, tmp_path):
        yield make


async def _makes(name: str, tmp_path: Path) -> AsyncIterator[MakeStore]:
    made: list[Store] = []

    def make(bounds: StoreBounds, wall: Wallclock) -> Store:
        folder = tmp_path / f"store-{len(made)}"
        folder.mkdir()
        made.append(MAKERS[name](bounds, wall, folder))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()
