"""What all tests share: real servers, started once per test process and empty at the start of each test; how the garbage
collector runs; how many examples a property test looks at."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.shared_compiling import compile_in_turn
from tests.support.redis_servers import RedisCluster, RedisServer, redis_cluster, redis_server

# Each run of the suite looks at the same few examples: a change is refused for what it did, not for what chance found in
# what it never touched. To find that is the work of `make soak`, which looks at other, and at more, examples each time.
settings.register_profile(
    "fast", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)  # "too slow" is a clock of the machine
settings.register_profile("full", max_examples=500, deadline=None)
settings.load_profile("fast")
SOAKS = Path(__file__).parent / "soak"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no soak is to run, what is nothing else is not even imported."""
    return True if collection_path == SOAKS and config.option.markexpr == "not soak" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the collector of garbage: nearly all that it would look at, again and again, lives to the end."""
    gc.disable()
    try:
        compile_in_turn(session.config.args, spared=SOAKS if session.config.option.markexpr == "not soak" else None)
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the collector away from what collecting made, half a million objects, nearly all of which live to the end."""
    gc.freeze()
    gc.set_threshold(25_000, 20, 50)  # as the gateway runs


@pytest.fixture(scope="session")
def _redis_process() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def _cluster_processes() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        for node in cluster.nodes:  # on a busy machine none is to be taken for dead that waits for its turn
            node.do("CONFIG", "SET", "cluster-node-timeout", 15000)
        yield cluster


@pytest.fixture
def a_redis(_redis_process: RedisServer) -> RedisServer:
    """One server; a test that stops it or sets its options starts its own with `redis_server()` instead."""
    _redis_process.flush()
    return _redis_process


@pytest.fixture
def a_cluster(_cluster_processes: RedisCluster) -> RedisCluster:
    """Three servers that share the slots; it takes two seconds until a new cluster serves anybody."""
    _cluster_processes.flush()
    return _cluster_processes
