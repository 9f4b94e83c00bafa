"""Runs as JSON, to be kept: lists instead of objects, and times relative to the run's first, so that one of 20 tasks fits in
1.5 kB."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.features.runs.rules.run import RunChange, RunRecord, Said, TaskSum, TaskWord


def encode_run(record: RunRecord) -> bytes:
    """Returns a record in bytes."""
    return orjson.dumps([record.tenant, record.run, record.counted, record.used, _change(record.so_far)])


def decode_run(raw: bytes) -> RunRecord:
    """Returns the record. Raises ValueError for anything that is none."""
    try:
        tenant, run, counted, used, change = orjson.loads(raw)
        return RunRecord(tenant, run, _read_change(change), counted, used)
    except (AttributeError, LookupError, TypeError) as broken:
        raise ValueError("this is no record of a run") from broken


def _change(change: RunChange) -> list[Any]:
    first_ms = change.first_ms
    words = (change.workflow, change.outcome, change.usable, change.value_usd)
    return [
        first_ms,
        change.last_ms - first_ms,
        {name: _task(task, first_ms) for name, task in change.tasks.items()},
        *([] if not any(words) else [_said(word, first_ms) for word in words]),
    ]


def _task(task: TaskSum, first_ms: int) -> list[Any]:
    numbers = [
        *(task.calls, task.bad_calls, task.attempts, task.bad_attempts),
        [task.cached, task.replayed] if task.replayed else task.cached,
        *(task.cost, task.wasted, task.saved, task.input_tokens, task.output_tokens),
    ]
    last = task.last
    if last is None:
        return numbers
    return [*numbers, last.at_ms - first_ms, *([] if last.is_ok else [last.error_class])]


def _said(said: Said[Any] | None, first_ms: int) -> list[Any] | None:
    return None if said is None else [said.at_ms - first_ms, said.word]


def _read_change(told: list[Any]) -> RunChange:
    first_ms, span_ms, tasks, *words = told
    workflow, outcome, usable, value_usd = (_read_said(word, first_ms) for word in words or [None] * 4)
    return RunChange(
        first_ms,
        first_ms + span_ms,
        {name: _read_task(task, first_ms) for name, task in tasks.items()},
        *(workflow, outcome, usable, value_usd),
    )


def _read_task(task: list[Any], first_ms: int) -> TaskSum:
    if not 10 <= len(task) <= 12:
        raise ValueError("this is no sum of a task")
    last = None
    if len(task) > 10:
        last = TaskWord(first_ms + task[10], len(task) == 11, *task[11:])
    calls, bad_calls, attempts, bad_attempts, served, *rest = task[:10]
    cost, wasted, saved, input_tokens, output_tokens = rest
    cached, replayed = served if isinstance(served, list) else (served, 0)
    return TaskSum(
        *(calls, bad_calls, attempts, bad_attempts, cached),
        *(cost, wasted, saved, input_tokens, output_tokens),
        *(last, replayed),
    )


def _read_said(said: list[Any] | None, first_ms: int) -> Said[Any] | None:
    return None if said is None else Said(first_ms + said[0], said[1])
