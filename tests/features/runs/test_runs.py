"""Runs add up the same in any order and over any number of replicas, and end as their workflow says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import reduce
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.runs.rules import (
    MORE_TASKS,
    MOST_TASKS,
    PER_USD,
    RunChange,
    RunOutcome,
    WorkflowRules,
    begun,
    count_once,
    decode_run,
    encode_run,
    is_rescued,
    label_change,
    merged,
    outcome_of,
)
from tests.rows import rows
from tests.support.run_changes import one_call

NOW = 1_763_800_000.0
TASKS = ("extract", "check", "summarise", "")
times = st.floats(NOW, NOW + 60, allow_nan=False)
calls = st.builds(
    one_call,
    st.sampled_from(TASKS),
    times,
    error_class=st.sampled_from(("", "", "server_error", "timeout")),
    attempts=st.integers(0, 5),
    bad_attempts=st.integers(0, 4),
    is_cached=st.booleans(),
    cost_usd=st.none() | st.floats(0, 3, allow_nan=False),
    wasted_usd=st.floats(0, 1, allow_nan=False),
    saved_usd=st.none() | st.floats(0, 1, allow_nan=False),
    tokens=st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)),
    workflow=st.sampled_from(("", "invoice", "letters")),
)
words = st.builds(
    label_change,
    times,
    workflow=st.sampled_from(("", "invoice")),
    outcome=st.sampled_from((None, "succeeded", "failed")),
    usable=st.sampled_from((None, True, False)),
    value_usd=st.none() | st.floats(0, 99, allow_nan=False),
)
changes = st.lists(calls | words, min_size=1, max_size=30)


def whole(parts: Sequence[RunChange]) -> RunChange:
    return reduce(add, parts)


@settings(deadline=None)
@given(changes, st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_matters_and_four_replicas_know_what_one_would(
    parts: list[RunChange], shuffle: random.Random
) -> None:
    alone = reduce(merged, parts[1:], begun("t", "r", parts[0]))
    mixed = list(parts)
    shuffle.shuffle(mixed)
    replicas: list[list[RunChange]] = [[], [], [], []]
    for part in mixed:
        shuffle.choice(replicas).append(part)
    told_by = [decode_run(encode_run(begun("t", "r", whole(heard)))).so_far for heard in replicas if heard]
    together = reduce(merged, told_by[1:], begun("t", "r", told_by[0]))
    assert together == alone
    assert decode_run(encode_run(together)) == alone
    assert alone.so_far.total.calls == sum(part.total.calls for part in parts)


@settings(max_examples=20, deadline=None)
@given(st.permutations([f"t{n:03d}" for n in range(2 * MOST_TASKS)]))
def test_a_run_of_very_many_tasks_stays_bounded_whatever_their_order(names: list[str]) -> None:
    one = whole([one_call(name, NOW, cost_usd=0.001) for name in names])
    other = whole([whole([one_call(name, NOW, cost_usd=0.001) for name in names[at::3]]) for at in range(3)])
    assert one == other
    assert len(one.tasks) == MOST_TASKS
    assert MORE_TASKS in one.tasks
    assert one.total.cost == len(names) * PER_USD // 1000


def test_a_run_of_twenty_tasks_fits_in_1500_bytes() -> None:
    run = whole(
        [
            one_call(
                f"summarise-{n}",
                NOW + 7 * n,
                attempts=3,
                bad_attempts=1,
                error_class="timeout" if n % 5 == 4 else "",
                cost_usd=0.0123456,
                wasted_usd=0.00012,
                tokens=(4321, 987),
                workflow="invoice",
            )
            for n in range(20)
        ]
    )
    record = begun(
        "team", "2026-11-22/4711", run + label_change(NOW + 200, outcome="succeeded", usable=True, value_usd=3.2)
    )
    assert len(encode_run(record)) <= 1500


@rows("raw", [b"", b"null", b"[]", b"[1,2]", b"[1,2,[]]", b'["t","r","","",[0,1,{"a":[1]}]]', b"{}"])
def test_what_is_no_run_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode_run(raw)


INVOICE = WorkflowRules("invoice", ("extract", "check"), deadline_s=600.0)
GOOD, BAD = "", "server_error"


@rows(
    ("rules", "said", "after_s", "outcome"),
    [
        (INVOICE, [("extract", GOOD)], 10, "running"),
        (INVOICE, [("extract", BAD)], 10, "running"),
        (INVOICE, [("extract", GOOD), ("check", GOOD)], 10, "succeeded"),
        (INVOICE, [("extract", BAD), ("extract", GOOD), ("check", GOOD)], 10, "succeeded"),
        (INVOICE, [("check", GOOD), ("check", BAD)], 301, "failed"),
        (INVOICE, [("extract", GOOD)], 301, "abandoned"),
        (INVOICE, [], 301, "abandoned"),
        (WorkflowRules("w", ("a",), idle_s=9000.0, deadline_s=60.0), [("b", BAD)], 61, "failed"),
        (WorkflowRules("w", ends="idle"), [("a", GOOD), ("b", GOOD)], 10, "running"),
        (WorkflowRules("w", ends="idle"), [("a", GOOD), ("b", GOOD)], 310, "succeeded"),
        (WorkflowRules("w", ends="idle"), [("a", GOOD), ("b", BAD)], 310, "failed"),
        (WorkflowRules("w", ("a",), ends="told"), [("a", GOOD)], 10, "running"),
        (WorkflowRules("w", ("a",), ends="told"), [("a", GOOD)], 310, "abandoned"),
        (None, [("a", GOOD)], 10, "running"),
        (None, [("a", GOOD)], 310, "unknown"),
    ],
)
def test_the_outcome_is_read_from_the_last_word_on_each_task(
    rules: WorkflowRules | None, said: list[tuple[str, str]], after_s: float, outcome: str
) -> None:
    parts = [label_change(NOW), *(one_call(task, NOW + n, error_class=bad) for n, (task, bad) in enumerate(said))]
    record = begun("t", "r", whole(parts))
    assert outcome_of(record, rules, NOW + after_s) == outcome


def test_a_told_outcome_beats_what_the_calls_show_and_the_last_word_wins() -> None:
    run = begun("t", "r", one_call("extract", NOW) + one_call("check", NOW + 1, bad_attempts=1, attempts=2))
    run = merged(run, label_change(NOW + 9, outcome="succeeded"))
    run = merged(run, label_change(NOW + 3, outcome="failed"))
    assert outcome_of(run, INVOICE, NOW + 10) is RunOutcome.SUCCEEDED
    assert is_rescued(run, RunOutcome.SUCCEEDED)
    assert outcome_of(merged(run, label_change(NOW + 11, outcome="failed")), None, NOW + 12) is RunOutcome.FAILED


def test_a_run_is_counted_once_and_again_only_when_its_outcome_changes() -> None:
    run = begun("t", "r", one_call("check", NOW))
    assert count_once(run, RunOutcome.RUNNING) is None
    counted = count_once(run, RunOutcome.SUCCEEDED)
    assert counted is not None
    assert count_once(counted, RunOutcome.SUCCEEDED) is None
    assert count_once(counted, RunOutcome.FAILED) is not None
