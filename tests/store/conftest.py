"""The stores that the conformance suite runs on: a new one on every call, closed when the test is over."""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.ports import Store
from gateway.core.types import StoreBounds
from tests.store.conformance import MakeStore, Wall
from tests.store.redis_servers import RedisCluster, RedisServer
from tests.store.redis_support import Lender, lender
from tests.store.sqlite_support import connect_hastily

Wallclock = Callable[[], float]
Maker = Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[MakeStore]]


@asynccontextmanager
async def _memory(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[MakeStore]:
    # one implementation that is broken leaves the others' tests be
    from gateway.drivers.memory_store import MemoryStore

    yield MemoryStore


@asynccontextmanager
async def _sqlite(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[MakeStore]:
    from gateway.drivers.sqlite_store.store import SqliteStore  # as above

    made = 0

    def make(bounds: StoreBounds, wall: Wallclock) -> Store:
        nonlocal made
        made += 1
        return SqliteStore(str(folder / f"state-{made}.db"), wall, bounds, connect=connect_hastily)

    yield make


@asynccontextmanager
async def _redis(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[MakeStore]:
    async with lender(request.getfixturevalue("redis_url")) as lends:
        yield lends.make


@asynccontextmanager
async def _redis_cluster(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[MakeStore]:
    async with lender(request.getfixturevalue("redis_cluster_url")) as lends:
        yield lends.make


MAKERS: dict[str, Maker] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "redis cluster": _redis_cluster,
}
"""Each store by name; `folder` is new and empty, for one that keeps files."""


@pytest.fixture(scope="session")
def redis_url(_redis_process: RedisServer) -> str:
    """The server of this process, which every store has a namespace of its own on."""
    return _redis_process.url


@pytest.fixture(scope="session")
def redis_cluster_url(_cluster_processes: RedisCluster) -> str:
    """The three servers of this process, alike."""
    return _cluster_processes.url


@pytest.fixture
async def lends(redis_url: str) -> AsyncIterator[Lender]:
    """Makes stores that share one server."""
    async with lender(redis_url) as lends:
        yield lends


@pytest.fixture
def wall() -> Wall:
    return Wall()


LASTING = [name for name in MAKERS if name != "memory"]
"""Those that keep more than this process's memory does."""


@pytest.fixture(params=MAKERS)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """Makes stores of one implementation."""
    async for make in _makes(request, tmp_path):
        yield make


@pytest.fixture(params=LASTING)
async def make_lasting_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """As `make_store`, of those that outlive the process."""
    async for make in _makes(request, tmp_path):
        yield make


async def _makes(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[MakeStore]:
    made: list[Store] = []
    async with MAKERS[request.param](request, folder) as make_one:

        def make(bounds: StoreBounds, wall: Wallclock) -> Store:
            made.append(make_one(bounds, wall))
            return made[-1]

        yield make
        for store in made:
            await store.aclose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, where we may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=2m") != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    assert libc.umount2(bytes(folder), 2) == 0
