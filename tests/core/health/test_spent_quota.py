"""A quota that is spent, and comes back: what the operator reads of it."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from gateway.core.errors import GatewayError
from gateway.core.retry.balancing import Retries
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
        "p0: its quota is spent; tried again in 1800 s",
        "p0: its quota is back",
    ]
