"""A batch of 10,000 lines whose gateway is killed a hundred times: the same as `e2e/test_batch_crash.py`, at full length."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.batch_kills import run_through_kills
from tests.e2e.batches import names
from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

LINES, KILLS = 10_000, 100
WINDOW = 200
"""Lines that one gateway has begun and not committed, at most."""


async def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path, report: Report) -> None:
    """Counts are exact; nothing whose result was kept is paid for again, by the provider's own record."""
    seed = int(os.environ.get("SEED", "1"))
    found = await run_through_kills(tmp_path, names(LINES), KILLS, seed)

    report(f"{found.sentence()} (seed {seed})")
    assert found.files is not None
    assert not found.files.errors
    assert "Traceback" not in found.said
    assert 0 < found.extra <= KILLS * WINDOW
