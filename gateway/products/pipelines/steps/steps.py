"""What a child's requests tell of their run: whose step they are, and what their answers have to be."""

from __future__ import annotations

from gateway.products.jobs.calls.ports.ports import StepOfRun
from gateway.products.jobs.model.job import Job
from gateway.products.pipelines.rules.carried import MODEL, OUTPUT, STEP, USD_PER_RUN


def step_of(job: Job) -> StepOfRun | None:
    """Returns the step that a job is; None: it is none."""
    if not job.parent:
        return None
    about = job.about
    return StepOfRun(job.parent, about[MODEL], about[STEP], about.get(USD_PER_RUN), about.get(OUTPUT))
