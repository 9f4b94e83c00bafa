"""What a run sums up to, and how the table says it."""

from __future__ import annotations

from gateway.demo.record import OVERHEAD, Run, Tick, per_second
from gateway.demo.show import run_table
from tests.demo.support import run_of


def test_a_run_sums_up_what_it_was_told() -> None:
    """Every figure follows from what was recorded."""
    run = Run("a run", calls=3, rate_per_s=2.0)
    run.begin(level=1.0, now=10.0)
    for status, overhead in ((200, "0.25"), (429, "9"), (429, "9"), (200, "0.75")):
        run.record(status, {OVERHEAD: overhead})
    run.ended(40, 10.0, 11.0)
    run.ended(50, 10.0, 13.0)
    run.ended(None, 10.0, 12.0)
    run.counted(4, 2, 2, 13.0)

    assert run.to_mapping() == {
        "name": "a run",
        "calls": 3,
        "answered": 2,
        "failed": 1,
        "seen_429s": 2,
        "upstream_calls": 4,
        "upstream_429s": 2,
        "wasted_calls": 2,
        "tokens": 90,
        "duration_s": 3.0,
        "ideal_s": 1.0,
        "wait_p50_s": 2.0,
        "added_p50_ms": 0.5,
    }


def test_a_run_without_answers_or_waiting_has_no_figures_for_them() -> None:
    """None, not a zero that nobody measured."""
    run = Run("a run", calls=3, rate_per_s=2.0)
    run.begin(level=3.0, now=0.0)

    assert (run.ideal_s, run.wait_p50_s, run.added_p50_ms) == (None, None, None)


def test_what_the_provider_counted_falls_into_seconds() -> None:
    """By the end of each tick; the last second takes what comes after it."""
    ticks = [Tick(0.1, 3, 1), Tick(0.9, 2, 0), Tick(2.0, 1, 5), Tick(3.2, 4, 0)]

    assert per_second(ticks, 3) == [(5, 1), (0, 0), (5, 5)]


def test_counters_that_stand_still_leave_no_tick() -> None:
    """A long wait takes no memory."""
    run = Run("a run", calls=3, rate_per_s=2.0)
    run.begin(level=1.0, now=0.0)
    for now in (0.1, 0.2, 0.3):
        run.counted(2, 1, 1, now)

    assert run.ticks == [Tick(0.1, 1, 1)]


def test_the_table_has_a_column_for_each_run() -> None:
    """Figures under the run's name; the ratio to the ideal only where every call was answered."""
    direct = run_of([(2, 8)], name="direct", calls=10, rate_per_s=2.0)
    through = run_of([(2, 0)] * 5, name="through", calls=10, rate_per_s=2.0)

    assert run_table([direct, through]).splitlines() == [
        "                             direct         through",
        "---------------------------------------------------",
        "calls answered              2 of 10        10 of 10",
        "calls failed                      8               0",
        "429s the app saw                  8               0",
        "upstream calls                   10              10",
        "  of these wasted           8 (80%)          0 (0%)",
        "tokens answered                  80             400",
        "time                          0.5 s           4.5 s",
        "  ideal: the limit alone      5.0 s   5.0 s (0.90x)",
        "wait for an answer, p50       0.5 s           2.5 s",
        "added by the gateway, p50         -               -",
    ]
