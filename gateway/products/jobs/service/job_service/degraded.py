"""Calls with an `Idempotency-Key` that became jobs because there was no room: sent again, they find the job.

The ids of such jobs follow from the owner and the key, so a call finds its job wherever, and after whatever, it is sent again.
A job that came to nothing, or is older than keys are remembered, stands for its key no more: the next one takes its place.
"""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.errors import AdmissionDenied, KeyReused, NotFound
from gateway.features.reuse.rules.keys.keys import record_key
from gateway.products.jobs.model.ids import derived_call_id
from gateway.products.jobs.model.job import Job, StoredAnswer
from gateway.products.jobs.service.job_request import FINGERPRINT, JobOptions
from gateway.products.jobs.service.job_service.job_service import JobService, fingerprint_of

MOST_JOBS = 10
"""Of one key, one after the other; then the call is refused as if it could be no job."""


class DegradedCalls:
    """Takes and finds the jobs of calls that were refused."""

    def __init__(self, jobs: JobService) -> None:
        self._jobs = jobs

    async def find(self, call: Call) -> tuple[Job, StoredAnswer | None] | None:
        """Returns the job that stands for the call's key, with its answer if it has ended; None: there is none.

        One that has not is sent once more: its first sender may have been told that nobody knows whether it was taken, and
        then it is undone, unless somebody else wants it. Raises KeyReused where it was another request, and as `accept`.
        """
        if call.idempotency_key is None:
            return None
        record = record_key(call, call.idempotency_key)
        for number in range(MOST_JOBS):
            try:
                job, answer = await self._jobs.answer(derived_call_id(record, number), call.tenant)
            except NotFound:
                return None
            if self._jobs.stands(job):
                if job.about.get(FINGERPRINT) != fingerprint_of(call):
                    raise KeyReused(
                        "This Idempotency-Key was used for another request, which has become a job; use a new key for "
                        "each request, and the same one to repeat it.",
                        param="Idempotency-Key",
                    )
                if answer is None:
                    job = (await self._jobs.accept(call, JobOptions(), job.id, dedupes=False)).job
                return job, answer
        return None

    async def accept(self, call: Call, refusal: AdmissionDenied) -> Job:
        """Returns the job that the call becomes, or has become under its key. Raises as `JobService.accept` does.

        Raises the refusal where jobs under this key have come to nothing too often.
        """
        if call.idempotency_key is None:
            return (await self._jobs.accept(call, JobOptions())).job
        record = record_key(call, call.idempotency_key)
        for number in range(MOST_JOBS):
            # Only the first also meets what the caller has made a job of by itself.
            job_id = derived_call_id(record, number)
            job = (await self._jobs.accept(call, JobOptions(), job_id, dedupes=number == 0)).job
            if self._jobs.stands(job):
                return job
        raise refusal
