"""A hundred thousand bodies, known, broken and random: each has a class, and none takes a millisecond to get it."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from math import inf

import pytest

from gateway.core.types import ErrorClass
from tests.soak.conftest import Report
from tests.support.error_rows import ROWS, WALL
from tests.support.mutations import mutated
from tests.support.tables import table_of

pytestmark = pytest.mark.soak

BODIES = 100_000
LIMIT_S = 0.001
TRIES = 5
"""A slow one is measured again: on a shared machine any call may be interrupted."""


def _least_s(diagnose: Callable[[], object]) -> float:
    """The CPU time of a call; of several where the first was slow."""
    least_s = inf
    for _ in range(TRIES):
        started = time.thread_time()
        diagnose()
        least_s = min(least_s, time.thread_time() - started)
        if least_s < LIMIT_S:
            break
    return least_s


def test_no_body_takes_over_a_millisecond(report: Report) -> None:
    """CPU time of the thread, with the collector off: what the diagnosis itself costs."""
    draw = random.Random(7)
    took: list[float] = []
    gc.disable()
    try:
        for number in range(BODIES):
            row = ROWS[number % len(ROWS)]
            body = row.body if number < len(ROWS) else mutated(row.body, draw)
            table = table_of(row.kind)
            assert (
                table.diagnose(row.phase, row.status, row.headers, body, WALL).error_class is not ErrorClass.UNKNOWN
                or 300 <= row.status < 400
            )
            took.append(_least_s(lambda: table.diagnose(row.phase, row.status, row.headers, body, WALL)))  # noqa: B023  # it is called here
            if number % 10_000 == 0:
                gc.collect()
    finally:
        gc.enable()

    took.sort()
    report(
        f"{BODIES} bodies: median {took[BODIES // 2] * 1e6:.0f} µs, "
        f"p99.9 {took[BODIES * 999 // 1000] * 1e6:.0f} µs, longest {took[-1] * 1e6:.0f} µs"
    )
    assert took[-1] < LIMIT_S
