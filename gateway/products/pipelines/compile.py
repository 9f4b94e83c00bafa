"""A declared pipeline, compiled: its steps in an order in which none comes before what it refers to; and explained.

A plan is made of its source, plain data that a run keeps, so that a run goes on by what it began with whatever the files say
meanwhile: durations are in seconds there, schemas in place, and a step that could not be read is None. The sources of files are
read in `config`, with their lines. The digest names the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from gateway.core.snapshot import Model, PolicySnapshot, Setting, with_settings
from gateway.core.types import Lane
from gateway.installed import is_installed
from gateway.products.jobs.rules import JOB_RULES, JOBS
from gateway.products.pipelines.templates import (
    Condition,
    Path,
    Place,
    PlanProblem,
    Template,
    places_of,
    read_condition,
    read_place,
    read_template,
)

HAS_OUTPUT: Final = is_installed("gateway.features.output")
"""Whether the answers of steps can be checked."""
PREFIX: Final = "pipelines/"
"""The beginning of the names of pipelines as models."""
MOST_STEPS: Final = 50
MOST_ITEMS: Final = 50_000
"""The most items of one `for_each`."""
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
"""The fields of the values of a step that has asked there once."""
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
    """The percentage of the items that may fail; with `tolerate`."""
    count: int = 0
    value: Any = None
    """The value that stands in, with `use`."""
    model: str = ""
    """Who may change the request of what has failed, once, before that becomes of it; empty: nobody."""

    def accepts(self, failed: int, total: int) -> bool:
        """Returns whether a step goes on with so many failed items."""
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
    """The steps that it refers to, or is declared to come after."""
    for_each: Place | None = None
    max_concurrency: int = 20
    on_failure: OnFailure = OnFailure()
    retries: int | None = None
    """The retries after a failure that passes by itself; None: as jobs are tried."""
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
        """Returns the names of what its result has."""
        if self.for_each is not None:
            return (*MANY_FIELDS[self.endpoint], *MANY_COUNTS)
        return FIELDS[self.endpoint]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline."""

    name: str
    steps: Mapping[str, Step]
    """The steps by name, in order."""
    output: Template
    output_needs: frozenset[str]
    last: str
    """The step that ends a run: the last in order of those that the output refers to."""
    input_schema: Mapping[str, Any] | None = None
    """A JSON Schema; None: the input may be anything."""
    usd_per_run: float | None = None
    """The cost from which on no step of a run begins any more."""
    description: str = ""
    source: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    digest: str = ""

    @property
    def model_name(self) -> str:
        return PREFIX + self.name

    @property
    def models(self) -> Sequence[str]:
        """Returns the models that its steps call, each once, also those that repair."""
        models = [branch.call.model for step in self.steps.values() for branch in step.branches]
        repairing = [model for step in self.steps.values() for model in step.repairing]
        return list(dict.fromkeys([*models, *repairing]))


PIPELINE: Final[Setting[PipelinePlan | None]] = Setting("pipeline", None)
"""The pipeline that the calls of a model are runs of, which go to no target by themselves; None: they are calls."""
PIPELINES: Final[Setting[Mapping[str, PipelinePlan]]] = Setting("pipelines", {})
"""The pipelines by name, which as a model has `pipelines/` before it."""


def find_pipeline(policy: PolicySnapshot, name: str) -> Model | None:
    """Returns the model of this name, `pipelines/` before it; None: there is no such pipeline."""
    plan = PIPELINES.of(policy).get(name.removeprefix(PREFIX))
    if plan is None:
        return None
    model = Model(name, (), (), answered_by="a pipeline")
    return with_settings(model, {PIPELINE: plan, JOB_RULES: JOBS.of(policy).default})


# --- from the source to the plan, with all that is wrong ---

STEP_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NOT_IN_CALLS: Final = ("stream", "stream_options", "background", "previous_response_id")
NO_ITEM: Final = "`item` is known only in the calls of a step with for_each"
_BRACES: Final = re.compile(r"\s*\{\{(.*)\}\}\s*", re.DOTALL)


def compile_plan(name: str, source: Mapping[str, Any]) -> tuple[PipelinePlan | None, list[PlanProblem]]:
    """Returns the plan of a source, or None with what is wrong with it."""
    problems: list[PlanProblem] = []
    steps_given = source.get("steps")
    if not isinstance(steps_given, dict) or not steps_given:
        return None, [PlanProblem(("steps",), "needs at least one step")]
    if len(steps_given) > MOST_STEPS:
        return None, [PlanProblem(("steps",), f"has {len(steps_given)} steps; a pipeline has at most {MOST_STEPS}")]
    found = {step: None if entry is None else _read_step(step, entry, problems) for step, entry in steps_given.items()}
    steps = {step: one for step, one in found.items() if one is not None}
    for step in steps.values():
        _check_references(step, found, steps_given[step.name].get("after") or (), problems)
    order = _in_order(steps, problems)
    output = _read_output(source, found, problems) if order is not None else None
    if problems or order is None or output is None or len(steps) < len(found):
        return None, problems
    needs = frozenset(place.step for place in places_of(output) if place.step is not None)
    digest = sha256(orjson.dumps([name, source], option=orjson.OPT_SORT_KEYS)).hexdigest()
    plan = PipelinePlan(
        name=name,
        steps={step: steps[step] for step in order},
        output=output,
        output_needs=needs,
        last=[step for step in order if step in needs or not needs][-1],
        input_schema=source.get("input"),
        usd_per_run=source.get("usd_per_run"),
        description=source.get("description") or "",
        source=source,
        digest=digest,
    )
    return plan, problems


def _read_step(name: str, entry: Mapping[str, Any], problems: list[PlanProblem]) -> Step | None:
    path: Path = ("steps", name)
    if not STEP_NAME.fullmatch(name):
        problems.append(
            PlanProblem(path, "is no name for a step: use letters, digits and _, at most 64, a letter first")
        )
        return None
    branches = _read_branches(entry, path, problems)
    for_each = None
    if (each := entry.get("for_each")) is not None:
        for_each = _read_bare(each, (*path, "for_each"), problems)
        if for_each is not None and for_each.path[:1] == ("item",):
            problems.append(PlanProblem((*path, "for_each"), NO_ITEM))
    elif "max_concurrency" in entry:
        problems.append(PlanProblem((*path, "max_concurrency"), "is of steps with for_each only"))
    on_failure = _read_on_failure(entry, path, problems, is_many=each is not None)
    if not branches:
        return None
    if entry.get("output") is not None and not HAS_OUTPUT:
        problems.append(PlanProblem((*path, "output"), "needs the product `output`, which is not installed"))
    elif entry.get("output") is not None and "text" not in FIELDS[branches[0].call.endpoint]:
        problem = f"is for answers that are texts: no schema is held against those of {branches[0].call.endpoint}"
        problems.append(PlanProblem((*path, "output"), problem))
    needs = {place.step for branch in branches for place in places_of(branch.call.body) if place.step is not None}
    needs |= {step for branch in branches if branch.when is not None for step in branch.when.names}
    if for_each is not None and for_each.step is not None:
        needs.add(for_each.step)
    return Step(
        name=name,
        branches=tuple(branches),
        needs=frozenset(needs) | frozenset(entry.get("after") or ()),
        for_each=for_each,
        max_concurrency=entry.get("max_concurrency", 20),
        on_failure=on_failure,
        retries=entry.get("retries"),
        timeout_s=entry.get("timeout"),
        lane=entry.get("lane"),
        output=entry.get("output"),
    )


def _read_branches(entry: Mapping[str, Any], path: Path, problems: list[PlanProblem]) -> list[Branch]:
    """Returns the branches of a step, in order; none, with a problem, where it has none that can be used."""
    if ("choose" in entry) == ("call" in entry):
        problems.append(PlanProblem(path, "needs either a `call`, or `choose` with a list of them"))
        return []
    if "call" in entry:
        one = _read_branch(entry, path, problems)
        return [] if one is None else [one]
    if "when" in entry:
        problems.append(PlanProblem((*path, "when"), "stands beside a `call`: in `choose` each branch has its own"))
    choices = entry["choose"]
    found = [_read_branch(branch, (*path, "choose", index), problems) for index, branch in enumerate(choices)]
    branches = [branch for branch in found if branch is not None]
    for index, branch in enumerate(branches[:-1]):
        if branch.when is None and len(branches) == len(choices):
            problems.append(
                PlanProblem(
                    (*path, "choose", index), "has no `when`, so that those behind it are never asked: put it last"
                )
            )
    if len({branch.call.endpoint for branch in branches}) > 1:
        problems.append(PlanProblem((*path, "choose"), "its calls need one endpoint, so that their results are alike"))
    return branches


def _read_branch(entry: Mapping[str, Any], path: Path, problems: list[PlanProblem]) -> Branch | None:
    before = len(problems)
    when: Condition | None = None
    if entry.get("when") is not None:
        when = read_condition(entry["when"], (*path, "when"), problems)
    here = (*path, "call")
    given = entry.get("call")
    if not isinstance(given, dict):
        problems.append(PlanProblem(here, "is missing"))
        return None
    endpoint, model = given.get("endpoint", "chat"), given.get("model")
    if endpoint not in PATHS:
        problems.append(PlanProblem((*here, "endpoint"), f"unknown endpoint {endpoint!r}", str(endpoint), tuple(PATHS)))
    if not isinstance(model, str) or not model:
        problems.append(PlanProblem((*here, "model"), "is missing: it names a model of the config"))
    elif "{{" in model:
        problems.append(PlanProblem((*here, "model"), "is fixed: choose between models with `choose`"))
    elif model.startswith(PREFIX):
        problems.append(PlanProblem((*here, "model"), "is a pipeline: a step calls a model"))
    for name in _NOT_IN_CALLS:
        if name in given:
            problems.append(PlanProblem((*here, name), "has no place in a step, which waits for a whole answer"))
    needed = "messages" if endpoint == "chat" else "input"
    if endpoint in PATHS and needed not in given:
        problems.append(PlanProblem((*here, needed), "is missing"))
    elif endpoint == "chat" and not (isinstance(given["messages"], list) and given["messages"]):
        problems.append(PlanProblem((*here, needed), "takes a list of messages, each with a role and a content"))
    body = read_template({field: value for field, value in given.items() if field != "endpoint"}, here, problems)
    if len(problems) > before:
        return None
    return Branch(when, CallPlan(endpoint, str(model), body))


def _read_on_failure(entry: Mapping[str, Any], path: Path, problems: list[PlanProblem], *, is_many: bool) -> OnFailure:
    given = entry.get("on_failure", "fail")
    here = (*path, "on_failure")
    if given in ("fail", "continue"):
        return OnFailure(given)
    model = given.get("repair_with", "")
    if "use" in given:
        return OnFailure("use", value=given["use"], model=model)
    for word in ("tolerate_percent", "tolerate_count"):
        if word in given and not is_many:
            problems.append(PlanProblem((*here, word), "is of steps with for_each only"))
    if "tolerate_percent" in given:
        return OnFailure("tolerate", percent=given["tolerate_percent"], model=model)
    if "tolerate_count" in given:
        return OnFailure("tolerate", count=given["tolerate_count"], model=model)
    return OnFailure(model=model)


def _check_references(
    step: Step, steps: Mapping[str, Step | None], after: Sequence[str], problems: list[PlanProblem]
) -> None:
    """Notes what a step refers to that is not there; `after` is what its source says it comes after."""
    path: Path = ("steps", step.name)
    for index, name in enumerate(after):
        if name not in steps:
            problems.append(PlanProblem((*path, "after", index), f"unknown step {name}", name, tuple(steps)))
    if step.for_each is not None:
        _check_path(step.for_each.path, step.for_each.at, steps, problems)
    for branch in step.branches:
        for place in places_of(branch.call.body):
            _check_path(place.path, place.at, steps, problems)
            if step.for_each is None and place.path[:1] == ("item",):
                problems.append(PlanProblem(place.at, NO_ITEM))
        if branch.when is not None:
            for referenced in branch.when.steps:
                _check_path(referenced, branch.when.at, steps, problems)
            if step.for_each is None and branch.when.has_item:
                problems.append(PlanProblem(branch.when.at, NO_ITEM))


def _check_path(
    path_given: tuple[str, ...], at: Path, steps: Mapping[str, Step | None], problems: list[PlanProblem]
) -> None:
    if path_given[:1] != ("steps",):
        return
    name, shown = path_given[1], ".".join(path_given)
    if name not in steps:
        problems.append(PlanProblem(at, f"unknown step {name} in {shown}", name, tuple(steps)))
        return
    step, result = steps[name], path_given[2] if len(path_given) > 2 else ""
    if step is None:
        return
    known = step.fields
    if result not in known:
        given = f"unknown result {result}" if result else "no result is named"
        problems.append(PlanProblem(at, f"{given} in {shown}", result, known))


def _in_order(steps: Mapping[str, Step], problems: list[PlanProblem]) -> list[str] | None:
    """Returns the steps so that each comes behind what it needs, else as they stand; None, with a problem, in a circle."""
    order: dict[str, None] = {}
    left = dict(steps)
    while left:
        ready = [name for name, step in left.items() if all(need in order or need not in steps for need in step.needs)]
        if not ready:
            circle = _circle(left)
            problems.append(PlanProblem(("steps", circle[0]), f"waits for itself: {' <- '.join(circle)}"))
            return None
        order |= dict.fromkeys(ready)
        for name in ready:
            del left[name]
    return list(order)


def _circle(left: Mapping[str, Step]) -> list[str]:
    """Returns the names along a circle, the first also last."""
    way = [next(iter(left))]
    while True:
        needed = min(need for need in left[way[-1]].needs if need in left)
        if needed in way:
            return [*way[way.index(needed) :], needed]
        way.append(needed)


def _read_output(
    source: Mapping[str, Any], steps: Mapping[str, Step | None], problems: list[PlanProblem]
) -> Template | None:
    """Returns what a run comes to: what the source says, else the text of the one step that no other needs."""
    given, path = source.get("output"), ("output",)
    output: Template
    if given is None:
        known = [step for step in steps.values() if step is not None]
        ends = [step for step in known if not any(step.name in other.needs for other in known)]
        if problems or len(known) < len(steps):
            return None  # where references are wrong, this would be, too
        if len(ends) != 1:
            names = ", ".join(step.name for step in ends)
            problems.append(PlanProblem((), f"needs `output`: several steps have nothing behind them ({names})"))
            return None
        output = Place(("steps", ends[0].name, ends[0].fields[0]), "", ())
    elif isinstance(given, str) and ("{{" not in given or _is_lone(given)):
        output = _read_bare(given, path, problems)
    else:
        output = read_template(given, path, problems)
    for place in places_of(output):
        _check_path(place.path, path, steps, problems)
        if place.path[:1] == ("item",):
            problems.append(PlanProblem(path, NO_ITEM))
    return output


def _is_lone(text: str) -> bool:
    return text.count("{{") == 1 and _BRACES.fullmatch(text) is not None


def _read_bare(text: str, path: Path, problems: list[PlanProblem]) -> Place | None:
    """Reads a place that stands by itself, with braces or without."""
    found = _BRACES.fullmatch(text)
    return read_place(text if found is None else found[1], path, problems)


def models_with_paths(source: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    """Yields the models that a source names, each with its place; where it names none, something else."""
    for name, entry in source["steps"].items():
        fields = entry or {}
        branches: list[tuple[Path, Any]] = [(("steps", name), fields)] if "call" in fields else []
        branches += [(("steps", name, "choose", index), one) for index, one in enumerate(fields.get("choose", ()))]
        for path, branch in branches:
            yield (*path, "call", "model"), branch["call"].get("model")
        on_failure = fields.get("on_failure")
        if isinstance(on_failure, dict) and "repair_with" in on_failure:
            yield ("steps", name, "on_failure", "repair_with"), on_failure["repair_with"]
        on_invalid = (fields.get("output") or {}).get("on_invalid") or {}
        if "repair_with" in on_invalid:
            yield ("steps", name, "output", "on_invalid", "repair_with"), on_invalid["repair_with"]


# --- a pipeline as facts: its steps in order, whom they ask, how often, and what their failures mean ---


def explained(plan: PipelinePlan) -> dict[str, Any]:
    steps = [_step(step) for step in plan.steps.values()]
    singles = sum(step.for_each is None for step in plan.steps.values())
    many = [f"1 for each item of {step.name}" for step in plan.steps.values() if step.for_each is not None]
    schema = plan.input_schema or {}
    required = set(schema.get("required", ()))
    fields = dict.fromkeys([*schema.get("properties", {}), *schema.get("required", ())])
    return {
        "model": plan.model_name,
        "digest": plan.digest,
        "description": plan.description,
        "input_fields": [name if name in required else f"{name} (optional)" for name in fields],
        "usd_per_run": plan.usd_per_run,
        "calls": " + ".join([f"up to {singles}", *many] if singles else many),
        "steps": steps,
        "output": _shown(plan.source.get("output"), plan),
    }


def _step(step: Step) -> dict[str, Any]:
    is_many = step.for_each is not None
    calls = "1" if step.branches[-1].when is None else "0 or 1"
    each = f"{calls} for each item, {step.max_concurrency} at once" if is_many else calls
    return {
        "step": step.name,
        "waits_for": sorted(step.needs),
        "endpoint": step.endpoint,
        "models": list(dict.fromkeys(branch.call.model for branch in step.branches)),
        "calls": each,
        "on_failure": _on_failure(step),
        "retries": step.retries,
        "timeout_s": step.timeout_s,
        "lane": step.lane,
        "has_output_schema": step.output is not None,
    }


def _on_failure(step: Step) -> str:
    action = step.on_failure
    tolerated = f"{action.percent:g} % may fail" if action.percent else f"{action.count} may fail"
    texts = {
        "fail": "the run fails",
        "continue": "the run goes on without it",
        "use": "a value stands in",
        "tolerate": tolerated,
    }[action.action]
    each = " of each failed item" if step.for_each is not None else ""
    return f"{action.model} changes the request{each} once; then {texts}" if action.model else texts


def _shown(output: object, plan: PipelinePlan) -> str:
    if output is None:
        return f"what {plan.last} says"
    return output if isinstance(output, str) else ", ".join(map(str, output)) if isinstance(output, dict) else "a list"
