"""Reads `workflows.yaml`: which workflows there are, of which tasks, when a run has ended, and what it may cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field

from gateway.admin.describe import plain
from gateway.core.config.fields import Amount, Count, PositiveDuration, Section, Text, parse_duration, problem_of
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings, placed_after
from gateway.core.config.schema import Entry, KeyEntry, check
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.snapshot import ExplainedRequest, Key, PolicySnapshot
from gateway.features.runs.rules import IDLE_S, KEY_WORKFLOW, OTHER, WORKFLOWS, Ends, WorkflowRules, Workflows
from gateway.features.runs.step import ID_CHARS, is_id, part_of, run_words

MOST_WORKFLOWS: Final = 100
MOST_TASKS_DECLARED: Final = 20


def _slo(value: object) -> float:
    """Returns `99.5%` as 0.995."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d+)?) ?%", value) if isinstance(value, str) else None
    if found is None or not 0 < float(found[1]) <= 100:
        raise problem_of("must be a percentage above 0, such as 99%")
    return float(found[1]) / 100


def _ends(value: object) -> tuple[Ends, float]:
    """Returns how a run ends, and after how many seconds without a call it is over in any case."""
    if value == "last_task":
        return "last_task", IDLE_S
    if value == "told":
        return "told", IDLE_S
    word, _, time = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if word == "idle":
        try:
            idle_s = parse_duration(time)
        except ValueError:
            idle_s = 0.0
        if idle_s > 0:
            return "idle", idle_s
    raise problem_of("must be last_task, told, or idle and a time, such as idle 5m")


class WorkflowsFile(Entry):
    """The file workflows.yaml."""

    workflows: Section = Field(default_factory=dict)


class WorkflowEntry(Entry):
    """One workflow. Keep the defaults in step with policies/workflows.yaml."""

    tasks: list[Any] = Field(default_factory=list)
    slo: Annotated[float, BeforeValidator(_slo)] | None = None
    deadline: PositiveDuration | None = None
    usd_per_run: Amount | None = None
    max_calls_per_run: Count | None = None
    ends: Annotated[tuple[Ends, float], BeforeValidator(_ends)] = Field(default=("last_task", IDLE_S))


class WorkflowsSection(SectionSpec):
    """The file workflows.yaml, and the workflow of a key."""

    policy_files = ("workflows.yaml",)
    of_key: ClassVar[EntryField[str | None]] = EntryField("workflow", Text | None, None, after="allow_overspend")
    key_fields = (of_key,)
    explain_order = -3

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        return {WORKFLOWS: read_workflows(documents.get("workflows.yaml"))}

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        workflow, workflows = self.of_key.of(entry), WORKFLOWS.of(reading)
        if workflow is not None and workflow not in workflows:
            suggestion = did_you_mean(workflow, workflows)
            reading.document.complain(
                (*path, "workflow"), f"no workflow {quoted(workflow)} in workflows.yaml{suggestion}"
            )
        return {KEY_WORKFLOW: workflow or ""}

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["webhooks", "passthrough_admin"], shown, workflows=plain(WORKFLOWS.of(snapshot)))

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["keeps_responses", "allow_overspend"], shown, workflow=KEY_WORKFLOW.of(key))

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields which workflow a call is a part of by its key or body, and where the budget of its runs ends."""
        words = run_words({}, (request.parsed or {}).get("metadata"))
        part = part_of(words, WORKFLOWS.of(request.policy), KEY_WORKFLOW.of(request.key))
        if part is None:
            return
        rules = part.rules
        if rules is None:
            yield f"workflow  {part.workflow or 'none'}: not declared, counted as {OTHER}"
            return
        bounds = [] if rules.usd_per_run is None else [f"${rules.usd_per_run:g}"]
        bounds += [] if rules.max_calls_per_run is None else [f"{rules.max_calls_per_run} calls"]
        fuse = f"a run may take {' and '.join(bounds)}" if bounds else "its runs have no fuse"
        yield f"workflow  {rules.name}, counted as task {part.labels[1]}; {fuse}"


def read_workflows(document: Document | None) -> Workflows:
    """Reads workflows.yaml; None: the file does not exist, and no workflow is declared."""
    if document is None:
        return {}
    file = check(WorkflowsFile, document, ())
    if file is None:
        return {}
    if len(file.workflows) > MOST_WORKFLOWS:
        document.complain(("workflows",), f"{len(file.workflows)} workflows are too many: at most {MOST_WORKFLOWS}")
    found = {}
    for name in file.workflows:
        path: Path = "workflows", name
        _check_name(document, path, name, "workflow")
        entry = check(WorkflowEntry, document, path)
        if entry is not None:
            found[name] = _rules(document, path, name, entry)
    return found


def _rules(document: Document, path: Path, name: str, entry: WorkflowEntry) -> WorkflowRules:
    here = (*path, "tasks")
    if len(entry.tasks) > MOST_TASKS_DECLARED:
        document.complain(here, f"{len(entry.tasks)} tasks are too many: at most {MOST_TASKS_DECLARED}")
    for index, task in enumerate(entry.tasks):
        _check_name(document, (*here, index), task, "task")
        if task in entry.tasks[:index]:
            document.complain((*here, index), f"{quoted(task)} is here twice")
    ends, idle_s = entry.ends
    if ends == "last_task" and not entry.tasks:
        if "ends" in entry.model_fields_set:
            document.complain(
                (*path, "ends"), "last_task needs tasks: name them in their order, or say told or idle 5m"
            )
        ends = "idle"
    return WorkflowRules(
        name,
        tuple(str(task) for task in entry.tasks),
        ends,
        idle_s,
        entry.slo,
        entry.deadline,
        entry.usd_per_run,
        entry.max_calls_per_run,
    )


def _check_name(document: Document, path: Path, name: object, what: str) -> None:
    if not is_id(name):
        document.complain(path, f"the name of a {what} must have 1 to 128 of {ID_CHARS}")
    elif name == OTHER:
        document.complain(path, f"'{OTHER}' is what undeclared ones are counted as: choose another name")
