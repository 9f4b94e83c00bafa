"""`gateway demo --workflow` at full length, for several seeds: ten steps at 99 % make 90 %, and 100 % through the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

STRAIGHT = 0.99**10
SPREAD = 3 * (STRAIGHT * (1 - STRAIGHT) / 400) ** 0.5
"""Three standard deviations of the part of 400 runs that meet no failure."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_steps_and_six_kills(tmp_path: Path, report: Report, seed: int) -> None:
    """Each step is paid once, but for what was in flight when the gateway was killed."""
    command = [sys.executable, "-m", "gateway", "demo", "--workflow", "--json", "--seed", str(seed)]
    ran = subprocess.run(
        [*command, "--chart", str(tmp_path / "workflow.svg")], capture_output=True, text=True, check=False
    )
    figures = json.loads(ran.stdout)
    straight, through = figures["ways"]

    report(f"seed {seed}: {figures}")
    assert (ran.returncode, figures["broken_promises"]) == (0, []), ran.stderr
    assert abs(straight["without_a_failed_step"] / straight["runs"] - STRAIGHT) <= SPREAD
    assert through["without_a_failed_step"] == through["told"]["succeeded"] == through["runs"] == 400
    assert through["provider"]["repaid"] <= through["provider"]["in_flight_at_gateway_kills"] <= 2 * 40
    assert through["provider"]["usd_per_run"] < straight["provider"]["usd_per_run"]
