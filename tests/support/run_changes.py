"""Changes of runs, as tests add them."""

from __future__ import annotations

from gateway.features.runs.rules import LastWrite, RunChange, TaskSum, TaskWord, units


def one_call(
    task: str,
    at: float,
    *,
    began_at: float | None = None,
    error_class: str = "",
    attempts: int = 1,
    bad_attempts: int = 0,
    is_cached: bool = False,
    cost_usd: float | None = None,
    wasted_usd: float = 0.0,
    saved_usd: float | None = None,
    tokens: tuple[int, int] = (0, 0),
    workflow: str = "",
) -> RunChange:
    """Returns what one ended call adds: `at` is wall-clock seconds, `error_class` empty for a good one, `tokens` in and out."""
    at_ms = round(at * 1000)
    added = TaskSum(
        *(1, int(bool(error_class)), attempts, bad_attempts, int(is_cached)),
        *(units(cost_usd), units(wasted_usd), units(saved_usd)),
        *tokens,
        TaskWord(at_ms, not error_class, error_class),
    )
    first_ms = at_ms if began_at is None else min(at_ms, round(began_at * 1000))
    return RunChange(first_ms, at_ms, {task: added}, LastWrite(at_ms, workflow) if workflow else None)
