"""When results of lines are committed: together, on a beat that all chunks share, and at once where nothing else runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.products.batches.chunk import BEAT_S
from gateway.products.jobs.model import ClaimedWork, LineResult, WriteResult
from gateway.products.jobs.rules import BatchRules, JobRules, SegmentRules
from tests.support.stage import Script, Stage
from tests.support.virtual import START_S, LoopClock, run

RULES = JobRules(segments=(SegmentRules("all", concurrency=10),), batches=BatchRules(window=100))


async def commits_of(clock: LoopClock, lines: int, script: Script) -> list[tuple[float, int]]:
    """Runs a batch; returns when each of its commits was made, in seconds from the start, and of how many lines."""
    stage = Stage(clock, rules=RULES, script=script)
    commit, seen = stage.store.commit, list[tuple[float, int]]()

    async def noted(work: ClaimedWork, results: Sequence[LineResult], *rest: Any) -> WriteResult:
        seen.append((clock.monotonic() - START_S, len(results)))
        return await commit(work, results, *rest)

    kept: Any = stage.store
    kept.commit = noted
    stage.worker.start()
    await stage.accept_batch(lines)
    job = await stage.end_of("batch_1")
    assert job.tally.completed == lines
    await stage.worker.aclose()
    return seen


def test_what_ends_between_two_beats_is_committed_together() -> None:
    """Two chunks whose lines end at a hundred times of their own, and each chunk's last results at once."""

    async def story(clock: LoopClock) -> None:
        seen = await commits_of(clock, 32, lambda request, _try: 0.101 + int(request.id[-6:]) * 0.0031)

        off_beat = [at for at, _ in seen if min(at % BEAT_S, BEAT_S - at % BEAT_S) > 1e-6]
        assert sum(lines for _, lines in seen) == 32
        assert len(seen) <= 8, seen
        assert len(off_beat) == 2, seen

    run(story)


def test_a_lines_result_does_not_wait_where_nothing_else_runs() -> None:
    """The only line of a batch is committed as it ends."""

    async def story(clock: LoopClock) -> None:
        ((at, lines),) = await commits_of(clock, 1, lambda _request, _try: 0.111)

        assert lines == 1
        assert at == pytest.approx(0.111, abs=1e-6)

    run(story)


def test_a_commit_that_is_a_defect_is_no_reason_to_pay_again_and_again() -> None:
    """The chunk rests, as after any other defect, instead of running its lines over and over."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=RULES)
        commit = stage.store.commit

        async def defective(work: ClaimedWork, results: Sequence[LineResult], *rest: Any) -> WriteResult:
            if clock.monotonic() - START_S < 5:
                raise ValueError
            return await commit(work, results, *rest)

        kept: Any = stage.store
        kept.commit = defective
        stage.worker.start()
        await stage.accept_batch(3)
        job = await stage.end_of("batch_1")

        assert (job.tally.completed, len(stage.tries)) == (3, 6)
        await stage.worker.aclose()

    run(story)
