"""A quota that is spent, and comes back: what the operator reads of it."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from gateway.admin.views import spent_quotas
from gateway.core.balancing import Retries
from gateway.core.errors import GatewayError
from tests.support.flow import Bench, ScriptedUpstream, streamed, whole

SPENT = whole(b'{"error":{"message":"no credit","code":"insufficient_quota"}}', 429)
GOOD = streamed(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_spent_quota_is_logged_when_it_is_found_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    """Once each, however many calls find it so."""
    bench = Bench([ScriptedUpstream(SPENT, SPENT, *[GOOD if stream else whole()] * 2)], retries=Retries())

    with caplog.at_level(logging.WARNING, "gateway.health"):
        for _ in range(4):
            with suppress(GatewayError):
                await bench.serve(stream=stream)
            bench.clock.advance(3600.0)

    assert [line.getMessage() for line in caplog.records] == [
        "p0: its quota is spent; tried again in 1800 s, or at once after 'gateway targets close p0'",
        "p0: its quota is back",
    ]


async def test_a_gauge_is_1_until_a_call_is_served_there() -> None:
    """Also while its reset has passed and nobody has tried; of all targets that the account pays for."""
    bench = Bench(
        [ScriptedUpstream(SPENT, whole()), ScriptedUpstream(whole())], accounts=["p0", "p0"], retries=Retries()
    )
    gauge: list[dict[str, bool]] = []
    for _ in range(2):
        gauge.append(spent(bench))
        await bench.serve()
        gauge.append(spent(bench))
        bench.clock.advance(3600.0)

    before, found, later, back = gauge
    assert before == back == {"p0/m": False, "p1/m": False}
    assert found == later == {"p0/m": True, "p1/m": True}


@pytest.mark.parametrize("name", ["p0/m", "p0"])
async def test_closing_by_hand_ends_it(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """If it is spent all the same, that is logged again."""
    bench = Bench([ScriptedUpstream(SPENT, SPENT)], retries=Retries())

    with caplog.at_level(logging.WARNING, "gateway.health"):
        await bench.serve()
        bench.admission.health.force(name, "closed")
        assert spent(bench) == {"p0/m": False}
        await bench.serve()

    assert spent(bench) == {"p0/m": True}
    assert [line.getMessage() for line in caplog.records if "quota" in line.getMessage()] == [
        "p0: its quota is spent; tried again in 1800 s, or at once after 'gateway targets close p0'"
    ] * 2


def spent(bench: Bench) -> dict[str, bool]:
    return dict(spent_quotas(bench.admission, bench.clock.now))
