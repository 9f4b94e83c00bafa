"""A million waiting jobs: what the file and the process take, how long a start and a claim last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.conftest import Report

JOBS, CLAIMS = 1_000_000, 1_000
MIB = 1024 * 1024
FILE_BYTES, RESIDENT_BYTES, LOG_BYTES = 1_700_000_000, 32 * MIB, 64 * MIB
START_S, CLAIM_S = 2.0, 0.005

pytestmark = pytest.mark.soak


def test_a_million_waiting_jobs(report: Report, tmp_path: Path) -> None:
    """1.7 GB of file, 32 MiB of memory, 2 s to start, 5 ms for all but one claim in a hundred."""
    command = [sys.executable, "-m", "tests.products.jobs.crowd", str(tmp_path), str(JOBS), str(CLAIMS)]
    ran = subprocess.run(command, capture_output=True, check=True, text=True)
    report(ran.stdout)
    phases = {found["phase"]: found for found in map(json.loads, ran.stdout.splitlines())}

    assert phases["opened"]["ready"] == JOBS
    assert phases["closed"]["file_bytes"] <= FILE_BYTES
    assert phases["filled"]["log_bytes"] <= LOG_BYTES
    assert max(phases[name]["resident"] for name in ("filled", "claimed")) <= RESIDENT_BYTES
    assert max(phases[name]["seconds"] for name in ("opened", "opened again")) <= START_S
    assert phases["claim one"]["p99"] <= CLAIM_S
