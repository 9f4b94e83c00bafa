"""What operators see of jobs: first `/admin/jobs`, then how a request would fare as a job.

`/admin/jobs` shows what everybody has under way, which operators may have stand still and go on. Behind the admin key. How jobs
run is not known here: `JobService` shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.explain import attempt_usd
from gateway.admin.http import MOST_BYTES, require_admin
from gateway.core.errors import InvalidRequest
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import ExplainedRequest, Key, Model, Policies, PolicySnapshot
from gateway.drivers.durability import JobsOff
from gateway.products.jobs.answers_http import show_job, statuses_of
from gateway.products.jobs.calls import attempts_allowed
from gateway.products.jobs.model import JobFlag, JobQuery
from gateway.products.jobs.request import bare_provider
from gateway.products.jobs.rules import ACCEPTS_202, JOB_RULES, JOBS, JobRules, RunAs, has_batch_api
from gateway.products.jobs.service import JobService, segment_of
from gateway.products.routes import limit_of, list_page
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


# --- how a request would fare as a job or a line of a batch: where it is kept, how it is tried, when it is one unasked ---

_RUN: Mapping[RunAs, str] = {
    "here": "at the usual price",
    "flex": "with service_tier flex",
    "native": "at the provider's own Batch API",
    "cheapest": "at the provider's own Batch API, and with service_tier flex what cannot go there",
}


def explain_job(request: ExplainedRequest) -> Iterator[str]:
    """Yields the lines on jobs."""
    policy, key, model = request.policy, request.key, request.model
    settings = JOBS.of(policy).settings
    if not JOBS.of(policy).is_on:
        yield "job       none: this gateway takes no jobs (jobs.store)"
        return
    rules, at_all = JOB_RULES.of(model), JOBS.of(policy).default
    price_usd = attempt_usd(request, model.plan[0])
    segment = segment_of(at_all.segments, price_usd)
    at_once = next(one.concurrency for one in at_all.segments if one.name == segment)
    shown = "price not known" if price_usd is None else f"about ${price_usd:.2g} an attempt"
    yield f"job       segment {segment} ({at_once} pieces at a time; {shown}), lane {key.lane}"
    yield f"  tried             {attempts_allowed(rules, price_usd)}x within {rules.deadline_s:g} s"
    yield f"  in a batch        {_in_batch(policy, model, rules)}"
    yield f"  if refused        {_if_refused(key, rules)}"
    group = bare_provider(policy, model)
    if group is not None:
        yield f"  refused           for callers with a credential of their own, which {group} needs and no job keeps"
    place = settings.store or "the shared Redis"
    worker = "run here" if settings.works else "run by nobody" if settings.store else "run by other gateways"
    yield f"  kept              in {place}, files in {settings.files}; {worker}"


def _in_batch(policy: PolicySnapshot, model: Model, rules: JobRules) -> str:
    batches = rules.batches
    run = _RUN[batches.run]
    if batches.run == "native" and not any(has_batch_api(policy.providers[one.provider]) for one in model.targets):
        run = "at the usual price, since no provider of the model has a Batch API that is known here"
    together = f", {batches.group_embeddings} inputs in one request" if batches.group_embeddings else ""
    classes = ", ".join(sorted(batches.brake_classes))
    return (
        f"{run}, up to {batches.window} lines at a time{together}; {batches.brake_after} in a row that fail for "
        f"{classes or 'nothing'} slow it down to single tries"
    )


def _if_refused(key: Key, rules: JobRules) -> str:
    if key.lane not in rules.degrade.lanes:
        return f"a plain call stays refused: degrade_to_job does not have the lane {key.lane}"
    what = f"a call becomes a job (202) instead of {', '.join(sorted(rules.degrade.when))}"
    return what if ACCEPTS_202.of(key) else f"{what}, if its key had accepts_202; this one is refused"
