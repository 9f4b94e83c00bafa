"""The picture: two bar charts, CPU time per call and per relayed event, labelled with their numbers and ratios."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tests.bench.report import FLOOR

OURS, OTHERS = "#1f6fb2", "#b8bec6"
LOG_ABOVE = 20
"""Bars further apart than this factor get a logarithmic axis."""


def draw(facts: dict[str, Any], path: Path) -> None:
    """Write the picture. Raises ImportError without matplotlib."""
    matplotlib = importlib.import_module("matplotlib")  # not in the lock of the type checker, and slow to import
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    rows = max(2, len(facts["systems"]))
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 1.4 + 0.62 * rows), layout="constrained")
    _bars(panels[0], facts, "cpu_us_per_call", "CPU time per call (1 KB JSON, 32 connections)")
    _bars(
        panels[1], facts, "cpu_us_per_event", f"CPU time per relayed SSE event ({facts['effort']['streams']} streams)"
    )
    machine = facts["machine"]
    figure.supxlabel(
        f"µs on one pinned core, best of {facts['effort']['rounds']} rounds; less is better.   "
        f"{machine['cpu']}, Python {machine['python']}, commit {machine['commit']}",
        fontsize=8,
        color="#555555",
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _bars(panel: Any, facts: dict[str, Any], number: str, title: str) -> None:
    measured = [(name, one) for name, one in facts["systems"].items() if one["best"][number] is not None]
    measured.sort(key=lambda pair: -pair[1]["best"][number])
    values = [one["best"][number] for _, one in measured]
    colors = [OURS if name == "gateway" else OTHERS for name, _ in measured]
    bars = panel.barh([name for name, _ in measured], values, color=colors, height=0.62)
    panel.bar_label(bars, [_label(name, one, number) for name, one in measured], padding=5, fontsize=10)
    panel.set_title(title, fontsize=11, loc="left")
    if values and max(values) > LOG_ABOVE * min(values):
        panel.set_xscale("log")
        panel.set_xlim(min(values) / 3, max(values) * 30)
    elif values:
        panel.set_xlim(0, max(values) * 1.45)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    panel.tick_params(left=False, bottom=False, which="both", labelbottom=False)


def _label(name: str, one: dict[str, Any], number: str) -> str:
    value = f"{one['best'][number]:,.0f} µs" if one["best"][number] >= 100 else f"{one['best'][number]:.1f} µs"
    ratio = one["ratio_to"].get(FLOOR, {}).get(number)
    return value if ratio is None or name == FLOOR else f"{value}  ({ratio:.2f}x floor)"
