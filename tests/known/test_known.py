"""The case that jobs are for, in small: what `python -m tests.known` measures in full."""

from __future__ import annotations

from tests.known.__main__ import rows
from tests.known.cases import DONE, documents


async def test_documents_in_stages_are_all_done_for_what_they_would_have_cost() -> None:
    """Straight a third of them is lost; as jobs none is, and next to nothing is paid for twice."""
    case = await documents(seed=3, count=40)
    straight, _, _, jobs = case.sides

    assert straight.percent < 90
    assert set(straight.ends) <= {DONE, "503 server_is_overloaded", "500 without a code", "APIConnectionError"}
    assert jobs.done == jobs.of == 40
    assert jobs.paid <= 160 * 1.05  # answers that broke off: of few calls one more is much
    assert rows(case).count("\n") == 3
