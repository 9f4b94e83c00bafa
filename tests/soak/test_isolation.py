"""A hundred thousand probes for the answers of others, with every layer of the cache on."""

from __future__ import annotations

import random

import pytest

from tests.features.reuse.test_isolation import Probing
from tests.soak.conftest import Report

PROBES = 100_000
PER_ROUND = 4
PER_SEED = 10_000

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("seed", range(100, 100 + PROBES // PER_SEED))
async def test_random_probes_find_nothing_of_anybody_else(seed: int, report: Report) -> None:
    """Same prompts and similar ones, streamed and whole, keyed and not, at the same time and later, fresh and stale."""
    probing = Probing(random.Random(seed))

    await probing.run(PER_SEED // PER_ROUND, PER_ROUND)

    found = dict(sorted(probing.results.items()))
    report(f"seed {seed}, {PER_SEED:,} probes, 0 answers of others: {found}")
    assert probing.results["own hit"] > PER_SEED / 10
    assert not probing.results["idempotency_key_reused"]
