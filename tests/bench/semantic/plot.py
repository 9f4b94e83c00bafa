"""The picture: what is recognised, and what is mistaken, as the threshold rises."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.semantic.score import RULES, Row

COLOURS = {"no guards": "#b8bec6", "facts only": "#e08e45", "guards": "#1f6fb2"}
BAR = 0.001
"""The share of near misses that the default may take for the same."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture. Raises ImportError without matplotlib."""
    matplotlib = importlib.import_module("matplotlib")  # slow to import, and not needed for the table
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for rule in RULES:
        ours = [row for row in rows if row.rule == rule]
        at = [row.threshold for row in ours]
        left.plot(at, [100 * row.recall for row in ours], color=COLOURS[rule])
        left.plot(at, [100 * row.recall_manners for row in ours], color=COLOURS[rule], linestyle=":")
        right.plot(at, [100 * max(row.false_rate, BAR / 10) for row in ours], color=COLOURS[rule], label=rule)
    _finish(left, "Recognised, % of pairs: other words; dotted: other manners")
    right.set_yscale("log")
    right.axhline(100 * BAR, color="#555555", linewidth=0.8, linestyle="--")
    right.annotate("0.1 %", (0.70, 100 * BAR), textcoords="offset points", xytext=(2, 4), fontsize=8, color="#555555")
    _finish(right, f"Mistaken: near misses, % of {rows[0].near_misses} pairs (0.01 stands for none)")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _finish(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("threshold (cosine)")
    panel.grid(alpha=0.25)
