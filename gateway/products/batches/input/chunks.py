"""How a batch is divided: chunks are what workers claim, small enough that batches and tenants take turns."""

from __future__ import annotations

from gateway.products.jobs.model.lines import ChunkPlan
from gateway.products.jobs.rules import BatchRules

CHUNKS = 64
"""A batch of middling size has so many."""
LEAST_LINES, MOST_LINES = 16, 256
"""Of a chunk: fewer would cost more than they save, and more would keep others waiting."""


def plan_chunks(total: int, rules: BatchRules) -> ChunkPlan:
    """Returns the division of `total` lines: clamp(total / 64, 16, 256) in each chunk, the last one what is left.

    With a bound of lines at a time there is one chunk at a time, and it is as long as may be: its end waits for its last line.
    """
    if rules.most_at_once is not None:
        return ChunkPlan(total, max(MOST_LINES, rules.most_at_once), 1)
    return ChunkPlan(total, min(max(total // CHUNKS, LEAST_LINES), MOST_LINES), rules.parallel_chunks)


def lines_of(plan: ChunkPlan, chunk: int) -> range:
    """Returns the numbers of a chunk's lines, from 0."""
    start = chunk * plan.lines_per_chunk
    return range(start, min(start + plan.lines_per_chunk, plan.total))
