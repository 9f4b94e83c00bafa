"""Removes blobs that nobody knows: what a process leaves behind that dies between a blob and the record of it.

Only where the blobs are this store's alone, for another store's look just like them: once a second one has asked, neither
removes any. Only what is old, for a record may be on its way; a few at a time. What is known, in whatever state, is left to
`JobCleaning`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

from gateway.core.clock import Clock
from gateway.products.batches.output.marks import batch_of_blob
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore

EVERY_S = 60.0
"""Between two steps."""
AT_ONCE = 500
"""Blobs that one step looks at."""
PASS_EVERY_S = 3600.0
"""Between two passes over all blobs."""
LEAST_AGE_S = 2 * PASS_EVERY_S
"""Longer than from one pass to the next: by then each store that has blobs there has asked whose they are."""
log = logging.getLogger("gateway.jobs")


class BlobSweep:
    """Goes through all blobs, again and again."""

    def __init__(self, store: JobStore, blobs: Blobs, clock: Clock) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._pass: AsyncIterator[Sequence[str]] | None = None

    async def run_always(self) -> None:
        """Sweeps a step a minute until it is cancelled, and rests after each pass."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                while not await self.step():
                    await self._clock.sleep(EVERY_S)
            except JobsUnavailable:  # the log says why
                self._pass = None
                continue
            except Exception:
                log.exception("blobs that nobody knows could not be looked for")
                self._pass = None
            await self._clock.sleep(PASS_EVERY_S)

    async def step(self) -> bool:
        """Looks at the next blobs, and removes those that nobody knows; returns whether the pass is over.

        Raises JobsUnavailable.
        """
        if not await self._blobs.belong_to(await self._store.identity()):
            self._pass = None
            return True
        if self._pass is None:
            self._pass = self._blobs.old_names(LEAST_AGE_S, AT_ONCE)
        names = await anext(self._pass, None)
        if names is None:
            self._pass = None
            return True
        unknown = await self._unknown(names)
        if unknown:
            await self._blobs.remove(unknown)
            log.warning(
                "%d files of a process that was killed were removed: no job or file refers to them", len(unknown)
            )
        return False

    async def _unknown(self, names: Sequence[str]) -> list[str]:
        used = await self._store.files.used(names)
        batches = {name: batch_of_blob(name) for name in names}
        running = {batch for batch in {*batches.values()} if batch and await self._runs(batch)}
        return [
            name
            for name in names
            if name not in used and (batches[name] not in running if batches[name] else name.startswith("files/"))
        ]

    async def _runs(self, job_id: str) -> bool:
        job = await self._store.find(job_id, None)
        return job is not None and not job.state.is_end
