"""Shows operators admission as plain data: limits, queue and pauses, for `/admin/*` and the gauges.

Read-only, and none of it on the hot path. Times come out in seconds from now, never as monotonic instants.
"""

from __future__ import annotations

from math import inf
from typing import Any

from gateway.core.admission.admission.admission import Admission
from gateway.core.admission.queue.queue.held import WaitingLine
from gateway.core.limits.estimate.cost import Cost
from gateway.core.limits.reservation.entry import ready_at
from gateway.core.limits.table.limit_table.limit_set import LimitSet
from gateway.core.limits.table.limit_table.limit_table import LimitRow
from gateway.core.types.words import LANES, Lane


def show_limits(admission: Admission, now: float) -> dict[str, Any]:
    """Shows every limit of targets and keys: level, capacity, where it is known from, and when one more unit is free."""
    return {
        "targets": {name: _target(line, now) for name, line in admission.gates.shown()},
        "keys": {name: _rows(limits.table.rows(now)) for name, limits in sorted(_key_sets(admission).items())},
    }


def show_queue(admission: Admission, now: float) -> dict[str, Any]:
    """Shows the calls that wait by target, lane and tenant: how many, since when, and how long a newcomer would wait.

    A call that may use several targets is in the line of each.
    """
    queue = admission.queue
    return {
        "calls": queue.occupancy.calls,
        "bytes": queue.occupancy.bytes,
        "lines": {
            name: {
                "next_chance_s": None if line.wakes_at == inf else max(0.0, line.wakes_at - now),
                "paused_s": max(0.0, line.gate.pauses.ends_at - now),
                "waiting": _waiting(line, now),
            }
            for name, line in admission.gates.shown()
            if len(line.waiters)
        },
    }


def limit_rows(admission: Admission, now: float) -> list[tuple[str, LimitRow]]:
    """Returns every limit of the config's own targets and keys; those that clients have named are no label for a metric."""
    gates = admission.gates
    rows = [
        (name, row)
        for name, line in gates.lines.items()
        if not gates.names.is_named(name)
        for row in line.gate.rows(now)
    ]
    rows += [(f"key:{name}", row) for name, limits in _key_sets(admission).items() for row in limits.table.rows(now)]
    return [(f"{name}:{row.name}", row) for name, row in rows]


def oldest_s(admission: Admission, now: float) -> dict[Lane, float]:
    """Returns the seconds for which the oldest held call of each lane has waited."""
    oldest = dict.fromkeys(LANES, 0.0)
    for line in admission.gates.lines.values():
        for (lane, _), since in line.waiters.oldest().items():
            oldest[lane] = max(oldest[lane], now - since)
    return oldest


def _key_sets(admission: Admission) -> dict[str, LimitSet]:
    return admission.keys.sets


def _target(line: WaitingLine, now: float) -> dict[str, Any]:
    gate = line.gate
    errors = gate.calibration.errors()
    return {
        "limits": _rows(gate.rows(now)),
        "in_flight": gate.in_flight,
        "waiting": len(line.waiters),
        "paused_s": max(0.0, gate.pauses.ends_at - now),
        "pauses": gate.pauses.count,
        "quota_spent_s": max(0.0, gate.pauses.quota_until - now),
        "answer_s": round(gate.answer_s, 4),
        "estimates": {
            "calls": errors.calls,
            "ratio": round(errors.ratio, 3),
            "mean_error": round(errors.mean_error, 3),
        },
    }


def _rows(rows: list[LimitRow]) -> list[dict[str, Any]]:
    return [
        {
            "limit": row.name,
            "level": round(row.level, 3),
            "capacity": round(row.capacity, 3),
            "source": row.source,
            "next_free_s": None if row.next_free_s is None else round(row.next_free_s, 3),
        }
        for row in rows
    ]


def _waiting(line: WaitingLine, now: float) -> list[dict[str, Any]]:
    oldest = line.waiters.oldest()
    return [
        {
            "lane": lane,
            "tenant": tenant,
            "calls": calls,
            "oldest_s": round(now - oldest[lane, tenant], 3),
            "predicted_wait_s": _predicted_s(line, LANES.index(lane), tenant, now),
        }
        for (lane, tenant), calls in sorted(line.waiters.depths().items())
    ]


def _predicted_s(line: WaitingLine, rank: int, tenant: str, now: float) -> float | None:
    wait_s = ready_at(line.gate, Cost(), now, line.waiters.ahead(rank, tenant, 0.0)) - now
    return None if wait_s == inf else round(max(0.0, wait_s), 3)
