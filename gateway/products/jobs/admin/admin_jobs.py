"""Serves `/admin/jobs`: what everybody has under way, and what is to stand still until an operator has it go on.

Behind the admin key. It must not know how jobs run: `JobService` tells of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.operations import MOST_BYTES, require_admin
from gateway.core.errors import InvalidRequest
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies
from gateway.products.jobs.http.events import show_job
from gateway.products.jobs.model import JobFlag, JobQuery, JobsOff, list_page
from gateway.products.jobs.service.job_service import JobService
from gateway.products.routes import limit_of, statuses_of
from gateway.products.work import JobWork
from gateway.routes import json_response

MOST_IDS = 100
USUALLY_LISTED, MOST_LISTED = 20, 100
EXAMPLE = '{"ids": ["batch_gw…"]}'
FLAGS: Mapping[str, JobFlag] = {"pause": JobFlag.PAUSE, "resume": JobFlag.RESUME}
Jobs = TypeVar("Jobs", JobService, JobWork)
log = logging.getLogger("gateway.admin")


def job_admin_routes(policies: Policies, work: JobWork | None) -> list[BaseRoute]:
    """Returns `GET /admin/jobs`, `POST /admin/jobs/pause`, `resume` and `retry`; None: this gateway takes no jobs."""
    jobs = None if work is None else work.service

    async def list_jobs(request: Request) -> Response:
        require_admin(policies, request)
        limit, after = limit_of(request, USUALLY_LISTED, MOST_LISTED), request.query_params.get("after")
        page = await _on(jobs).list_jobs(JobQuery(None, None, statuses_of(request), after, limit))
        shown = [{**show_job(job), "tenant": job.tenant, "key": job.key} for job in page.jobs]
        return json_response(list_page(shown, has_more=page.has_more))

    def flag(name: str) -> Any:
        async def act(request: Request) -> Response:
            require_admin(policies, request)
            service, ids = _on(jobs), _ids(await read_object(request, policies.current.server, MOST_BYTES, EXAMPLE))
            results: dict[str, list[str]] = {"done": [], "ended": [], "unknown": []}
            for job_id in ids:
                job = await service.flag(job_id, FLAGS[name])
                results["unknown" if job is None else "ended" if job.state.is_end else "done"].append(job_id)
            log.warning("admin: %s %d jobs", name, len(results["done"]))
            return json_response({"action": name, **results})

        return act

    async def retry(request: Request) -> Response:
        require_admin(policies, request)
        retries = _on(work).retries
        ids = _ids(await read_object(request, policies.current.server, MOST_BYTES, EXAMPLE))
        done: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        unknown: list[str] = []
        for job_id in ids:
            came_to = await retries.retry(job_id)
            if came_to is None:
                unknown.append(job_id)
            elif isinstance(came_to, str):
                refused.append({"id": job_id, "why": came_to})
            else:
                done.append({"id": job_id, **came_to._asdict()})
        log.warning("admin: retry %d jobs", len(done))
        return json_response({"action": "retry", "done": done, "refused": refused, "unknown": unknown})

    return [
        Route("/admin/jobs", list_jobs, methods=["GET"]),
        *(Route(f"/admin/jobs/{name}", flag(name), methods=["POST"]) for name in FLAGS),
        Route("/admin/jobs/retry", retry, methods=["POST"]),
    ]


def _on(jobs: Jobs | None) -> Jobs:
    if jobs is None:
        raise JobsOff("This gateway takes no jobs; name a file for them with `jobs.store`.")
    return jobs


def _ids(fields: Mapping[str, Any]) -> Sequence[str]:
    """Reads the ids of jobs and batches. Raises InvalidRequest."""
    refuse_unknown(fields, ("ids",))
    ids = fields.get("ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= MOST_IDS or not all(isinstance(id, str) and id for id in ids):
        raise InvalidRequest(f"The field 'ids' must be a list of 1 to {MOST_IDS} ids, such as {EXAMPLE}.", param="ids")
    return list(dict.fromkeys(ids))
