"""The power is cut a thousand times under the jobs file: what was told to be kept is there when it is opened again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.products.jobs.power_cuts import STRACE, moments
from tests.products.jobs.telling import check_told
from tests.soak.conftest import Report

CUTS = int(os.environ.get("CUTS", "1000"))
TOLD_LINES = 3000
PIPE = "1"

pytestmark = pytest.mark.soak


def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, report: Report) -> None:
    """Cuts at random ones of all moments between a write, its sync and what the caller was told of it."""
    assert shutil.which("strace"), "this sweep needs strace: apt-get install strace"
    draw = random.Random(int(os.environ.get("SEED", "1")))
    trace, path = tmp_path / "trace", tmp_path / "jobs.db"
    record(trace, path)
    number = sum(1 for _ in moments(trace, str(path), PIPE))
    cut_at = set(draw.sample(range(number), min(CUTS, number)))

    for moment, (disk, told) in enumerate(moments(trace, str(path), PIPE)):
        if moment not in cut_at:
            continue
        left = tmp_path / "left"
        left.mkdir()
        for name, content in disk.after_a_cut(draw).items():
            (left / Path(name).name).write_bytes(content)
        asyncio.run(check_told(str(left / path.name), [one.split() for one in told[1:]]))
        shutil.rmtree(left)
    report(f"{len(cut_at)} cuts of {number} moments, {len(told) - 1} acknowledgements: 0 lost")
    assert len(cut_at) == min(CUTS, number) > 100


def record(trace: Path, path: Path) -> None:
    """Runs a process that takes and runs jobs, writes down its system calls, and kills it."""
    command = [*STRACE, "-o", str(trace), sys.executable, "-m", "tests.products.jobs.telling", str(path), PIPE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        for _ in range(TOLD_LINES):
            assert process.stdout.readline(), "the process ended by itself"
        os.kill(pid, signal.SIGKILL)
        process.stdout.read()
