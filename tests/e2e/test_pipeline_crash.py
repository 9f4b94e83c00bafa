"""Runs of pipelines in real processes: five stages, money by the provider's own ledger, and kill -9 on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import five_stages
from tests.e2e.run_kills import run_through_kills
from tests.e2e.speaking import CALL_USD


async def test_five_stages_cost_what_the_providers_ledger_says(tmp_path: Path) -> None:
    found = await run_through_kills(tmp_path, 50, kills=0, seed=1)

    assert found.job["status"] == "succeeded", found.job
    assert found.answer["choices"][0]["message"]["content"] == "done: report short: 5 of 50"
    assert found.steps == "extract:1 language:1 clause:45/50 summary:1(repaired) report:1"
    assert found.paid == found.least
    assert found.job["cost_usd"] == pytest.approx(found.paid_usd, abs=1e-7)


async def test_a_fan_out_stops_where_its_run_has_cost_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than what was in flight is paid beyond it, and the run says why it has failed."""
    monkeypatch.setitem(five_stages.PIPELINE, "usd_per_run", 20 * CALL_USD)
    found = await run_through_kills(tmp_path, 150, kills=0, seed=1)

    assert (found.job["status"], found.job["last_error"]["class"]) == ("failed", "run_budget_exceeded"), found.job
    assert found.answer["error"]["code"] == "run_budget_exceeded"
    assert found.paid <= 20 + 50, found.sentence()


async def test_five_stages_survive_kill_9(tmp_path: Path) -> None:
    found = await run_through_kills(tmp_path, 30, kills=3, seed=7)

    assert "choices" in found.answer, found.answer
    assert found.answer["choices"][0]["message"]["content"] == "done: report short: 3 of 30"
    assert "Traceback" not in found.said
    assert found.paid <= found.least + 3 * 31, found.sentence()  # what was in flight at a kill
    checked_usd = 2 * CALL_USD  # answers of `extract` that its schema refused: of the run they are wasted
    assert found.run["cost_usd"] > found.job["cost_usd"] - checked_usd - CALL_USD / 2, found.sentence()
    together_usd = found.run["cost_usd"] + found.run["wasted_usd"]
    if found.paid > found.least:  # on a slow machine a kill may meet nothing that is in flight
        assert found.run["wasted_usd"] > 0, found.sentence()
    assert together_usd == pytest.approx(found.paid_usd, rel=0.5), found.sentence()  # what is wasted is estimated
