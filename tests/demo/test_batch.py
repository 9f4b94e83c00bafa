"""The batch whose gateway is killed: what it shows is so, what it promises is looked at, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.demo.batch import BatchDemo, batch_line, batch_table
from gateway.demo.record import BatchRun, KillNote, LedgerEntry
from gateway.demo.show import batch_chart
from tests.demo.test_chart import numbers

PAID, REFUSED, FAULTED = (200, False), (429, False), (500, False)
BROKEN, LEFT = (None, False), (None, True)


def ledger(*entries: tuple[int, tuple[int | None, bool]]) -> list[LedgerEntry]:
    """What a provider recorded: lines, and what became of their calls."""
    return [LedgerEntry(line, *fate) for line, fate in entries]


def batch_run() -> BatchRun:
    """Four lines and a kill: line 1 was kept, 2 was answered and not kept, 3 was under way."""
    run = BatchRun(lines=4, rate_per_s=1.0, level=2)
    run.began_at, run.duration_s, run.status = 0.0, 3.0, "completed"
    run.kills, run.away_s = [KillNote(1.0, 6, frozenset({1}))], [0.5]
    run.seen = [(0.5, 2), (2.5, 6)]
    run.answered = [0, 1, 2, 3]
    before = ledger((0, REFUSED), (1, PAID), (2, FAULTED), (2, PAID), (3, LEFT), (0, BROKEN))
    run.ledger = [*before, *ledger((2, PAID), (3, PAID), (0, PAID))]
    return run


def test_a_reckoning_is_the_providers() -> None:
    """Paid is what was answered or broken off by a kill; refusals and faults cost nothing."""
    run = batch_run()

    assert (run.paid_twice, run.in_flight, run.paid_though_kept, run.lost, run.results_twice) == (2, 2, 0, 0, 0)
    assert run.statuses == {429: 1, 200: 5, 500: 1, None: 1}
    assert run.ideal_s == 2.0
    assert run.broken_promises() == []


def test_each_promise_is_looked_at() -> None:
    """A line that is lost, doubled, failed or paid for needlessly is told."""
    run = batch_run()
    run.answered, run.failed, run.status = [0, 1, 1], [2], "expired"
    run.ledger = [*run.ledger, *ledger((1, PAID), (1, PAID))]

    assert run.broken_promises() == [
        "the batch is expired",
        "1 lines have no result",
        "1 results are there twice",
        "1 lines have failed",
        "4 calls were paid for twice, but 2 were in flight",
        "2 calls were for lines whose results had been kept",
    ]


def test_the_table_has_both_sides() -> None:
    """What the files say, and what the provider recorded."""
    shown = [line.split("  ") for line in batch_table(batch_run()).splitlines()]
    found = {next(part.strip() for part in line if part): [part.strip() for part in line if part][1:] for line in shown}

    assert found["lines with a result"] == ["4 of 4", "4 of 4"]
    assert found["paid twice"] == found["in flight at the kills"] == ["2"]
    assert found["met a fault"] == ["2"]
    assert found["results kept by then"] == ["1"]
    assert found["ideal: the limit alone"] == ["2.0 s (1.50x)"]


def test_the_chart_has_the_answers_of_each_second_and_the_kill() -> None:
    """In proportion; the time without a gateway is shaded."""
    chart = batch_chart(batch_run())

    first, last = numbers(chart, "rect", "answered", "height")
    assert last == pytest.approx(2 * first, abs=0.2)
    assert len(numbers(chart, "rect", "act", "width")) == 1
    assert "kill -9" in chart


def test_the_line_of_progress_fits() -> None:
    """Before the batch begins, in a narrow terminal, and at its end."""
    run = batch_run()

    assert batch_line(BatchDemo(), replace(run, began_at=None), 0.0, 80, "#x.", False) == "getting ready ..."
    assert len(batch_line(BatchDemo(), run, 1.0, 30, "#x.", False)) < 30
    assert batch_line(BatchDemo(lines=4, kills=1), run, 1.0, 200, "#x.", False).startswith("#" * 30)


def test_the_kills_follow_from_the_seed() -> None:
    """In order, each in its part of the batch."""
    points = [BatchDemo(lines=3000, kills=2, seed=seed).kill_points() for seed in (1, 1, 2)]

    assert points[0] == points[1] != points[2]
    assert all(700 <= first <= 1300 and 1700 <= second <= 2300 for first, second in points)


def test_more_kills_than_lines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing to kill."""
    assert main(["demo", "--batch", "--lines", "30", "--kills", "2"]) == 2
    assert "at least 40 lines" in capsys.readouterr().err


def test_a_batch_survives_its_kill_and_leaves_nothing(tmp_path: Path) -> None:
    """The command itself, in small: its figures are whole, its promises kept, its folder gone."""
    ran = _demo(tmp_path, "--lines", "60", "--kills", "1", "--rpm", "3000", "--burst", "20", "--json")
    output, errors = ran.communicate(timeout=120)
    figures = json.loads(output)

    assert (ran.returncode, figures["broken_promises"]) == (0, []), errors
    assert (figures["lines"], figures["answered"], figures["lost"], figures["results_twice"]) == (60, 60, 0, 0)
    assert figures["paid_twice"] <= figures["in_flight_at_kills"]
    assert figures["provider"]["paid"] == 60 + figures["paid_twice"]
    assert len(figures["kills"]) == len(figures["away_s"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["batch.svg"]


def test_who_interrupts_it_finds_nothing_left(tmp_path: Path) -> None:
    """Neither its processes, which have sessions of their own, nor its folder."""
    ran = _demo(tmp_path, "--lines", "2000", "--rpm", "300", "--burst", "1")
    while not list(tmp_path.rglob("serve-*.log")):
        time.sleep(0.02)
    children = _children(ran.pid)
    ran.send_signal(signal.SIGINT)
    ran.communicate(timeout=30)

    assert ran.returncode == 130
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


def _demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gateway", "demo", "--batch", *arguments, "--chart", str(folder / "batch.svg")]
    environ = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
