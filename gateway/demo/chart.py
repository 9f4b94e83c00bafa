"""Calls per second at the provider against its limit, as an SVG picture: one panel per run, all on the same scales.

Pure: runs in, text out. Invariant: what is higher than its panel is cut off and says its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from gateway.demo.run import Run, per_second
from gateway.demo.svg import (
    BOTTOM,
    HEADING,
    LEFT,
    MARGIN,
    PANEL,
    PLOT,
    WIDTH,
    bar,
    base_line,
    heading,
    legend_entry,
    page,
    seconds_axis,
)


def chart_of(runs: Sequence[Run]) -> str:
    """The picture of at least one run, a second to a bar; answered calls below, refused ones on top of them."""
    seconds = max(1, ceil(max(run.duration_s for run in runs)))
    top = _top(runs, seconds)
    height = len(runs) * (HEADING + PANEL) + BOTTOM
    title = "Calls per second against the limit: " + "; ".join(_heading(run) for run in runs)
    parts: list[str] = []
    for index, run in enumerate(runs):
        parts += _panel(run, index * (HEADING + PANEL) + HEADING, seconds, top)
    return page(title, height, [*parts, *seconds_axis(height - BOTTOM, seconds), *_legend(height - 16)])


def _top(runs: Sequence[Run], seconds: int) -> float:
    """The highest value of the scale: room for the limit to be seen, whatever else there is."""
    peak = max(sum(counts) for run in runs for counts in per_second(run.ticks, seconds))
    limit = max(run.rate_per_s for run in runs)
    return min(max(1.05 * peak, 1.5 * limit), 2.5 * limit)


def _heading(run: Run) -> str:
    return (
        f"{run.name[:1].upper()}{run.name[1:]}: {run.answered:,} of {run.calls:,} calls answered,"
        f" {run.seen_429s:,} 429s, over after {run.duration_s:.1f} s"
    )


def _panel(run: Run, y: int, seconds: int, top: float) -> Iterator[str]:
    base, scale, slot = y + PANEL, PANEL / top, PLOT / seconds
    limit_y = base - run.rate_per_s * scale
    yield heading(_heading(run), y)
    yield base_line(base)
    counts = per_second(run.ticks, seconds)
    for second, (answered, refused) in enumerate(counts):
        x, lower, upper = LEFT + second * slot, min(answered, top), min(answered + refused, top)
        yield from bar("answered", x, base - lower * scale, slot, lower * scale)
        yield from bar("refused", x, base - upper * scale, slot, (upper - lower) * scale)
    cut = [second for second, both in enumerate(counts) if sum(both) > top]
    for second in cut:
        yield f'<rect class="cut" x="{LEFT + second * slot:.1f}" y="{y + 10}" width="{slot:.1f}" height="3"/>'
    if cut:
        anchor = ("start", (cut[-1] + 1) * slot + 6) if cut[-1] < seconds / 2 else ("end", cut[0] * slot - 6)
        text = f"up to {max(map(sum, counts)):,} calls a second"
        yield f'<text class="{anchor[0]}" x="{LEFT + anchor[1]:.1f}" y="{y + 16}">{text}</text>'
    yield f'<line class="limit" x1="{LEFT}" y1="{limit_y:.1f}" x2="{WIDTH - MARGIN}" y2="{limit_y:.1f}"/>'
    yield f'<text class="end" x="{LEFT - 8}" y="{limit_y + 4:.1f}">{run.rate_per_s:g}/s</text>'
    yield f'<text class="end" x="{LEFT - 8}" y="{base + 4}">0</text>'


def _legend(y: int) -> Iterator[str]:
    yield legend_entry("answered", LEFT, y, "answered by the provider")
    yield legend_entry("refused", LEFT + 215, y, "refused with a 429")
    yield f'<line class="limit" x1="{LEFT + 375}" y1="{y - 4}" x2="{LEFT + 405}" y2="{y - 4}"/>'
    yield f'<text x="{LEFT + 411}" y="{y}">its limit; one bar is one second</text>'
