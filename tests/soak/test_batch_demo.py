"""`gateway demo --batch` at full length, for several seeds: what it promises is so, and it is done within the minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

LONGEST = 1.35
"""The time against the ideal, two starts of a gateway included; it is what the demo takes on a machine with two cores."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_thousand_lines_and_two_kills(tmp_path: Path, report: Report, seed: int) -> None:
    """Every line has one result; paid twice is at most what was in flight."""
    command = [sys.executable, "-m", "gateway", "demo", "--batch", "--json", "--seed", str(seed)]
    ran = subprocess.run(
        [*command, "--chart", str(tmp_path / "batch.svg")], capture_output=True, text=True, check=False
    )
    figures = json.loads(ran.stdout)

    report(f"seed {seed}: {figures}")
    assert (ran.returncode, figures["broken_promises"]) == (0, []), ran.stderr
    assert (figures["lines"], figures["answered"], figures["results_twice"]) == (2000, 2000, 0)
    assert figures["paid_twice"] <= figures["in_flight_at_kills"]
    assert figures["duration_s"] <= LONGEST * figures["ideal_s"]
