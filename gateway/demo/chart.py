"""Calls per second at the provider against its limit, as an SVG picture: one panel per run, all on the same scales.

Pure: runs in, text out. Legible on light and dark pages, because it brings its own ground. Invariant: what is higher than
its panel is cut off and says its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor

from gateway.demo.run import Run, per_second

WIDTH, MARGIN, LEFT = 860, 24, 60
PANEL, HEADING, BOTTOM = 130, 52, 64
PLOT = WIDTH - LEFT - MARGIN

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a }
  .ground { fill: #ffffff; stroke: #d0d7de } .heading { font-weight: 600; fill: #1f2328 }
  .answered { fill: #2f6fde } .refused { fill: #d9480f } .axis { stroke: #afb8c1 }
  .limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 } .cut { fill: #ffffff }
  .end { text-anchor: end } .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .ground { fill: #0d1117; stroke: #3d444d } .heading { fill: #f0f6fc }
    .answered { fill: #58a6ff } .refused { fill: #ff7b54 } .axis { stroke: #3d444d }
    .limit { stroke: #f0f6fc } .cut { fill: #0d1117 }
  }
"""


def chart_of(runs: Sequence[Run]) -> str:
    """The picture of at least one run, a second to a bar; answered calls below, refused ones on top of them."""
    seconds = max(1, ceil(max(run.duration_s for run in runs)))
    top = _top(runs, seconds)
    height = len(runs) * (HEADING + PANEL) + BOTTOM
    title = "Calls per second against the limit: " + "; ".join(_heading(run) for run in runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    for index, run in enumerate(runs):
        parts += _panel(run, index * (HEADING + PANEL) + HEADING, seconds, top)
    parts += [*_seconds_axis(height - BOTTOM, seconds), *_legend(height - 16), "</svg>"]
    return "\n".join(parts) + "\n"


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
    yield f'<text class="heading" x="{LEFT}" y="{y - 14}">{escape(_heading(run))}</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - MARGIN}" y2="{base}"/>'
    counts = per_second(run.ticks, seconds)
    for second, (answered, refused) in enumerate(counts):
        x, lower, upper = LEFT + second * slot, min(answered, top), min(answered + refused, top)
        yield from _bar("answered", x, base - lower * scale, slot, lower * scale)
        yield from _bar("refused", x, base - upper * scale, slot, (upper - lower) * scale)
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


def _bar(kind: str, x: float, y: float, width: float, height: float) -> Iterator[str]:
    if height > 0:
        gap = min(1.0, width / 4)
        yield f'<rect class="{kind}" x="{x + gap:.1f}" y="{y:.1f}" width="{width - 2 * gap:.1f}" height="{height:.1f}"/>'


def _seconds_axis(y: int, seconds: int) -> Iterator[str]:
    step = next((step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if seconds / step <= 10), 3600)
    for second in range(0, floor(seconds / step) * step + 1, step):
        text = f"{second} s"
        yield f'<text class="middle" x="{LEFT + second * PLOT / seconds:.1f}" y="{y + 20}">{text}</text>'


def _legend(y: int) -> Iterator[str]:
    for kind, x, text in (
        ("answered", LEFT, "answered by the provider"),
        ("refused", LEFT + 215, "refused with a 429"),
    ):
        yield f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12"/><text x="{x + 18}" y="{y}">{text}</text>'
    yield f'<line class="limit" x1="{LEFT + 375}" y1="{y - 4}" x2="{LEFT + 405}" y2="{y - 4}"/>'
    yield f'<text x="{LEFT + 411}" y="{y}">its limit; one bar is one second</text>'
