"""What a run carries: its input and the source of the plan that it began with, and what it notes on its way.

The source is in the run's payload, so that it goes on by it on any gateway, whatever the files say there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.products.pipelines.compile.compiling.compiling import compile_plan
from gateway.products.pipelines.compile.compiling.plan import PipelinePlan

PIPELINE: Final = "pipeline"
"""In `about` of a run: the name of its pipeline."""
DIGEST: Final = "digest"
"""In `about` of a run: that of its plan."""
STEPS: Final = "steps"
"""In `marks` of a run: by step, the latest part of it that has begun."""
SETTLED: Final = "settled"
"""In `marks` of a run: how many of its steps are over."""
CURRENT: Final = "current"
"""In `marks` of a run: the steps under way when it was parked."""
STEP: Final = "step"
"""In `about` of a child: the step that it is a part of."""
PART: Final = "part"
ITEMS: Final = "items"
"""In `about` of a child with items: how many there are, those of which nothing is asked among them."""
UNASKED: Final = "unasked"
"""In `about` of a child with items: how many have failed before they were asked."""
MOST_FAILED: Final = "most_failed"
"""In `about` of a child with items: so many of those that are asked may fail; absent: all of them."""
BROKEN: Final = "tolerance_broken"
"""In `marks` of a child with items: it was stopped, since more have failed; the last of them, as in the file of errors."""
AT_ONCE: Final = "max_concurrency"
"""In `about` of a child with items: so many of them run at a time."""
RETRIES: Final = "retries"
"""In `about` of a child: how often it is tried again; absent: as its model's rules say."""
OUTPUT: Final = "output"
"""In `about` of a child: the rule for its answers."""
MODEL: Final = "pipeline_model"
"""In `about` of a child: its run's pipeline, as a model."""
USD_PER_RUN: Final = "usd_per_run"
"""In `about` of a child: what its run may cost."""


class CarriedRun(NamedTuple):
    """The payload of a run."""

    name: str
    source: Mapping[str, Any]
    input: Any
    endpoint: str
    """Where it was asked for, such as `/v1/chat/completions`: its answer has that form."""

    def packed(self) -> bytes:
        """Returns the bytes that a store keeps."""
        return orjson.dumps(self._asdict())


def carried_by(payload: bytes) -> CarriedRun:
    """Returns what a run carries. Raises ValueError for what is none."""
    try:
        return CarriedRun(**orjson.loads(payload))
    except TypeError:
        raise ValueError("the payload is not that of a run") from None


def plan_of(carried: CarriedRun) -> PipelinePlan:
    """Returns the plan of a run. Raises ValueError where this process cannot compile it, such as without a package."""
    plan, problems = compile_plan(carried.name, carried.source)
    if plan is None:
        raise ValueError(problems[0].message)
    return plan
