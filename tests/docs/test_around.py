"""The products around the calls of documented configs: which, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.around import products_around
from tests.docs.around import FROZEN, all_orders
from tests.e2e.conftest import StartGateway, _no_traceback, _shared_process, pytest_asyncio_loop_factories, start
from tests.e2e.durable import with_jobs

__all__ = ["_no_traceback", "_shared_process", "pytest_asyncio_loop_factories", "start"]


def test_the_order_around_calls_of_documented_configs_stays() -> None:
    """A call is served differently where it changes: `python -m tests.docs.around` writes it down again."""
    assert all_orders() == json.loads(FROZEN.read_text())


def test_documented_configs_have_products_of_all_kinds() -> None:
    """Else the order of some is frozen nowhere."""
    shown = FROZEN.read_text()

    for name in ("reuse", "degrade", "output", "workflows", "objects", "jobs", "responses", "steps", "sdk_retries"):
        assert name in shown, name


@pytest.mark.parametrize("jobs", [None, "off"])
async def test_explained_are_the_products_of_a_gateway_that_runs(
    start: StartGateway, tmp_path: Path, jobs: str | None
) -> None:
    """In its order, with the headers by which its calls ask for them."""
    gateway = (await start(with_jobs(tmp_path, jobs=jobs, keys=None))).gateway

    explained = products_around(gateway.policy)

    installed = gateway._pipeline.products
    assert [(one.name, one.options) for one in explained] == [(one.name, one.options) for one in installed]
