"""Products with defects, in a gateway that runs: its clients get an answer, and its connections can be used again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway import product_list
from gateway.core.call import Call, CallFeature, CallRoute, Headers
from gateway.features.product import Product
from gateway.product_list import ProductLine
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import chat, connect, post


class Unread(Product):
    """Its hooks for requests and headers fail."""

    name = "unread"
    reads = True

    def for_route(self, route: CallRoute, asked: frozenset[bytes]) -> CallFeature:
        return self

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        if self.reads:
            raise ValueError("read")

    def headers(self, call: Call, headers: Headers) -> None:
        raise ValueError("headers")


class Unshown(Unread):
    """Its hook for headers fails."""

    name = "unshown"
    reads = False


@pytest.mark.parametrize(
    ("product", "fault", "statuses"),
    [(Unread, "ok", [500, 500]), (Unshown, "ok", [200, 200]), (Unshown, "quota", [429, 503])],
)
async def test_whoever_calls_past_a_defect_gets_an_answer(
    start: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    product: type[Product],
    fault: str,
    statuses: list[int],
) -> None:
    """Twice on one connection: nothing of the first call is left there."""
    monkeypatch.setattr(product_list, "PRODUCTS", (*product_list.PRODUCTS, ProductLine.of(product)))
    gateway = await start()
    gateway.script(fault, fault)

    async with connect(gateway.url) as peer:
        answers = [await peer.exchange(post("/v1/chat/completions", chat())) for _ in range(2)]

    assert [answer.status for answer in answers] == statuses
    assert all(answer.header("x-request-id") for answer in answers)
    failed = [record for record in caplog.records if record.exc_info is not None]
    assert len(failed) >= 2  # an operator finds each in the log
    caplog.clear()
