"""Six crowds in a row: each gets all of the rate, whoever has to find out how many go at once. Some six minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.crowding import crowd_in
from tests.replicas.results import keep
from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

PER_S, CALLERS, SECONDS, RUNS = 20, 120, 20.0, 6


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("tells", [True, False], ids=["headers", "silent"])
async def test_a_crowd_gets_all_of_a_rate_whose_burst_nobody_has_written_down(
    tmp_path: Path, tells: bool, run: int, report: Report
) -> None:
    """90 % of the rate, nobody waits in vain, few are refused."""
    one = await crowd_in(tmp_path, PER_S, CALLERS, SECONDS, tells=tells)
    report(keep(f"crowding-{'headers' if tells else 'silent'}-{run}", one))

    assert set(one.codes) == {"ok"}
    assert one.goodput >= 0.9
    assert one.refused_percent <= 3.0
