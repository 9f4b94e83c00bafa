"""Trials as text: the line that shows them while they go on, and the table afterwards.

Pure; it must not know where it is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.demo.display import DIM, GREEN, PLAIN, RED
from gateway.demo.outage import Outage
from gateway.demo.table import lay_out, or_dash
from gateway.demo.trial import Trial

_LABELS = (
    "",
    "calls answered",
    "calls failed",
    "  with their answer half given",
    "answers in more than {late_s:g} s",
    "time to the whole answer, p50",
    "  p99",
    "tries at providers",
    "  per call",
    "  wasted",
    "  at a dead provider",
)


def table_of(trials: Sequence[Trial]) -> str:
    """Lines without a trailing newline; at least one trial."""
    labels = [label.format(late_s=trials[0].late_s) for label in _LABELS]
    return lay_out([labels, *map(_column, trials)])


def _column(trial: Trial) -> tuple[str, ...]:
    return (
        trial.name,
        f"{trial.answered:,} of {trial.calls:,} ({_percent(trial.answered, trial.calls)})",
        f"{trial.failed:,}",
        f"{trial.broken:,}",
        f"{trial.late:,}",
        or_dash(trial.latency_p50_s, "{:.2f} s"),
        or_dash(trial.latency_p99_s, "{:.2f} s"),
        f"{trial.tries:,}",
        f"{trial.tries_per_call:.2f}",
        f"{trial.wasted_tries:,} ({trial.wasted_tries / max(1, trial.tries):.0%})",
        f"{trial.tries_at_dead:,}",
    )


def _percent(part: int, whole: int) -> str:
    """Rounded down: only all of them are 100 %."""
    return f"{part * 1000 // whole / 10:g} %"


def line_of(outage: Outage, trials: Sequence[Trial], now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Where the outage stands, in a line shorter than `columns`; `marks` as for a run."""
    if any(trial.began_at is None for trial in trials):
        return "getting ready ..."[: columns - 1]
    time_s = min(trials[0].time_s(now), outage.seconds)
    moment = f"{time_s:>5.1f} s {outage.act_at(time_s).label:<12}"
    counts = [f"  {_short(trial)}: {trial.answered:>5,} answered {trial.failed:>4,} failed" for trial in trials]
    plain = moment + "".join(counts)
    if len(plain) >= columns:
        return plain[: columns - 1]
    if not has_colour:
        return plain
    hues = [RED if trial.failed else GREEN for trial in trials]
    return f"{DIM}{moment}{PLAIN}" + "".join(f"{hue}{text}{PLAIN}" for hue, text in zip(hues, counts, strict=True))


def _short(trial: Trial) -> str:
    return trial.name.partition(" ")[0]
