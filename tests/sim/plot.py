"""The pictures: what the policy does as the load, the rate, the number of tenants and its own settings change."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sim.sweep import Point

COLORS = {"critical": "#7a3b9a", "interactive": "#1f6fb2", "batch": "#d98324", "background": "#7f8790"}
QUIET = "#b8bec6"
FEW = 0.05


def draw(points: dict[str, list[Point]], folder: Path) -> None:
    """Write `load.png` and `settings.png`. Raises ImportError without matplotlib."""
    matplotlib = importlib.import_module("matplotlib")  # not in the lock of the type checker, and slow to import
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    _goodput(panels[0][0], points["load"])
    _waits(panels[0][1], points["load"], "load", "Wait in the queue at a provider of 1,000 calls/s")
    _refusals(panels[1][0], points)
    _waits(panels[1][1], points["rate"], "rate", "Wait in the queue at 1.5x load, by size")
    figure.savefig(folder / "load.png", dpi=90)
    figure, panels = pyplot.subplots(1, 3, figsize=(13, 3.7), layout="constrained")
    _fairness(panels[0], points["tenants"])
    _reserve(panels[1], points["reserve"])
    _ageing(panels[2], points["ageing"])
    figure.savefig(folder / "settings.png", dpi=90)
    pyplot.close("all")


def _goodput(panel: Any, points: Sequence[Point]) -> None:
    loads = [point.setting.load for point in points]
    below = [0.0] * len(points)
    for lane in ("interactive", "batch", "background"):
        shares = [point.answered_per_s * point.lane_share.get(lane, 0.0) for point in points]
        above = [low + share for low, share in zip(below, shares, strict=True)]
        panel.fill_between(loads, below, above, color=COLORS[lane], alpha=0.75, label=lane, linewidth=0)
        below = above
    panel.axhline(points[0].setting.rate_per_s, color="black", linewidth=0.8, linestyle=":")
    panel.legend(loc="lower right", fontsize=8)
    _dress(panel, "Answers per second, by lane (dotted: the limit)", "offered load / limit", logarithmic="x")


def _waits(panel: Any, points: Sequence[Point], by: str, title: str) -> None:
    xs = [point.setting.load * (point.setting.rate_per_s if by == "rate" else 1.0) for point in points]
    for lane in ("interactive", "batch", "background"):
        for index, style in ((0, "-"), (1, "--")):
            ys = [_seen(point, lane, index) for point in points]
            label = f"{lane} {'p50' if index == 0 else 'p99'}"
            panel.plot(xs, ys, style, color=COLORS[lane], label=label, marker=".", markersize=4, linewidth=1.3)
    panel.legend(fontsize=7, ncols=3, loc="upper left")
    panel.set_ylim(8e-4, 1e5)
    panel.set_ylabel("seconds (1 ms: none)", fontsize=8)
    _dress(panel, title, "calls offered per second" if by == "rate" else "offered load / limit", logarithmic="both")


def _seen(point: Point, lane: str, index: int) -> float | None:
    """A wait for a logarithmic axis; of those few who slip through where hardly anybody is answered it says nothing."""
    return max(point.waits_s[lane][index], 1e-3) if point.answered.get(lane, 0.0) > FEW else None


def _refusals(panel: Any, points: dict[str, list[Point]]) -> None:
    kinds = {
        "load": "requests, headers",
        "load, no headers": "requests, no headers",
        "load, by tokens": "tokens, headers",
    }
    for (name, label), color in zip(kinds.items(), COLORS.values(), strict=False):
        loads = [point.setting.load for point in points[name]]
        panel.plot(loads, [100 * point.upstream_429s for point in points[name]], color=color, marker=".", label=label)
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_ylim(0, 1.2)
    panel.legend(fontsize=8)
    _dress(panel, "Upstream 429s, % of attempts (dotted: the bar)", "offered load / limit", logarithmic="x")


def _fairness(panel: Any, points: Sequence[Point]) -> None:
    panel.plot(
        [p.setting.tenants for p in points], [p.fairness for p in points], color=COLORS["interactive"], marker="."
    )
    panel.axhline(0.98, color="black", linewidth=0.8, linestyle=":")
    panel.set_ylim(0.9, 1.005)
    _dress(panel, "Jain's index over tenants, one of them 10x as loud", "tenants", logarithmic="x")


def _reserve(panel: Any, points: Sequence[Point]) -> None:
    xs = [point.setting.reserve_percent for point in points]
    panel.plot(xs, [1000 * p.waits_s["interactive"][1] for p in points], color=COLORS["interactive"], marker=".")
    panel.set_ylabel("interactive p99 wait, ms", fontsize=8, color=COLORS["interactive"])
    other = panel.twinx()
    other.plot(xs, [100 * point.goodput for point in points], color=COLORS["batch"], marker=".")
    other.set_ylabel("goodput, %", fontsize=8, color=COLORS["batch"])
    other.set_ylim(0, 105)
    other.spines[["top"]].set_visible(False)
    _dress(panel, "What the reserve buys, and what it costs", "reserve_percent")


def _ageing(panel: Any, points: Sequence[Point]) -> None:
    xs = [point.setting.aged_percent for point in points]
    shares = [100 * point.lane_share.get("background", 0.0) for point in points]
    panel.plot(xs, xs, color=QUIET, linewidth=0.9)
    panel.plot(xs, shares, color=COLORS["background"], marker=".")
    _dress(panel, "Background's share of the answers, %,\nunder interactive calls at 1.5x the limit", "aged_percent")


def _dress(panel: Any, title: str, x: str, *, logarithmic: str = "") -> None:
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel(x, fontsize=8)
    if logarithmic in ("x", "both"):
        panel.set_xscale("log")
    if logarithmic == "both":
        panel.set_yscale("log")
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(color="#eeeeee", linewidth=0.6)
