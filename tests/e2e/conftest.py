"""Gateways that stop with their test, on the loop that production runs on, with nothing left behind in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from starlette.routing import compile_path

from gateway.core.config.error_tables import ErrorTables
from gateway.core.error_tables import ErrorRule
from gateway.core.waiting import LoopLag
from tests.e2e.harness import Running, start_gateway

READ_BUILT_IN = ErrorTables._read_built_in
_compiled = cache(compile_path)
StartGateway = Callable[..., Awaitable[Running]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartGateway]:
    """Starts gateways that are stopped at the end of the test, and may be stopped before."""
    running: list[Running] = []

    async def start_one(*args: Any, **options: Any) -> Running:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        running.append(await start_gateway(folder, *args, **options))
        return running[-1]

    yield start_one
    for one in running:
        await one.stop()


@pytest.fixture
async def gateway(start: StartGateway) -> Running:
    """A gateway without keys in front of an emulator."""
    return await start()


@pytest.fixture(autouse=True)
def _shared_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares each of a process's many gateways what one that has a process to itself does once.

    It does not set up the collector: what it freezes of other tests would never be freed. It finds the built-in error
    tables read, whose text does not change, and the patterns of its routes compiled. Its loop is never late: on a busy machine
    the tests themselves would have load shed.
    """
    monkeypatch.setattr(LoopLag, "take", lambda _: (0.0, 0.0))
    monkeypatch.setattr("gateway.app.gc", SimpleNamespace(collect=int, freeze=int, set_threshold=lambda *_: None))
    monkeypatch.setattr(ErrorTables, "_read_built_in", _built_in)
    monkeypatch.setattr("starlette.routing.compile_path", _compiled)


@cache
def _built_in_of(folder: Path, name: str) -> tuple[ErrorRule, ...]:
    return READ_BUILT_IN(ErrorTables({}, (), folder), name)


def _built_in(tables: ErrorTables, name: str) -> tuple[ErrorRule, ...]:
    return _built_in_of(tables._folder, name)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """`serve` directs the log of the process to its standard error, which ends with the test."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test does to the gateway, no defect may show in its log; a test that makes one clears it."""
    caplog.set_level(logging.INFO)
    yield
    for phase in ("setup", "call"):
        for record in caplog.get_records(phase):
            assert record.exc_info is None, record.getMessage()
            assert not record.name.startswith("asyncio"), record.getMessage()
