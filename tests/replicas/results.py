"""Where figures go: a file for each run in `replica-results/`, a table on the terminal, and pictures of all files there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.replicas import plot
from tests.replicas.crowding import Crowded
from tests.replicas.keys import Keyed
from tests.replicas.outage import Gone
from tests.replicas.rolling import Rolled
from tests.replicas.sharing import Shared
from tests.replicas.slots import Capped

FOLDER = Path(__file__).parents[2] / "replica-results"
Result = Shared | Gone | Rolled | Capped | Keyed | Crowded
Row = dict[str, object]


def keep(name: str, *results: Result) -> str:
    """Writes them down, and the pictures anew; returns the table. Without matplotlib there are no pictures."""
    FOLDER.mkdir(exist_ok=True)
    facts: list[dict[str, Any]] = [asdict(one) for one in results]
    (FOLDER / f"{name}.json").write_text(json.dumps(facts, indent=1))
    with suppress(ImportError):
        plot.draw(FOLDER)
    return table([row_of(one) for one in results])


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_text(row[name]) for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row_of(one: Result) -> Row:
    """What is read of a result."""
    match one:
        case Shared():
            return _shared(one)
        case Gone():
            return _gone(one)
        case Rolled():
            return _rolled(one)
        case Capped():
            return _capped(one)
        case Keyed():
            return _keyed(one)
        case Crowded():
            return _crowded(one)


def _shared(one: Shared) -> Row:
    return {
        "replicas": one.replicas,
        "limit": one.limit,
        "offered": one.offered,
        "admitted / limit": one.exactness,
        "of 10 s, least": one.quietest_10s,
        "most": one.busiest_10s,
        "overshoot": one.overshoot,
        "429s %": one.refused_percent,
        "furthest from fair": one.unfairness,
        "failed": len(one.failed),
    }


def _gone(one: Gone) -> Row:
    return {
        "Redis": one.way,
        "replicas": one.replicas,
        "load / limit": f"{one.load_per_s:g} / {one.limit_per_s:g}",
        "provider": "strict" if one.is_strict else "takes all",
        "calls": one.calls,
        "failed": sum(one.failed.values()),
        "p99 ms before": one.p99_ms[0],
        "away": one.p99_ms[1],
        "after": one.p99_ms[2],
        "more than without Redis": one.added_p99_ms,
        "worst": max(one.worst_ms),
        "overshoot": one.overshoot,
        "a share": one.share,
        "busiest second after": one.busiest_s_after,
        "429s %": one.refused_percent,
    }


def _rolled(one: Rolled) -> Row:
    return {
        "replicas": one.replicas,
        "restarts": len(one.restarts),
        "seconds": one.seconds,
        "calls": one.calls,
        "failed": one.failed,
        "admitted / limit": one.exactness,
        "most of 10 s": one.busiest_10s,
        "overshoot": one.overshoot,
        "429s %": one.refused_percent,
    }


def _capped(one: Capped) -> Row:
    return {
        "replicas": one.replicas,
        "cap": one.cap,
        "peak": one.peak,
        "held by the dead": one.held_by_the_dead,
        "back after s": one.back_after_s,
        "in use before": one.used_before,
        "and after": one.used_after,
        "served by each before": one.by_replica,
        "failed": sum(one.failed.values()),
    }


def _crowded(one: Crowded) -> Row:
    return {
        "headers": one.tells,
        "seconds": one.seconds,
        "goodput": one.goodput,
        "429s %": one.refused_percent,
        "504s": one.late,
        "codes": one.codes,
    }


def _keyed(one: Keyed) -> Row:
    return {
        "replicas": one.replicas,
        "rpm": one.per_min,
        "calls": one.calls,
        "admitted / limit": one.exactness,
        "overshoot": one.overshoot,
        "told s": one.told_s,
        "too early": one.too_early,
        "on time": one.on_time,
        "failed": len(one.failed),
    }


def _text(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )
