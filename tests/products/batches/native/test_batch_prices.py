"""What a line costs at a provider's own Batch API."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core.snapshot import Provider, Rates
from gateway.core.types import Usage
from gateway.dialects.known import price_finder
from gateway.products.batches.native.lines import batch_usd
from tests.rows import rows

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
GEMINI = price_finder(Provider("g", "gemini", "https://generativelanguage.googleapis.com/v1beta"), lambda: NOW)
LINE = Usage(2000, 1000, 1000)


@rows(
    "rates, factor, usd",
    [
        (GEMINI("gemini-2.5-pro"), None, 1000 * 0.625e-6 + 1000 * 0.125e-6 + 1000 * 5e-6),
        (GEMINI("gemini-2.5-pro"), 0.5, (1000 * 1.25e-6 + 1000 * 0.125e-6 + 1000 * 10e-6) * 0.5),
        (Rates(2.0, 4.0, 1.0), None, 3500.0),
        (Rates(2.0, 4.0, 1.0), 0.1, 700.0),
        (Rates(2.0, 4.0, 1.0, by_tier={"batch": Rates(1.0, 3.0, 1.0)}), None, 5000.0),
        (None, None, None),
    ],
    ids=[
        "of the list",
        "as the operator says",
        "half of what is stated",
        "a part of it",
        "as it is stated",
        "unpriced",
    ],
)
def test_a_line_costs_what_batches_cost(rates: Rates | None, factor: float | None, usd: float | None) -> None:
    """Gemini's cache reads cost as much as elsewhere; what the operator says goes before the list."""
    assert batch_usd(rates, LINE, factor) == (None if usd is None else pytest.approx(usd))


def test_a_line_is_not_halved_twice() -> None:
    """Anthropic's usage says itself that it is of a batch."""
    rates = Rates(2.0, 4.0, 1.0, by_tier={"batch": Rates(1.0, 2.0, 0.5)})

    assert batch_usd(rates, Usage(1, 1, tier="batch"), 0.5) == batch_usd(rates, Usage(1, 1, tier="batch"), None) == 3.0
