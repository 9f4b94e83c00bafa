"""Several gateways and one Redis, all of them processes: limits that are kept together, whatever becomes of Redis or of one.

The runs are those of `tests/replicas`, in short; there they are minutes long, and their numbers are printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.support import tool
from tests.replicas.keys import spend_key
from tests.replicas.outage import Way, lose
from tests.replicas.rolling import roll
from tests.replicas.sharing import requests_of, share


async def test_replicas_share_a_limit_fairly(tmp_path: Path) -> None:
    """Three of them at 3x the limit, with clocks 10 s apart: all of the limit and no more, and no 429 of the provider."""
    one = await share(tmp_path, 3, requests_of(1200, burst=20), 2.0, drain_s=0.5, deadline_s=0.5)

    assert one.failed == ()
    assert abs(one.admitted - one.expected) <= 3
    assert one.overshoot <= 1.0
    assert one.unfairness <= 0.3


@pytest.mark.parametrize("way", ["stopped", "hung"])
async def test_calls_go_on_without_redis(tmp_path: Path, way: Way) -> None:
    """It goes and comes back under load: every call is answered, and the limit is kept."""
    one = await lose(tmp_path, way, 2, 60.0, 90.0, 1.0, 0.4, settle_s=0.4)

    assert one.failed == {}
    assert one.served == (1.0, 1.0, 1.0)
    assert one.overshoot == 0.0


async def test_a_key_has_one_limit_at_all_replicas(tmp_path: Path) -> None:
    """A minute's worth in all, wherever it is used; who comes back when told is served, at another replica, too."""
    one = await spend_key(tmp_path, 2, 120.0, 0.5, drain_s=0.5)

    assert one.failed == ()
    assert abs(one.admitted - one.expected) <= 3
    assert one.overshoot <= 1.0
    assert one.without_hint == 0
    assert one.on_time == ("ok", "ok")


@pytest.mark.skipif(tool("haproxy") is None, reason="needs HAProxy")
async def test_a_rolling_restart_shows_neither_to_clients_nor_to_the_provider(tmp_path: Path) -> None:
    """Both replicas, one after the other, behind HAProxy and at twice the limit."""
    one = await roll(tmp_path, 2, 1, 20.0, drain_s=1.0, notice_ms=900)

    assert one.failed == 0
    assert one.exits == {"0": 2}
    assert one.overshoot <= 1.0
