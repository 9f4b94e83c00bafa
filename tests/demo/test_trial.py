"""What a run of steady traffic sums up to, and how the table and the line say it."""

from __future__ import annotations

import pytest

from gateway.demo.record import Fate, Trial, fates_by_second
from gateway.demo.show import trial_line, trial_table
from gateway.demo.storm import Act, Outage
from tests.demo.support import trial_of

OUTAGE = Outage(seconds=10.0, acts=(Act("dead", 0.2, 0.5),))


def test_a_trial_sums_up_what_it_was_told() -> None:
    """Every figure follows from what was recorded."""
    trial = Trial("a run", calls=4, late_s=1.0)
    trial.begin(100.0)
    trial.tried(2, at_dead=1)
    trial.tried(4, at_dead=0)
    trial.end(100.0, 100.5, is_answered=True)
    trial.end(100.5, 102.5, is_answered=True)
    trial.end(101.0, 101.1, is_answered=False)
    trial.end(101.5, 101.9, is_answered=False, is_broken=True)

    assert trial.to_mapping() == {
        "name": "a run",
        "calls": 4,
        "answered": 2,
        "late": 1,
        "failed": 2,
        "broken": 1,
        "tries": 6,
        "tries_per_call": 1.5,
        "wasted_tries": 4,
        "tries_at_dead": 1,
        "latency_p50_s": 0.5,
        "latency_p99_s": 2.0,
    }


def test_what_comes_before_the_beginning_is_not_counted() -> None:
    """The first calls only warm the client up."""
    trial = Trial("a run", calls=4, late_s=1.0)

    trial.tried(3, at_dead=1)

    assert (trial.tries, trial.tries_at_dead) == (0, 0)


def test_a_trial_without_answers_has_no_latency() -> None:
    """None, not a zero that nobody measured."""
    trial = trial_of([Fate(0, 0, 3)])

    assert (trial.latency_p50_s, trial.latency_p99_s, trial.wasted_tries) == (None, None, 3)


def test_calls_belong_to_the_second_in_which_they_were_made() -> None:
    """However long they took; the last second takes what comes after it."""
    fates = [Fate(2, 1, 0), Fate(0, 0, 3), Fate(1, 1, 1)]

    assert fates_by_second(trial_of(fates), 3) == fates
    assert fates_by_second(trial_of(fates), 2) == [Fate(2, 1, 0), Fate(1, 1, 4)]


def test_the_table_has_a_column_for_each_trial() -> None:
    """Figures under the run's name."""
    straight = trial_of([Fate(2, 1, 5)], name="straight")
    through = trial_of([Fate(7, 0, 0), Fate(1, 0, 0)], name="through")

    assert trial_table([straight, through]).splitlines() == [
        "                                        straight          through",
        "-----------------------------------------------------------------",
        "calls answered                   3 of 8 (37.5 %)   8 of 8 (100 %)",
        "calls failed                                   5                0",
        "  with their answer half given                 0                0",
        "answers in more than 1 s                       1                0",
        "time to the whole answer, p50             0.50 s           0.50 s",
        "  p99                                     3.00 s           0.50 s",
        "tries at providers                             8                8",
        "  per call                                  1.00             1.00",
        "  wasted                                 5 (62%)           0 (0%)",
        "  at a dead provider                           0                0",
    ]


def test_only_all_calls_are_100_percent() -> None:
    """One of ten thousand that failed is to be seen."""
    assert "(99.9 %)" in trial_table([trial_of([Fate(9_999, 0, 1)])])


def test_the_line_says_what_happens_and_how_it_goes() -> None:
    """By the time since the traffic began, and no longer than it lasts."""
    trials = [trial_of([Fate(2, 1, 5)], name="straight on"), trial_of([Fate(8, 0, 0)], name="through it")]

    line = trial_line(OUTAGE, trials, 1002.5, 120, "#x.", False)

    assert " ".join(line.split()) == "2.5 s dead straight: 3 answered 5 failed through: 8 answered 0 failed"
    assert trial_line(OUTAGE, trials, 1099.0, 120, "#x.", False).startswith(" 10.0 s    ")
    assert trial_line(OUTAGE, [Trial("a run", 1, 1.0)], 0.0, 120, "#x.", False) == "getting ready ..."


@pytest.mark.parametrize("columns", [10, 40, 80, 120])
def test_the_line_never_reaches_the_edge(columns: int) -> None:
    """Or it would wrap, and could not be renewed."""
    assert len(trial_line(OUTAGE, [trial_of([Fate(2, 1, 5)])] * 2, 1002.5, columns, "#x.", False)) < columns


def test_failures_are_red_and_their_absence_is_green() -> None:
    """In colours, one after the other."""
    trials = [trial_of([Fate(2, 1, 5)]), trial_of([Fate(8, 0, 0)])]

    line = trial_line(OUTAGE, trials, 1002.5, 120, "#x.", True)

    assert line.index("\x1b[31m") < line.index("\x1b[32m")
    assert line.endswith("\x1b[0m")
