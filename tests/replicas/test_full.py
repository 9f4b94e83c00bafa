"""What many replicas promise, at full length: some fifteen minutes, on an idle machine. `README.md` says how to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.support import tool
from tests.replicas.keys import spend_key
from tests.replicas.outage import WAYS, Way, lose
from tests.replicas.results import keep
from tests.replicas.rolling import roll
from tests.replicas.sharing import Limit, requests_of, share, tokens_of
from tests.replicas.slots import SILENT_S, cap
from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

STEADY = requests_of(900, burst=60)
JERKY = requests_of(900, burst=10)


@pytest.mark.parametrize(
    ("replicas", "limit"),
    [(2, STEADY), (4, STEADY), (8, STEADY), (8, JERKY), (4, tokens_of(600))],
    ids=["2", "4", "8", "8-small-burst", "4-tokens"],
)
async def test_a_shared_limit_is_used_to_the_full_and_kept(
    tmp_path: Path, replicas: int, limit: Limit, report: Report, request: pytest.FixtureRequest
) -> None:
    """At 3x the limit, asked unevenly, with clocks 5 s apart: within 2 % over a minute, 1 % of 429s, fairly shared."""
    one = await share(tmp_path, replicas, limit, 60.0)
    report(keep(f"sharing-{request.node.callspec.id}", one))

    assert one.failed == ()
    assert one.exactness == pytest.approx(1.0, abs=0.02)
    assert one.overshoot <= 1.0
    assert one.refused_percent <= 1.0
    assert one.unfairness <= 0.1


async def test_a_small_limit_is_exact(tmp_path: Path, report: Report) -> None:
    """Six a minute over eight replicas: each call is one of those that the limit lets through, and none is lost."""
    one = await share(tmp_path, 8, requests_of(6, burst=6), 60.0, load=30.0)
    report(keep("sharing-small", one))

    assert one.failed == ()
    assert abs(one.admitted - one.expected) <= 1
    assert one.overshoot == 0.0
    assert one.refused_percent == 0.0


@pytest.mark.parametrize("way", WAYS)
async def test_nobody_waits_for_a_store_that_is_gone(tmp_path: Path, way: Way, report: Report) -> None:
    """Below the limit, 30 s without Redis: every call is answered, and none later than one operation's timeout allows."""
    one = await lose(tmp_path, way, 3, 200.0, 300.0, 30.0, 15.0)
    report(keep(f"outage-{way}-below", one))

    assert one.failed == {}
    assert one.served == (1.0, 1.0, 1.0)
    assert one.added_p99_ms <= 50.0
    assert one.overshoot == 0.0
    assert one.refused_percent <= 1.0


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "takes-all"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_limit_holds_while_the_store_is_gone(tmp_path: Path, way: Way, is_strict: bool, report: Report) -> None:
    """At twice the limit: over it by no more than one replica's share, and no second burst once Redis is back."""
    one = await lose(tmp_path, way, 4, 200.0, 100.0, 30.0, 15.0, is_strict=is_strict)
    report(keep(f"outage-{way}-above-{'strict' if is_strict else 'takes-all'}", one))

    assert one.failed == {}
    assert one.busiest_s_after <= one.limit_per_s + one.share
    if is_strict:  # those it refuses come again, and are counted again
        assert one.refused_percent <= 1.0
    else:
        assert one.overshoot <= one.share


@pytest.mark.skipif(tool("haproxy") is None, reason="needs HAProxy")
async def test_replicas_are_restarted_and_nobody_sees_it(tmp_path: Path, report: Report) -> None:
    """Ten times each, behind HAProxy, at twice the limit: no call fails, and no restart brings a new burst."""
    one = await roll(tmp_path, 3, 10, 20.0)
    report(keep("rolling", one))

    assert one.failed == 0
    assert one.exits == {"0": 30}
    assert one.exactness == pytest.approx(1.0, abs=0.02)
    assert one.overshoot <= 2.0
    assert one.refused_percent <= 1.0


async def test_the_slots_of_a_replica_that_is_killed_come_back(tmp_path: Path, report: Report) -> None:
    """Never more than the cap with the provider; within seconds of a kill -9 all slots are used again."""
    one = await cap(tmp_path, 4, 6, 20.0)
    report(keep("slots", one))

    assert one.failed == {}
    assert one.peak == one.peak_after == one.cap
    assert one.back_after_s is not None
    assert one.back_after_s <= SILENT_S
    assert one.used_after >= 0.9


async def test_a_key_has_one_limit_wherever_it_calls(tmp_path: Path, report: Report) -> None:
    """Over three replicas at 3x its limit: exact within 2 %, and whoever comes back when told is served."""
    one = await spend_key(tmp_path, 3, 120.0, 60.0)
    report(keep("keys", one))

    assert one.failed == ()
    assert one.exactness == pytest.approx(1.0, abs=0.02)
    assert one.overshoot <= 1.0
    assert one.without_hint == 0
    assert one.on_time == ("ok",) * 3
    assert max(one.told_s) <= 3 * 60 / one.per_min  # as if the others still wanted some
