"""A gigabyte of answers: what the process takes, and how long a look-up and a replacement last, whatever came before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.soak.conftest import Report

GIB = 1024 * 1024 * 1024
PHASES = 6

pytestmark = pytest.mark.soak


def test_a_gigabyte_of_answers_takes_a_gigabyte(report: Report) -> None:
    """Resident memory stays below 130 % of the bound, and above two thirds, while ever other sizes replace each other."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.drivers.churn", str(GIB), str(PHASES)], capture_output=True, check=True, text=True
    )
    phases = [json.loads(line) for line in ran.stdout.splitlines()]

    report("\n".join(map(json.dumps, phases)))

    assert len(phases) == PHASES
    for found in phases:
        assert found["stated"] <= 1.0
        assert 0.66 <= found["resident"] <= 1.3, found
