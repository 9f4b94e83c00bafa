"""How jobs come into memory: one of a kind under a dedupe key, in the place of another under a debounce key, or new."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.products.jobs.model.job import Accepted, JobState, NewJob
from gateway.products.jobs.transitions import transitions
from gateway.products.jobs.transitions.pieces import MemoryJob, MemoryPieces
from gateway.products.jobs.transitions.transitions import OpenBounds


class MemoryAcceptance:
    """Adds to the jobs, which belong to the store."""

    def __init__(self, jobs: dict[str, MemoryJob], pieces: MemoryPieces, bounds: OpenBounds) -> None:
        self._jobs = jobs
        self._pieces = pieces
        self._bounds = bounds
        self._dedupe: dict[bytes, tuple[str, bytes, float]] = {}
        """The job that a key belongs to, the fingerprint of its payload, and until when."""
        self._debounce: dict[bytes, str] = {}

    def accept_all(self, jobs: Sequence[NewJob], now: float) -> Sequence[Accepted]:
        """Takes jobs, all or none of them. Raises TooManyJobs."""
        unlike = transitions.unlike(jobs)
        fresh = [new for new in unlike if self._known(new, now) is None and self._scheduled(new) is None]
        opened = [kept.job for kept in self._jobs.values() if not kept.job.state.is_end]
        tenants = [job.tenant for job in (*opened, *(new.job for new in fresh)) if not job.parent]
        for tenant in {new.job.tenant for new in fresh if not new.job.parent}:
            if refusal := self._bounds.refusal(len(tenants), tenants.count(tenant)):
                raise refusal
        return [self.accept(new, now) for new in jobs]

    def accept(self, new: NewJob, now: float) -> Accepted:
        """Takes a job, whatever the bounds."""
        known = self._known(new, now)
        if known is not None:
            return known
        kept = self._scheduled(new)
        if kept is None:
            kept = self._jobs[new.job.id] = MemoryJob(transitions.taken_in(new.job, now))
        else:
            kept.job = transitions.debounced(kept.job, new, now)
            kept.debounced += 1
            kept.pieces.clear()
        kept.payload, kept.reads = new.payload, new.reads
        self._pieces.put(kept, new.first_piece, max(now, kept.job.run_at), now)
        if new.dedupe_key:
            self._dedupe[new.dedupe_key] = (kept.job.id, new.fingerprint, new.dedupe_until)
        if new.debounce_key:
            self._debounce[new.debounce_key] = kept.job.id
        return Accepted(kept.job, is_new=not kept.debounced, debounced=kept.debounced)

    def tick(self, now: float) -> None:
        """Forgets dedupe keys whose time is over."""
        self._dedupe = {key: known for key, known in self._dedupe.items() if known[2] > now}

    def forget_gone(self) -> None:
        """Forgets keys of jobs that are forgotten."""
        self._dedupe = {key: known for key, known in self._dedupe.items() if known[0] in self._jobs}
        self._debounce = {key: job_id for key, job_id in self._debounce.items() if job_id in self._jobs}

    def _known(self, new: NewJob, now: float) -> Accepted | None:
        """Returns the answer to a job that is there already."""
        job_id, fingerprint, until = self._dedupe.get(new.dedupe_key, ("", b"", 0.0))
        if until > now:
            return Accepted(self._jobs[job_id].job, is_new=False, is_conflict=fingerprint != new.fingerprint)
        there = self._jobs.get(new.job.id)
        return None if there is None else Accepted(there.job, is_new=False)

    def _scheduled(self, new: NewJob) -> MemoryJob | None:
        """Returns the scheduled job whose place the new one takes."""
        kept = self._jobs.get(self._debounce.get(new.debounce_key, ""))
        return kept if kept is not None and kept.job.state is JobState.SCHEDULED else None
