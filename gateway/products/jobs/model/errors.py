"""How requests about jobs, batches and files are refused, in OpenAI's shape."""

from __future__ import annotations

from gateway.core.errors import AdmissionDenied, CallerFault, GatewayError


class JobsUnavailable(GatewayError):
    """Jobs cannot be kept now: the message says what is wrong for everybody, the log has the remedy. Plain calls go on."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "jobs_unavailable"


class OutcomeUnknown(JobsUnavailable):
    """Nobody answered whether it was done: the message says what may be there, and how to ask for it again."""


class JobsOff(CallerFault):
    """This gateway takes no jobs."""

    status = 404
    code = "jobs_off"


class TooManyJobs(AdmissionDenied):
    """The tenant, or the gateway, has as many open jobs as it may."""

    status = 429
    type = "rate_limit_error"
    retry_after_s = 30.0
    code = "too_many_jobs"


class FileTooLarge(CallerFault):
    """The uploaded file is over the cap."""

    status = 413
    code = "file_too_large"


class TenantStorageFull(CallerFault):
    """The tenant's files take all the room they may; removing some makes room."""

    status = 413
    code = "tenant_storage_full"


class DedupeConflict(CallerFault):
    """The dedupe key belongs to a job with another payload."""

    status = 409
    code = "dedupe_conflict"


class BatchNotCancellable(CallerFault):
    """The batch is at its end."""

    status = 409
    code = "batch_not_cancellable"


class JobNeedsProviderKey(CallerFault):
    """The job could only run with the caller's own credential, which is never stored."""

    code = "job_needs_provider_key"


class NoResult(CallerFault):
    """The job has ended without an answer to give."""

    status = 409
    code = "job_without_result"


class TooManyReaders(GatewayError):
    """As many streams of job events are open as may be."""

    status = 429
    type = "rate_limit_error"
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "too_many_event_readers"
