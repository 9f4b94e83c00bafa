"""What admission and its targets look like to operators, and what calls have cost: for `/admin/*` and the gauges.

Views are read-only and plain data, with times in seconds from now, never as monotonic instants. First limits, queue and pauses;
then the health of targets and of the accounts that pay for them, and costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from gateway.core.admission.admission import Admission
from gateway.core.admission.gates import MISSING_REMEDY, missing_model
from gateway.core.admission.keys import KeyBudgets
from gateway.core.admission.queue import WaitingLine
from gateway.core.balancing import Retries
from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import Suspicion
from gateway.core.health.target_health import Account
from gateway.core.health.times import Latency
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import LimitRow, LimitSet
from gateway.core.limits.reservation import ready_at
from gateway.core.patience import ClientPatience
from gateway.core.snapshot import Key, Model, PolicySnapshot
from gateway.core.telemetry import CostTotals
from gateway.core.types import LANES, Lane

# --- Limits, queue and pauses, for `/admin/*` and the gauges ---


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


def show_clients(patience: ClientPatience, now: float) -> list[dict[str, Any]]:
    """Shows the clients that were seen to hang up soon, and how long their calls wait for that."""
    return [
        {"key": client.key, "user_agent": client.user_agent.decode("latin-1"), "waits_s": round(wait_s, 1)}
        for client, wait_s in patience.learned(now)
    ]


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
    calibration = gate.calibration
    return {
        "limits": _rows(gate.rows(now)),
        "in_flight": gate.in_flight,
        "waiting": len(line.waiters),
        "paused_s": max(0.0, gate.pauses.ends_at - now),
        "pauses": gate.pauses.count,
        "quota_spent_s": max(0.0, gate.pauses.quota_until - now),
        "answer_s": round(gate.answer_s, 4),
        "estimates": {
            "calls": calibration.count,
            "ratio": round(calibration.ratio, 3),
            "mean_error": round(calibration.error, 3),
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


# --- The health of targets and of the accounts that pay for them, and what calls have cost ---


_THOUGHT = {True: "thinking_streams", False: "thinking_whole_answers"}


def show_targets(admission: Admission, policy: PolicySnapshot, now: float) -> dict[str, dict[str, Any]]:
    """Shows every target and every account of the config: breaker, failures, times, retries, pauses, and where it is used.

    Looking moves no breaker: an open one whose time is over stays open until a call comes.
    """
    gates = admission.gates
    models, tokens = _uses(policy), _retry_tokens(policy)
    targets = {}
    for name, line in gates.shown():
        label = gates.names.label(name)
        # What the operator has to mend at the target, and how.
        is_lost = line.gate.health.responsiveness.has_lost_model
        warning = f"{missing_model(label)}; {MISSING_REMEDY}" if is_lost else None
        row = _target_row(line, tokens.get(label, Retries().tokens), now) | {"warning": warning}
        targets[name] = row | {"account": _payer(admission, line), "config": label, "models": models.get(label, {})}
    accounts = {
        account.name: _account(account, names, now) for account, names in sorted(_paid(admission), key=_name_of)
    }
    return {"targets": targets, "accounts": accounts}


def show_costs(totals: CostTotals, budgets: KeyBudgets, policy: PolicySnapshot) -> dict[str, Any]:
    """Shows what calls have cost since the start, by key and by model, and what is spent of today's budgets."""
    by_key: dict[str, CostTotals] = {}
    by_model: dict[str, CostTotals] = {}
    for (model, key), row in sorted(totals.items()):
        by_key[key] = {**by_key.get(key, {}), (model, key): row}
        by_model[model] = {**by_model.get(model, {}), (model, key): row}
    limited = {key.name: key for key in policy.keys.values() if key.budget_usd_per_day is not None}
    return {
        "keys": {
            name: _costs(by_key.get(name, {})) | _left_of_budget(budgets, limited.get(name))
            for name in sorted({*by_key, *limited})
        },
        "models": {name: _costs(rows) for name, rows in by_model.items()},
        "total": _costs(totals),
    }


def _costs(rows: CostTotals) -> dict[str, Any]:
    usd = sum([usd for usd, _, _ in rows.values()])
    estimated_usd = sum([estimated for _, estimated, _ in rows.values()])
    return {
        "usd": round(usd, 9),
        "estimated_usd": round(estimated_usd, 9),
        "estimated_share": round(estimated_usd / usd, 4) if usd else None,
        "unpriced_calls": sum([unpriced for _, _, unpriced in rows.values()]),
    }


def _left_of_budget(budgets: KeyBudgets, key: Key | None) -> dict[str, Any]:
    if key is None:
        return {"budget_usd_per_day": None, "spent_today_usd": None}
    return {"budget_usd_per_day": key.budget_usd_per_day, "spent_today_usd": round(budgets.spent_today(key), 9)}


def breaker_states(admission: Admission) -> Iterator[tuple[str, str]]:
    """Yields the state of each breaker under its name in the config: a label for a metric, which may come twice."""
    gates = admission.gates
    for name, line in gates.lines.items():
        if not gates.names.is_callers(name):  # these are no target's
            yield gates.names.label(name), line.gate.health.breaker.state
    for account, _ in _paid(admission):
        yield account.name, account.breaker.state


def suspects(admission: Admission) -> Iterator[tuple[str, bool]]:
    """Yields whether each target is suspect, under its name in the config, which may come twice."""
    for name, line in admission.gates.lines.items():
        yield admission.gates.names.label(name), line.gate.health.responsiveness.suspicion is not None


def spent_quotas(admission: Admission, now: float) -> Iterator[tuple[str, bool]]:
    """Yields whether the quota of each target is spent, until a call is served there; under its name in the config."""
    gates, spent = admission.gates, admission.health.spent
    for name, line in gates.lines.items():
        if not gates.names.is_callers(name):
            is_known_spent = not spent.isdisjoint((name, line.gate.health.account.name))
            yield gates.names.label(name), is_known_spent or line.gate.pauses.quota_until > now


def retry_levels(admission: Admission, policy: PolicySnapshot) -> Iterator[tuple[str, float]]:
    """Yields the retry tokens left at each target, under the name that the config has for it."""
    gates, tokens = admission.gates, _retry_tokens(policy)
    for name, line in gates.lines.items():
        label = gates.names.label(name)
        if label in tokens:
            yield label, line.gate.health.tokens.level(tokens[label])


def _target_row(line: WaitingLine, tokens: float, now: float) -> dict[str, Any]:
    gate = line.gate
    health = gate.health
    return {
        **_breaker(health.breaker, now),
        "suspect": _suspect(health.responsiveness.suspicion, now),
        "in_flight": gate.in_flight,
        "waiting": len(line.waiters),
        "retries": {"in_flight": health.retries.in_flight, "tokens_left": round(health.tokens.level(tokens), 1)},
        "time_to_first_byte": {
            "streams": _times(health.first_byte, now),
            "whole_answers": _times(health.whole_answer, now),
            **{
                _THOUGHT[stream]: _times(times, now)
                for stream, times in sorted(health.responsiveness.thought().items())
            },
        },
        "paused_s": _left(gate.pauses.ends_at, now),
        "quota_spent_s": _left(gate.pauses.quota_until, now),
    }


def _suspect(suspicion: Suspicion | None, now: float) -> dict[str, Any] | None:
    """Shows why and since when a target is suspect, and how many of its calls are tried elsewhere; None: it is not."""
    if suspicion is None:
        return None
    return {"reason": suspicion.reason, "since_s": _ago(suspicion.since, now), "moving": suspicion.moving}


def _account(account: Account, names: list[str], now: float) -> dict[str, Any]:
    return {**_breaker(account.breaker, now), "credential_refused": account.is_refused, "targets": names}


def _breaker(breaker: Breaker, now: float) -> dict[str, Any]:
    rate = breaker.failure_rate(now)
    baseline = breaker.baseline
    return {
        "state": breaker.state,
        "reason": breaker.reason,
        "by_hand": breaker.is_by_hand,
        "since_s": _since_s(breaker, now),
        "last_opened_s": _ago(breaker.opened_at, now),
        "next_probe_s": _next_probe_s(breaker, now),
        "ramping": breaker.is_ramping(now),
        "ejections": breaker.ejections_at(now),
        "failures": {
            "rate": round(rate, 4),
            "calls": breaker.outcomes_in_window(now)[0],
            "usual_rate": round(baseline.failure_share, 4),
        },
        "usual_first_byte_s": round(baseline.first_byte_s, 4) or None,
        "slow_after_s": round(breaker.slow_after_s, 3),
    }


def _since_s(breaker: Breaker, now: float) -> float | None:
    """Returns the seconds since it opened, or, where it is half open, since probes were due; None: it is closed."""
    if breaker.state == "closed":
        return None
    return _ago(breaker.probe_at if breaker.state == "half_open" else breaker.opened_at, now)


def _next_probe_s(breaker: Breaker, now: float) -> float | None:
    """Returns the seconds until a call may probe it; None: it is closed, or stays as it is until a person says so."""
    if breaker.state == "half_open":
        return 0.0
    return None if breaker.probe_at == inf else _left(breaker.probe_at, now)


def _times(latency: Latency, now: float) -> dict[str, Any]:
    """Percentiles are None as long as too few answers were measured."""
    return {
        "answers": latency.count,
        "expected_s": round(latency.peak_ewma(now), 4) if latency.count else None,
        "p50_s": _rounded(latency.quantile(0.5)),
        "p95_s": _rounded(latency.quantile(0.95)),
    }


def _payer(admission: Admission, line: WaitingLine) -> dict[str, str]:
    health = line.gate.health
    account = health.account
    is_ours = admission.gates.accounts.get(account.name) is account
    breaker = health.breaker if health.is_callers else account.breaker
    return {"name": account.name if is_ours else "caller's own", "state": breaker.state}


def _paid(admission: Admission) -> list[tuple[Account, list[str]]]:
    """Returns the accounts of the config, each with the targets that it pays for; those without any are left out."""
    paid: dict[str, list[str]] = {}
    for name, line in admission.gates.shown():
        paid.setdefault(line.gate.health.account.name, []).append(name)
    return [(account, paid[name]) for name, account in admission.gates.accounts.items() if name in paid]


def _name_of(paid: tuple[Account, list[str]]) -> str:
    return paid[0].name


def _uses(policy: PolicySnapshot) -> Mapping[str, dict[str, Any]]:
    """Returns by target the models that have it among their own, with its order and weight there."""
    uses: dict[str, dict[str, Any]] = {}
    for model in _models(policy):
        for target in model.targets:
            uses.setdefault(target.name, {})[model.name] = {"order": target.order, "weight": target.weight}
    return uses


def _retry_tokens(policy: PolicySnapshot) -> Mapping[str, float]:
    """Returns by target the most retry tokens that it ever has, by the tightest of the models that use it."""
    tokens: dict[str, float] = {}
    for model in _models(policy):
        for target in model.plan:
            tokens[target.name] = min(model.retries.tokens, tokens.get(target.name, inf))
    return tokens


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    return (*policy.models.values(), *(model for _, model in policy.patterns))


def _left(until: float, now: float) -> float:
    return round(max(0.0, until - now), 3)


def _ago(at: float, now: float) -> float | None:
    return None if at == -inf else round(max(0.0, now - at), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
