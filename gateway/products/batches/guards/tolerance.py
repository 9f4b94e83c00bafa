"""How many lines of a batch may fail: once more have, the rest of it would be paid for in vain, and it is stopped.

What is judged here is what this claim knows: the failures that were counted when it began, and its own since. Chunks that run
beside it may know of more, and whoever reads the batch at its end judges by all.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.products.jobs.model.job import JobFlag, JobState, WriteResult
from gateway.products.jobs.model.lines import LineResult
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork
from gateway.products.pipelines.rules.carried import BROKEN, MOST_FAILED
from gateway.products.pipelines.rules.states import RUN_BUDGET_EXCEEDED

MOST_EXAMPLE_BYTES = 4_000
"""Of the line that is kept as an example; a longer one is not."""

_UNPAID = RUN_BUDGET_EXCEEDED.encode()


class Tolerance:
    """Counts the failures of one claimed chunk."""

    def __init__(self, store: JobStore, running: RunningWork) -> None:
        self._store = store
        self._running = running
        self._most: int | None = running.work.job.about.get(MOST_FAILED)
        self._failed = running.work.job.tally.failed

    async def heed(self, results: Sequence[LineResult]) -> None:
        """Stops the batch where more have failed than may. Raises JobsUnavailable."""
        if self._most is None:
            return
        # what is refused for want of the run's money costs nothing, and the end tells why
        failed = [result for result in results if result.is_failed and _UNPAID not in result.text]
        self._failed += len(failed)
        if not failed or self._failed <= self._most or self._running.ends_as is not None:
            return
        store, work = self._store, self._running.work
        example = failed[-1].text if len(failed[-1].text) <= MOST_EXAMPLE_BYTES else b""
        note = {BROKEN: example.decode(errors="replace")}
        if await self._running.write(lambda: store.note(work, note)):
            await store.flag(work.job.id, work.job.tenant, JobFlag.CANCEL)
            self._running.note(WriteResult(is_ours=True, ends_as=JobState.CANCELLED))
