"""The metrics of jobs, beside those of calls."""

from __future__ import annotations

from gateway.core.types import Usage
from gateway.products.batches.output import LineIdentity, answered_line
from gateway.products.jobs.metrics import JobMeter
from tests.core.test_telemetry import make, scrape


async def test_lines_at_a_providers_own_batch_are_estimated_where_it_reports_nothing() -> None:
    telemetry, _, _ = make()
    who = [LineIdentity(number, f"line_{number}", f"c{number}") for number in range(2)]
    lines = [answered_line(one, 200, "r", b"{}", Usage(10, 5), 0.5) for one in who]

    JobMeter(telemetry.metrics).paid("m", "b/m", "web", lines, {1})

    assert telemetry.costs() == {("m", "web"): (1.0, 0.5, 0)}
    assert scrape(telemetry)["gateway_estimated_usage_total[('model', 'm'), ('target', 'b/m')]"] == 1
