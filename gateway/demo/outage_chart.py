"""What became of the calls of every second, as an SVG picture: one panel per trial, what happened marked in both.

Pure: trials in, text out. Invariant: a bar has the height of the calls made in its second, whatever became of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil

from gateway.demo.outage import Outage
from gateway.demo.svg import (
    BOTTOM,
    HEADING,
    LEFT,
    PANEL,
    PLOT,
    bar,
    base_line,
    heading,
    legend_entry,
    page,
    seconds_axis,
)
from gateway.demo.trial import Fate, Trial, fates_by_second

_LABEL_ROOM = 22


def chart_of(outage: Outage, trials: Sequence[Trial]) -> str:
    """The picture of at least one trial, a second to a bar."""
    seconds = max(1, ceil(outage.seconds))
    fates = [fates_by_second(trial, seconds) for trial in trials]
    scale = (PANEL - _LABEL_ROOM) / max(1, *(sum(fate) for panel in fates for fate in panel))
    height = len(trials) * (HEADING + PANEL) + BOTTOM
    parts: list[str] = []
    for index, trial in enumerate(trials):
        y = index * (HEADING + PANEL) + HEADING
        parts += [heading(_heading(trial), y), *_acts(outage, seconds, y), *_bars(fates[index], y + PANEL, scale)]
        parts.append(base_line(y + PANEL))
    title = "What became of the calls of every second. " + ". ".join(map(_heading, trials))
    legend = _legend(height - 16, outage)
    return page(title, height, [*parts, *seconds_axis(height - BOTTOM, seconds), *legend])


def _heading(trial: Trial) -> str:
    return (
        f"{trial.name[:1].upper()}{trial.name[1:]}: {trial.answered:,} of {trial.calls:,} calls answered,"
        f" {trial.late:,} of them late, {trial.failed:,} failed"
    )


def _acts(outage: Outage, seconds: int, y: int) -> Iterator[str]:
    for act in outage.acts:
        x, end = (LEFT + share * outage.seconds / seconds * PLOT for share in (act.start, act.end))
        yield f'<rect class="act" x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{PANEL}"/>'
        yield f'<text class="middle" x="{(x + end) / 2:.1f}" y="{y + 15}">{escape(act.label)}</text>'


def _bars(fates: Sequence[Fate], base: int, scale: float) -> Iterator[str]:
    slot = PLOT / len(fates)
    for second, fate in enumerate(fates):
        y = float(base)
        for kind, count in zip(Fate._fields, fate, strict=True):
            y -= count * scale
            yield from bar(kind, LEFT + second * slot, y, slot, count * scale)


def _legend(y: int, outage: Outage) -> Iterator[str]:
    yield legend_entry("answered", LEFT, y, "answered")
    yield legend_entry("late", LEFT + 110, y, f"in more than {outage.late_s:g} s")
    yield legend_entry("failed", LEFT + 260, y, "failed")
    yield f'<text x="{LEFT + 340}" y="{y}">of the calls made in each second; shaded: trouble</text>'
