"""A call to `pipelines/NAME` becomes a run: the job that would have been its call's, of another kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.core.call import Call
from gateway.core.errors import Forbidden, InvalidRequest
from gateway.features.output.schema.schema import depth_of
from gateway.products.batches.input.line_rules import bare_provider
from gateway.products.jobs.model.errors import JobNeedsProviderKey
from gateway.products.jobs.model.job import JobKind, NewJob, Tally
from gateway.products.pipelines.answer.input import input_of
from gateway.products.pipelines.compile.compiling.plan import MOST_DEPTH, PATHS, PipelinePlan
from gateway.products.pipelines.rules.carried import DIGEST, PIPELINE, CarriedRun
from gateway.products.pipelines.rules.rules import RUNS

ENDPOINTS = (PATHS["chat"], PATHS["responses"])
"""Where a pipeline can be asked for."""


def as_run(new: NewJob, call: Call, plan: PipelinePlan) -> NewJob:
    """Returns the run of a call, from the job that it would be otherwise.

    Raises InvalidRequest for an endpoint or an input that does not fit, Forbidden where the key may not use the models that
    the pipeline calls, JobNeedsProviderKey.
    """
    endpoint = new.job.about["endpoint"]
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"A pipeline answers at {' and '.join(ENDPOINTS)}, not at {endpoint}.", param="model", code="not_supported"
        )
    _refuse_models(call, plan)
    carried = CarriedRun(plan.name, plan.source, input_of(plan, _request_of(call)), endpoint)
    job = new.job
    about = {**job.about, PIPELINE: plan.name, DIGEST: plan.digest, "is_urgent": job.is_urgent}
    run = replace(job, kind=JobKind.RUN, segment=RUNS, about=about, max_attempts=1, tally=Tally(total=len(plan.steps)))
    return replace(new, job=run, payload=_packed(carried))


def _packed(carried: CarriedRun) -> bytes:
    """Returns the payload of a run. Raises InvalidRequest for an input of which no request could be made."""
    try:
        is_deep = depth_of(orjson.dumps(carried.input)) > MOST_DEPTH
    except orjson.JSONEncodeError:  # deeper than it writes
        is_deep = True
    if is_deep:
        raise InvalidRequest(
            f"The input of a pipeline may be nested {MOST_DEPTH} levels deep; this one is deeper.",
            param="input",
            code="invalid_pipeline_input",
        )
    return carried.packed()


def _request_of(call: Call) -> Mapping[str, Any]:
    request = call.parsed if call.parsed is not None else orjson.loads(call.body)
    return request if isinstance(request, dict) else {}


def _refuse_models(call: Call, plan: PipelinePlan) -> None:
    """Raises where a step would be refused: it is said before anything is paid for."""
    policy, key = call.policy, call.key
    for name in plan.models:
        if key.allows is not None and not key.allows.match(name):
            raise Forbidden(
                f"The key '{key.name}' may not use the model '{name}', which {plan.model_name} calls.", param="model"
            )
        model = policy.find_model(name)
        group = bare_provider(policy, model) if call.credential is not None and model is not None else None
        if group is not None:
            raise JobNeedsProviderKey(
                f"The provider '{group}' is paid with the caller's own credential here, and a run keeps none; set "
                f"providers.{group}.api_key in the gateway's config."
            )
