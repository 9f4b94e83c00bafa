"""Shows the demo of a batch, from its first line to its table and its chart."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gateway.demo.batch import FAULTS, BatchDemo, run_batch
from gateway.demo.record import BatchRun
from gateway.demo.show.show import Display, batch_chart, check_folder, lay_out, perform, progress_bar, save_chart, times


def show_batch(demo: BatchDemo, display: Display, chart: Path) -> BatchRun:
    """Runs the batch in a loop of its own, saves its chart, and returns its record.

    Raises as `show` does, and AskFailedError or ProcessFailedError where the batch came to no end.
    """
    check_folder(chart)
    display.print_line(
        f"A batch of {demo.lines:,} lines. The limit: {demo.rpm:,} requests/min, {demo.burst:,} of them at once."
    )
    display.print_line(f"{FAULTS}.")
    display.print_line(f"The gateway is killed with -9 {times(demo.kills)} on the way, and started again.")
    display.print_line("Provider (an emulator) and gateway are processes of their own.\n")

    def begin(run: BatchRun) -> None:
        display.follow(partial(batch_line, demo, run))

    run = perform(run_batch(demo, begin), display)
    save_chart(chart, batch_chart(run), display)
    return run


def batch_line(demo: BatchDemo, run: BatchRun, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns the progress of the batch in a line shorter than `columns`; `marks` are as for a run."""
    if run.began_at is None:
        return "getting ready ..."[: columns - 1]
    answered = run.seen[-1][1] if run.seen else 0
    time_s = run.duration_s or run.time_s(now)
    text = f" {answered:>6,} answers by the provider  {len(run.kills)} of {demo.kills} kills {time_s:>6.1f} s"
    room = min(30, columns - 2 - len(text))
    if room < 1:
        return text[: columns - 1]
    return progress_bar(min(answered, demo.lines), 0, demo.lines, room, marks, has_colour) + text


def batch_table(run: BatchRun) -> str:
    """Returns the table of a batch, without a trailing newline: what its files say, and what the provider recorded."""
    statuses = run.statuses
    faults = sum(count for status, count in statuses.items() if status not in (200, 429))
    kept = ", ".join(f"{len(kill.kept):,}" for kill in run.kills)
    away = ", ".join(f"{away_s:.1f} s" for away_s in run.away_s)
    rows = (
        ("", "the batch", "the provider's ledger"),
        ("lines with a result", f"{run.lines - run.lost:,} of {run.lines:,}", f"{len(run.paid):,} of {run.lines:,}"),
        ("  failed", f"{len(run.failed):,}", ""),
        ("  results twice", f"{run.results_twice:,}", ""),
        ("calls", "", f"{len(run.ledger):,}"),
        ("  refused with a 429", "", f"{statuses[429]:,}"),
        ("  met a fault", "", f"{faults:,}"),
        ("  paid for", "", f"{run.paid.total():,}"),
        ("killed with -9", f"{len(run.kills)}", ""),
        ("  results kept by then", kept or "-", ""),
        ("  back after", away or "-", ""),
        ("in flight at the kills", "", f"{run.in_flight:,}"),
        ("paid twice", "", f"{run.paid_twice:,}"),
        ("  though its result was kept", "", f"{run.paid_though_kept:,}"),
        ("time", f"{run.duration_s:.1f} s", ""),
        ("  ideal: the limit alone", f"{run.ideal_s:.1f} s{_ratio(run)}", ""),
    )
    return "\n".join(map(str.rstrip, lay_out(list(zip(*rows, strict=True))).splitlines()))


def _ratio(run: BatchRun) -> str:
    return f" ({run.duration_s / run.ideal_s:.2f}x)" if run.ideal_s else ""
