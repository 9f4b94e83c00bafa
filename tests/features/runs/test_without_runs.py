"""A gateway without runs has jobs, batches and pipelines, on the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson


def live(folder: Path, *how: str) -> dict[str, object]:
    """Returns what one life of a gateway showed, in a process of its own."""
    command = [sys.executable, "-m", "tests.features.runs.without_runs", str(folder), *how]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    shown: dict[str, object] = orjson.loads(ran.stdout)
    return shown


def test_a_file_of_jobs_serves_gateways_with_runs_and_without(tmp_path: Path) -> None:
    """One without makes the file, too. Steps that were paid for are there again where runs are."""
    lives = [live(tmp_path, *how) for how in (["without"], [], ["without"], [])]

    assert lives == [
        {"calls": 1, "runs": 404, "pipeline": "succeeded"},
        {"calls": 1, "runs": 200, "pipeline": "succeeded"},
        {"calls": 1, "runs": 404, "pipeline": "succeeded"},
        {"calls": 0, "runs": 200, "pipeline": "succeeded"},
    ]
