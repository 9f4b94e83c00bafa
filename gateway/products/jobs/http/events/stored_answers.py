"""The headers of jobs' answers: of a 202, and of an answer that is given again."""

from __future__ import annotations

from math import ceil

from gateway.products.jobs.http.events.job_object import POLL_AFTER_S
from gateway.products.jobs.model.job import Job, StoredAnswer


def accepted_headers(job: Job) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a 202: where the job is, and when to look."""
    return [
        (b"content-type", b"application/json"),
        (b"location", b"/v1/jobs/%b" % job.id.encode()),
        (b"retry-after", b"%d" % ceil(POLL_AFTER_S)),
        (b"openai-poll-after-ms", b"%d" % (POLL_AFTER_S * 1000)),
        (b"x-gateway-job", job.id.encode()),
        (b"x-request-id", job.id.encode()),
    ]


def stored_headers(job: Job, answer: StoredAnswer) -> list[tuple[bytes, bytes]]:
    """Returns the headers with which a stored answer is given again."""
    own = (b"x-gateway-job", job.id.encode()), (b"x-request-id", job.id.encode())
    return [*((name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers), *own]
