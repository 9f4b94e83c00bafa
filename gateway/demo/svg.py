"""What the pictures have in common: the page, its colours, bars and the axis of seconds.

Pure: numbers in, text out. It must not know what is drawn. Legible on light and dark pages, because a page brings its
own ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from math import floor

WIDTH, MARGIN, LEFT = 860, 24, 60
PANEL, HEADING, BOTTOM = 130, 52, 64
PLOT = WIDTH - LEFT - MARGIN

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a }
  .ground { fill: #ffffff; stroke: #d0d7de } .heading { font-weight: 600; fill: #1f2328 }
  .answered { fill: #2f6fde } .late { fill: #e0a100 } .refused, .failed { fill: #d9480f } .axis { stroke: #afb8c1 }
  .limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 } .cut { fill: #ffffff } .act { fill: #eaeef2 }
  .end { text-anchor: end } .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .ground { fill: #0d1117; stroke: #3d444d } .heading { fill: #f0f6fc }
    .answered { fill: #58a6ff } .late { fill: #d9a514 } .refused, .failed { fill: #ff7b54 } .axis { stroke: #3d444d }
    .limit { stroke: #f0f6fc } .cut { fill: #0d1117 } .act { fill: #21262d }
  }
"""


def page(title: str, height: int, parts: Iterable[str]) -> str:
    """A whole picture; who cannot see it hears its title."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def heading(text: str, y: float) -> str:
    """The line above a panel that begins at `y`."""
    return f'<text class="heading" x="{LEFT}" y="{y - 14}">{escape(text)}</text>'


def base_line(y: float) -> str:
    """Where the bars of a panel stand."""
    return f'<line class="axis" x1="{LEFT}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}"/>'


def bar(kind: str, x: float, y: float, width: float, height: float) -> Iterator[str]:
    """A part of a bar, its upper edge at `y`; nothing where it has no height."""
    if height > 0:
        gap = min(1.0, width / 4)
        yield f'<rect class="{kind}" x="{x + gap:.1f}" y="{y:.1f}" width="{width - 2 * gap:.1f}" height="{height:.1f}"/>'


def seconds_axis(y: float, seconds: int) -> Iterator[str]:
    """About ten marks below a panel that ends at `y`."""
    step = next((step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if seconds / step <= 10), 3600)
    for second in range(0, floor(seconds / step) * step + 1, step):
        text = f"{second} s"
        yield f'<text class="middle" x="{LEFT + second * PLOT / seconds:.1f}" y="{y + 20}">{text}</text>'


def legend_entry(kind: str, x: float, y: float, text: str) -> str:
    """A square of a kind's colour and what it stands for."""
    return f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12"/><text x="{x + 18}" y="{y}">{text}</text>'
