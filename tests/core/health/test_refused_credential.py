"""A credential that its provider refuses, and no other target: what the operator reads of it."""

from __future__ import annotations

import logging

import pytest

from gateway.core.balancing import Retries
from tests.support.flow import Bench, ScriptedUpstream, whole

REFUSED = whole(b'{"error":{"message":"no","type":"invalid_request_error","code":"invalid_api_key"}}', 401)


async def test_a_refused_credential_is_logged_once_however_often_it_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each change of its state, none for each call that tries it in vain."""
    bench = Bench([ScriptedUpstream(REFUSED, REFUSED, REFUSED, whole(), REFUSED)], retries=Retries())

    with caplog.at_level(logging.WARNING, "gateway.health"):
        for _ in range(5):
            await bench.serve()

    assert [line.getMessage() for line in caplog.records] == [
        "p0 is open: its credential is refused",
        "p0 is closed: its credential is accepted",
        "p0 is open: its credential is refused",
    ]
