"""A pipeline of five stages with a fan-out of a thousand: its money, and what kill -9 costs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.run_kills import run_through_kills
from tests.soak.conftest import Report
from tests.support.redis_servers import RedisServer

pytestmark = pytest.mark.soak

CLAUSES, AT_ONCE = 1_000, 50
SEED = int(os.environ.get("SEED", "1"))


async def test_a_thousand_items_cost_what_the_providers_ledger_says(tmp_path: Path, report: Report) -> None:
    """Undisturbed, a tenth of the items fails and is tolerated, the output is repaired, and nothing is paid for twice."""
    found = await run_through_kills(tmp_path, CLAUSES, kills=0, seed=SEED)

    report(found.sentence())
    assert found.steps == "extract:1 language:1 clause:900/1000 summary:1(repaired) report:1"
    assert found.paid == found.least
    assert found.job["cost_usd"] == pytest.approx(found.paid_usd, abs=1e-6)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_kills_cost_what_was_in_flight(tmp_path: Path, report: Report, store: str, a_redis: RedisServer) -> None:
    """Killed ten times, the run ends once; a kill costs the items that were under way or not yet committed, at most."""
    where = {"store": a_redis.url, "files": f"{tmp_path}/blobs", "accept": "fast"} if store == "redis" else {}
    found = await run_through_kills(tmp_path, CLAUSES, kills=10, seed=SEED, jobs=where)

    report(f"{store}: {found.sentence()} (seed {SEED})")
    assert found.answer["choices"][0]["message"]["content"] == "done: report short: 100 of 1000"
    assert "Traceback" not in found.said
    assert found.paid <= found.least + 10 * (2 * AT_ONCE + 1)
