"""The pictures: what reached the provider, second by second, and who got how much of it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OURS, FAIR, AWAY = "#1f6fb2", "#b8bec6", "#f3d9c4"
Facts = dict[str, Any]


def draw(folder: Path) -> None:
    """Draw whatever there are figures of. Raises ImportError without matplotlib."""
    matplotlib = importlib.import_module("matplotlib")  # not in the lock of the type checker, and slow to import
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    for name, panels_of in (("sharing", _sharing), ("outage", _outage), ("slots", _slots), ("rolling", _rolling)):
        found = [one for path in sorted(folder.glob(f"{name}*.json")) for one in json.loads(path.read_text())]
        if found:
            columns = 2 if name in ("sharing", "outage") else 1
            rows = len(found) if name == "sharing" else -(-len(found) // columns)
            figure, panels = pyplot.subplots(
                rows, columns, figsize=(12, 2.6 * rows), squeeze=False, layout="constrained"
            )
            panels_of(panels, found)
            figure.savefig(folder / f"{name}.png", dpi=80)
            pyplot.close("all")


def _sharing(panels: Any, found: Sequence[Facts]) -> None:
    for row, one in zip(panels, found, strict=True):
        limit = one["expected"] / one["seconds"]
        _seconds(row[0], one["per_second"], limit)
        row[0].set_title(
            f"{one['replicas']} replicas, {one['limit']}: admitted each second (dotted: the limit)", fontsize=9
        )
        places = range(one["replicas"])
        row[1].bar([place - 0.2 for place in places], one["fair"], 0.4, color=FAIR, label="max-min fair")
        row[1].bar([place + 0.2 for place in places], one["by_replica"], 0.4, color=OURS, label="served")
        row[1].set_title("by replica; the last asks most", fontsize=9)
        row[1].legend(fontsize=7)


def _outage(panels: Any, found: Sequence[Facts]) -> None:
    for panel, one in zip([panel for row in panels for panel in row], found, strict=False):
        panel.axvspan(one["gone_at"], one["gone_at"] + one["away_s"], color=AWAY, linewidth=0)
        _seconds(panel, one["per_second"], one["limit_per_s"])
        panel.set_title(
            f"Redis {one['way']}: {one['load_per_s']:g}/s on {one['replicas']} replicas, limit {one['limit_per_s']:g}/s"
            + ("" if one["is_strict"] else ", the provider takes all"),
            fontsize=9,
        )


def _slots(panels: Any, found: Sequence[Facts]) -> None:
    for (panel,), one in zip(panels, found, strict=True):
        at, counts = zip(*one["in_flight"], strict=True)
        panel.step(at, counts, where="post", color=OURS, linewidth=0.8)
        panel.axhline(one["cap"], color="black", linewidth=0.8, linestyle=":")
        panel.axvline(one["killed_at"], color="#c0392b", linewidth=1)
        panel.set_title(
            f"{one['replicas']} replicas, a cap of {one['cap']}: calls in flight (red: kill -9)", fontsize=9
        )


def _rolling(panels: Any, found: Sequence[Facts]) -> None:
    for (panel,), one in zip(panels, found, strict=True):
        for at in one["restarts"]:
            panel.axvline(at, color=AWAY, linewidth=2)
        _seconds(panel, one["per_second"], one["limit_per_s"])
        panel.set_title(f"{one['replicas']} replicas restarted in turn (bars): admitted each second", fontsize=9)


def _seconds(panel: Any, counts: Sequence[int], limit: float) -> None:
    panel.step(range(len(counts)), counts, where="post", color=OURS, linewidth=1.2)
    panel.axhline(limit, color="black", linewidth=0.8, linestyle=":")
    panel.set_ylim(0, 1.25 * max(limit, *counts))
    panel.set_xlabel("s", fontsize=8)
