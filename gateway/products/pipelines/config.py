"""Reads `pipelines/*.yaml`: declared pipelines, each a model of its own, `pipelines/NAME`.

The fields are checked here, what they refer to in `compile.py`. What comes of a file is plain data (seconds for
durations, schemas in place of their files), of which a plan is compiled: here once, and again wherever a run goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BeforeValidator, Field

from gateway.core.config.fields import (
    Count,
    Percent,
    PositiveDuration,
    Section,
    Text,
    Usd,
    Whole,
    problem_of,
    substitute,
)
from gateway.core.config.product_sections import ConfigReading, SectionSpec, placed_after
from gateway.core.config.schema import Entry, check
from gateway.core.config.source import Document, Path, Problem, did_you_mean, quoted, read_document
from gateway.core.snapshot import Model, PolicySnapshot, Target
from gateway.core.types import Lane
from gateway.products.pipelines.compile import (
    PIPELINE,
    PIPELINES,
    PREFIX,
    PipelinePlan,
    compile_plan,
    find_pipeline,
    models_with_paths,
)
from gateway.products.pipelines.rules import MOST_SCHEMA_BYTES, input_problem, schema_problem

FOLDER: Final = "pipelines"
"""The folder of pipelines in a policy folder."""
FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_CONCURRENCY: Final = 1_000
MOST_RETRIES: Final = 99
_NO_BUDGET: Final = "budget_usd"


def _usd_per_run(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
        raise problem_of("must be more than 0: with nothing to spend, no step could begin")
    return value


class PipelineFile(Entry):
    """One file of the folder."""

    description: Text | None = None
    input: Section | None = None
    usd_per_run: Annotated[Usd, BeforeValidator(_usd_per_run)] | None = None
    steps: Section = Field(min_length=1)
    output: Any = None


class StepEntry(Entry):
    call: Section | None = None
    choose: Annotated[list[Any], Field(min_length=1)] | None = None
    when: Text | None = None
    for_each: Text | None = None
    max_concurrency: Annotated[Count, Field(le=MOST_CONCURRENCY)] = 20
    after: list[Text] | None = None
    on_failure: Any = None
    retries: Annotated[Whole, Field(le=MOST_RETRIES)] | None = None
    timeout: PositiveDuration | None = None
    lane: Lane | None = None
    output: Section | None = None


class BranchEntry(Entry):
    when: Text | None = None
    call: Section


class OnFailureEntry(Entry):
    """One of these, and `repair_with` beside it or alone."""

    tolerate_percent: Percent | None = None
    tolerate_count: Whole | None = None
    use: Any = None
    repair_with: Text | None = None


class StepOutputEntry(Entry):
    schema_: Any = Field(default=None, alias="schema")
    on_invalid: Section | None = None


class StepInvalidEntry(Entry):
    retry: Annotated[Whole, Field(le=5)] = 0
    repair_with: Text | None = None
    then: Literal["fail", "pass"] = "fail"


class PipelinesSection(SectionSpec):
    """The folder `pipelines` of a policy folder."""

    def list_files(self, folder: FilePath) -> Iterator[FilePath]:
        yield from list_pipeline_files(folder)
        yield from list_schema_files(folder)

    def read_folder(self, folder: FilePath, environ: Mapping[str, str], problems: list[Problem]) -> Iterator[Document]:
        documents = [read_document(file, problems) for file in list_pipeline_files(folder)]
        return (substitute(document, environ) for document in documents if document is not None)

    def read_more(self, reading: ConfigReading) -> None:
        plans = compile_pipelines(reading.folders[self], reading.config.models)
        reading.settings[PIPELINES] = plans
        reading.digests += [plan.digest for plan in plans.values()]

    def check_models(self, reading: ConfigReading) -> None:
        """Notes steps whose model has no such endpoint."""
        documents = {FilePath(one.file).stem: one for one in reading.folders[self]}
        for name, plan in PIPELINES.of(reading).items():
            for step in plan.steps.values():
                for branch in step.branches:
                    why = reading.why_none(branch.call.endpoint, branch.call.model)
                    if why is not None:
                        shown = quoted(branch.call.model)
                        problem = f"no target of the model {shown} serves {branch.call.endpoint}: {why}"
                        documents[name].complain(("steps", step.name, "call", "endpoint"), problem)

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        plans = PIPELINES.of(snapshot)
        if not plans:
            return snapshot
        return replace(
            snapshot,
            extra_models={**snapshot.extra_models, PREFIX: find_pipeline},
            extra_names=(*snapshot.extra_names, *(plan.model_name for plan in plans.values())),
        )

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> list[str]:
        return pipeline_notices(PIPELINES.of(snapshot), reading.built)

    def explain_instead(self, model: Model) -> Iterator[str]:
        """Yields the steps of the runs of a pipeline, which is called as a model."""
        pipeline = PIPELINE.of(model)
        if pipeline is not None:
            yield f"pipeline  a run of its steps, each a job: {', '.join(pipeline.steps)}"
            yield f"          gateway pipelines explain {pipeline.name} shows them"

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        """Shows what each pipeline is, without its prompts."""
        pipelines = {
            name: {
                "digest": plan.digest,
                "steps": list(plan.steps),
                "models": plan.models,
                "usd_per_run": plan.usd_per_run,
            }
            for name, plan in PIPELINES.of(snapshot).items()
        }
        return placed_after(["jobs", "objects", "passthrough"], shown, pipelines=pipelines)


def list_pipeline_files(folder: FilePath) -> list[FilePath]:
    """Returns the pipelines below a policy folder, none where it has no such folder. Raises OSError."""
    here = folder / FOLDER
    if not here.is_dir():
        return []
    return sorted(file for file in here.iterdir() if file.suffix in {".yaml", ".yml"} and file.name[0] != ".")


def list_schema_files(folder: FilePath) -> list[FilePath]:
    """Returns the JSON files beside and below the pipelines of a policy folder. Raises OSError."""
    here = folder / FOLDER
    return sorted(file for file in here.rglob("*.json") if file.is_file()) if here.is_dir() else []


def compile_pipelines(documents: tuple[Document, ...], models: Mapping[str, object]) -> dict[str, PipelinePlan]:
    """Returns the plans of all files by name, those that can be used; `models` are the names and patterns of the config."""
    plans: dict[str, PipelinePlan] = {}
    for document in documents:
        name = FilePath(document.file).stem
        if not FILE_NAME.fullmatch(name):
            document.complain((), f"{quoted(name)} is no name for a pipeline: use letters, digits, `.`, `_` and `-`")
            continue
        if name in plans:
            document.complain((), f"there are two pipelines {quoted(name)}: give one another name")
            continue
        plan = _compile(document, name, models)
        if plan is not None:
            plans[name] = plan
    return plans


def pipeline_notices(plans: Mapping[str, PipelinePlan], models: Mapping[str, Model]) -> list[str]:
    """Returns what is worth a word: money is bounded, and some model has no price."""
    notices = []
    for plan in plans.values() if models else ():
        found = [models[name] for name in plan.models if name in models] if plan.usd_per_run is not None else []
        bare = [model.name for model in found if not any(_is_priced(target) for target in model.targets)]
        if bare:
            notices.append(f"{plan.model_name}: usd_per_run counts nothing for {', '.join(bare)}: there is no price")
    return notices


def _is_priced(target: Target) -> bool:
    return target.model is None or target.find_rates(target.model) is not None


def _compile(document: Document, name: str, models: Mapping[str, object]) -> PipelinePlan | None:
    before = len(document.problems)
    source = _source(document)
    if source is None:
        return None
    plan, problems = compile_plan(name, source)
    for problem in problems:
        suggestion = did_you_mean(problem.given, problem.known) if problem.known else ""
        document.complain(problem.path, f"{problem.message}{suggestion}")
    for path, model in models_with_paths(source):
        if not isinstance(model, str) or model.startswith(PREFIX) or "{{" in model:
            continue  # that is noted already
        if not any(one == model or fnmatchcase(model, one) for one in models):
            suggestion = "" if document.origin_of(path) else did_you_mean(model, models)
            document.complain(path, f"no model {document.show(path, model)}{suggestion}")
    return plan if len(document.problems) == before else None


def _source(document: Document) -> dict[str, Any] | None:
    """Returns the plain data of a file; None, or problems, where it cannot be used."""
    data = document.data
    if isinstance(data, dict) and _NO_BUDGET in data:
        document.complain((_NO_BUDGET,), 'unknown field; did you mean "usd_per_run"?')
        document = replace(document, data={name: value for name, value in data.items() if name != _NO_BUDGET})
    entry = check(PipelineFile, document, ())
    if entry is None:
        return None
    if entry.input is not None and (found := input_problem(entry.input)) is not None:
        document.complain(("input", *found[0]), found[1])
    fields = {
        "description": entry.description,
        "input": entry.input,
        "usd_per_run": entry.usd_per_run,
        "steps": {name: _step(document, name) for name in entry.steps},
        "output": entry.output,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _step(document: Document, name: str) -> dict[str, Any] | None:
    path: Path = ("steps", name)
    entry = check(StepEntry, document, path)
    given = document.at(path) or {}
    if entry is None or ("call" in given and entry.call is None):
        if entry is not None and given["call"] is None:
            document.complain((*path, "call"), "is empty: it needs a model and what it is asked")
        return None
    fields = entry.model_dump(include=entry.model_fields_set - {"choose", "on_failure", "output"})
    if entry.choose is not None:
        branches = [check(BranchEntry, document, (*path, "choose", index)) for index in range(len(entry.choose))]
        fields["choose"] = [one.model_dump(exclude_none=True) for one in branches if one is not None]
    if entry.on_failure is not None:
        fields["on_failure"] = _on_failure(document, (*path, "on_failure"), entry.on_failure)
    if entry.output is not None:
        fields["output"] = _output(document, (*path, "output"))
    return fields


def _on_failure(document: Document, path: Path, given: object) -> Any:
    if isinstance(given, str):
        if given not in ("fail", "continue"):
            words = ("fail", "continue", *OnFailureEntry.model_fields)
            document.complain(path, f"unknown way to go on {quoted(given)}{did_you_mean(given, words)}")
            return "fail"
        return given
    before = len(document.problems)
    entry = check(OnFailureEntry, document, path)
    if entry is None or len(document.problems) > before:
        return "fail"
    found = entry.model_dump(include=entry.model_fields_set)
    if len(found.keys() - {"repair_with"}) > 1 or not found:
        document.complain(
            path,
            "takes `fail`, `continue`, or one of tolerate_percent, tolerate_count, use, with or without repair_with, "
            "or that alone",
        )
    return found or "fail"


def _output(document: Document, path: Path) -> dict[str, Any]:
    """Returns the rule for a step's answers, with its schema in place of the file that it is in."""
    entry = check(StepOutputEntry, document, path)
    if entry is None:
        return {}
    schema = entry.schema_
    here = (*path, "schema")
    if schema is None:
        document.complain(path, "needs a `schema`")
    elif isinstance(schema, str):
        schema = _schema_file(document, here, schema)
    if schema is not None and (problem := schema_problem(schema)):
        document.complain(here, problem)
    invalid = check(StepInvalidEntry, document, (*path, "on_invalid")) or StepInvalidEntry()
    return {"schema": schema, "on_invalid": invalid.model_dump(exclude_none=True)}


def _schema_file(document: Document, path: Path, name: str) -> Any:
    """Returns what is in a schema's file, which is named from the pipeline's own folder; None, with a problem: nothing."""
    shown = document.show(path, name)
    try:
        with (FilePath(document.file).parent / name).open("rb") as file:
            raw = file.read(MOST_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        document.complain(path, f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    if len(raw) > MOST_SCHEMA_BYTES:
        document.complain(path, f"{shown} is larger than {MOST_SCHEMA_BYTES // 1024} KiB")
        return None
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        document.complain(path, f"{shown} is no JSON: line {error.lineno}: {error.msg}")
        return None
