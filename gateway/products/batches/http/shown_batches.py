"""Batches as their pollers see them: what is shown is put together once for each look at the store, however many poll."""

from __future__ import annotations

from typing import NamedTuple

import orjson
from starlette.responses import Response

from gateway.core.http.writing.response import WholeResponse
from gateway.core.render import new_request_id
from gateway.products.batches.output import marks
from gateway.products.batches.output.batch_object import batch_object
from gateway.products.jobs.model.ids import derived_file_id
from gateway.products.jobs.model.job import Job

POLL_AFTER_MS = 5000
"""Told to those who poll a batch that is not at its end."""
MOST_KEPT = 500
"""Batches that are remembered: the problems of one may take 30 KB."""

Headers = list[tuple[bytes, bytes]]


class _Shown(NamedTuple):
    job: Job
    body: bytes
    headers: Headers
    files: Headers
    """The ids of its files to be, which never change."""


class ShownBatches:
    """Makes responses of batches."""

    def __init__(self) -> None:
        self._last: dict[str, _Shown] = {}

    def response(self, job: Job) -> Response:
        """Returns the batch as JSON, and in headers what OpenAI's object has no field for."""
        shown = self._last.get(job.id)
        if shown is None or shown.job is not job:
            if len(self._last) >= MOST_KEPT:
                self._last.clear()
            files = _files_of(job) if shown is None else shown.files
            shown = self._last[job.id] = _Shown(job, orjson.dumps(batch_object(job)), _headers_of(job, files), files)
        return WholeResponse(shown.body, 200, [*shown.headers, (b"x-request-id", new_request_id().encode())])


def _files_of(job: Job) -> Headers:
    return [
        (b"x-gateway-output-file-id", derived_file_id(job.id, "output").encode()),
        (b"x-gateway-error-file-id", derived_file_id(job.id, "errors").encode()),
    ]


def _headers_of(job: Job, files: Headers) -> Headers:
    headers: Headers = [(b"content-type", b"application/json")]
    if not job.state.is_end:
        headers += [(b"openai-poll-after-ms", b"%d" % POLL_AFTER_MS), *files]
        paused = "operator" if job.is_paused else job.marks.get(marks.BRAKED_BY, "")
        if paused:
            headers.append((b"x-gateway-paused", paused.encode()))
    return headers
