"""The example of docs/how-to-write-a-product.md: installed by one line, it is configured, called, counted and seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway import app, around, housekeeping, product_list
from gateway.admin.explain import explain
from gateway.core.errors import ConfigError
from gateway.product_list import ProductLine
from gateway.sections import SECTIONS, section_of
from tests.docs import stamp
from tests.docs.support import PAGES, fenced
from tests.e2e.conftest import StartGateway, _no_traceback, _shared_process, pytest_asyncio_loop_factories, start
from tests.e2e.harness import ADMIN_KEY, Response, Running, chat, config_of, connect, get, post

__all__ = ["_no_traceback", "_shared_process", "pytest_asyncio_loop_factories", "start"]
MOST_LINES = 80


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the processes of a test list the product, as a line in `product_list.py` has it in all."""
    line = ProductLine.of(stamp.Stamps)
    monkeypatch.setattr(product_list, "PRODUCTS", (*product_list.PRODUCTS, line))
    for reader in (app, housekeeping):
        monkeypatch.setattr(reader, "SECTIONS", (*SECTIONS, section_of(line)))


def stamped(text: str) -> Any:
    """Makes configs in which one of two models has a stamp."""

    def config(url: str) -> dict[str, Any]:
        models = {"gpt-4o": {"targets": ["main/gpt-4o"], "stamp": text}, "plain": {"targets": ["main/gpt-4o"]}}
        return config_of(url, models=models, admin={"key": ADMIN_KEY})

    return config


async def fetch(gateway: Running, request: bytes) -> Response:
    async with connect(gateway.url) as peer:
        return await peer.exchange(request)


def test_the_page_shows_the_example_as_it_is() -> None:
    """What a newcomer copies is what is tested."""
    source = Path(stamp.__file__).read_text()

    assert source in fenced(PAGES["docs/how-to-write-a-product.md"], "python")
    assert len(source.splitlines()) <= MOST_LINES


@pytest.mark.usefixtures("_installed")
async def test_the_example_is_installed_by_one_line(start: StartGateway) -> None:
    """Its header, its field in the call log, its metric, its setting and its view are there; other models go without."""
    gateway = await start(stamped("Batch 7"))

    answers = [await fetch(gateway, post("/v1/chat/completions", chat(model))) for model in ("gpt-4o", "plain")]

    assert [(one.status, one.header("x-stamp")) for one in answers] == [(200, "Batch 7"), (200, None)]
    admin = f"authorization: Bearer {ADMIN_KEY}"
    seen = json.loads((await fetch(gateway, get("/admin/stamps", admin))).body)
    assert seen == {"stamped": [{"model": "gpt-4o", "outcome": "ok", "calls": 1}]}
    assert (await fetch(gateway, get("/admin/stamps"))).status == 401
    metrics = (await fetch(gateway, get("/metrics", admin))).body
    assert b'gateway_stamped_calls_total{model="gpt-4o",outcome="ok"} 1.0' in metrics
    models = json.loads((await fetch(gateway, get("/admin/config", admin))).body)["in_force"]["models"]
    assert [models[name]["stamp"] for name in ("gpt-4o", "plain")] == ["Batch 7", ""]
    policy = gateway.gateway.policy
    told = explain(
        policy,
        b'{"model":"gpt-4o"}',
        path="/v1/chat/completions",
        key_name=None,
        products=around.products_around(policy),
    )
    assert "around    a call: reuse -> stamp\n" in told
    await gateway.stop()
    assert [record.get("stamp") for record in gateway.records if record.get("model")] == ["Batch 7", None]


@pytest.mark.usefixtures("_installed")
async def test_a_wrong_setting_of_the_example_is_a_problem_of_its_line(start: StartGateway) -> None:
    """The gateway does not start with it."""
    with pytest.raises(ConfigError, match=r"models\.gpt-4o\.stamp: must be letters"):
        await start(stamped("no;\r\nway"))


async def test_without_its_line_the_example_is_not_there(start: StartGateway) -> None:
    """Its setting is a field that nobody knows."""
    with pytest.raises(ConfigError, match=r"models\.gpt-4o\.stamp: unknown field"):
        await start(stamped("Batch 7"))
