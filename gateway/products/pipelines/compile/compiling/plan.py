"""A declared pipeline, compiled: its steps in an order in which none comes before what it refers to.

A plan is made of its source, plain data that a run keeps, so that a run goes on by what it began with whatever the files say
meanwhile. The digest names the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.core.types.words import Lane
from gateway.products.pipelines.conditions import Condition
from gateway.products.pipelines.templates.templates.templates import Place, Template

PREFIX: Final = "pipelines/"
"""What the names of pipelines as models begin with."""
MOST_STEPS: Final = 50
MOST_ITEMS: Final = 50_000
"""Of one `for_each`."""
MOST_DEPTH: Final = 100
"""The levels of an input, or of what an answer says as JSON: more could be put into no request."""

CallEndpoint = Literal["chat", "embeddings", "responses", "moderations"]
PATHS: Final[Mapping[CallEndpoint, str]] = {
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "responses": "/v1/responses",
    "moderations": "/v1/moderations",
}
FIELDS: Final[Mapping[CallEndpoint, tuple[str, ...]]] = {
    "chat": ("text", "json"),
    "responses": ("text", "json"),
    "embeddings": ("embedding", "embeddings"),
    "moderations": ("results",),
}
"""What is known of a step that has asked there once."""
MANY_FIELDS: Final[Mapping[CallEndpoint, tuple[str, ...]]] = {
    "chat": ("texts", "json"),
    "responses": ("texts", "json"),
    "embeddings": ("embeddings",),
    "moderations": ("results",),
}
"""The same where it has asked once for each item: lists, in the order of the items, with nothing for one that has failed."""
MANY_COUNTS: Final = ("total", "failed")


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A request in the making."""

    endpoint: CallEndpoint
    model: str
    body: Template


@dataclass(frozen=True, slots=True)
class Branch:
    """One way in which a step may go."""

    when: Condition | None
    """None: always."""
    call: CallPlan


@dataclass(frozen=True, slots=True)
class OnFailure:
    """What becomes of a run when a step of it, or an item of a step, has failed."""

    action: Literal["fail", "continue", "tolerate", "use"] = "fail"
    percent: float = 0.0
    """Of the items, that may fail; with `tolerate`."""
    count: int = 0
    value: Any = None
    """What stands in, with `use`."""
    model: str = ""
    """Who may change the request of what has failed, once, before that becomes of it; empty: nobody."""

    def accepts(self, failed: int, total: int) -> bool:
        """Tells whether a step goes on with so many failed items."""
        most = self.most_failed(total)
        return most is None or failed <= most

    def most_failed(self, total: int) -> int | None:
        """Returns how many items may fail; None: all of them."""
        if self.action in ("continue", "use"):
            return None
        return max(self.count, int(self.percent * total // 100))


@dataclass(frozen=True, slots=True)
class Step:
    """One step, which asks once, or once for each item of a list."""

    name: str
    branches: Sequence[Branch]
    """The first whose condition holds is asked; none of them does: the step, or its item, is left out."""
    needs: frozenset[str]
    """The steps that it refers to, or is said to come after."""
    for_each: Place | None = None
    max_concurrency: int = 20
    on_failure: OnFailure = OnFailure()
    retries: int | None = None
    """After a failure that passes by itself; None: as jobs are tried."""
    timeout_s: float | None = None
    lane: Lane | None = None
    """None: the run's."""
    output: Mapping[str, Any] | None = None
    """The rule for its answers, as in the source."""

    @property
    def endpoint(self) -> CallEndpoint:
        """Returns where it asks; all its branches ask at the same."""
        return self.branches[0].call.endpoint

    @property
    def counts_by(self) -> str:
        """Returns the model whose tokenizer divides its items: that of the last branch, which takes all others."""
        return self.branches[-1].call.model

    @property
    def repairing(self) -> Sequence[str]:
        """Returns the models that may be asked to repair its request, or its answers."""
        invalid = (self.output or {}).get("on_invalid") or {}
        return [model for model in (self.on_failure.model, invalid.get("repair_with")) if model]

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns what may be said of its result."""
        if self.for_each is not None:
            return (*MANY_FIELDS[self.endpoint], *MANY_COUNTS)
        return FIELDS[self.endpoint]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline."""

    name: str
    steps: Mapping[str, Step]
    """In order."""
    output: Template
    output_needs: frozenset[str]
    last: str
    """The step that ends a run: the last in order of those that the output refers to."""
    input_schema: Mapping[str, Any] | None = None
    """A JSON Schema; None: the input may be anything."""
    usd_per_run: float | None = None
    """Once a run has cost so much, no step of it begins any more."""
    description: str = ""
    source: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    digest: str = ""

    @property
    def model_name(self) -> str:
        """Returns its name as a model."""
        return PREFIX + self.name

    @property
    def models(self) -> Sequence[str]:
        """Returns the models that its steps call, each once, also those that repair."""
        asked = [branch.call.model for step in self.steps.values() for branch in step.branches]
        repairing = [model for step in self.steps.values() for model in step.repairing]
        return list(dict.fromkeys([*asked, *repairing]))
