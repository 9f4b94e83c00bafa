"""Reads `jobs.yaml`: how durable work is tried, shared out and kept, by set.

A model picks a set; what concerns all jobs at once (`segments`, `keep`, `dedupe_for`, `dead_letters`, `allow_request_urls`)
only the set `default` can say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.core.balancing import Backoff, CostRule
from gateway.core.config.fields import (
    Attempts,
    Count,
    Duration,
    Factor,
    Flag,
    PositiveDuration,
    Section,
    Size,
    UpToOne,
    Usd,
    Whole,
    problem_of,
)
from gateway.core.config.retries import CostEntry
from gateway.core.config.schema import Entry, check, check_part, check_sets
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.types import LANES, ErrorClass
from gateway.installed import is_installed
from gateway.products.jobs.rules import (
    DEGRADING,
    WEBHOOK_SEGMENT,
    BatchRules,
    DeadLetterRules,
    DeadLines,
    DegradeRules,
    JobRules,
    NativeRules,
    OnCrash,
    ResponseRules,
    RunAs,
    SegmentRules,
    StoreMode,
)

HAS_WEBHOOKS: Final = is_installed("gateway.products.jobs.webhooks")
PARTS: Final = {"batches": "gateway.products.batches", "responses": "gateway.products.responses"}
"""The sections of a set that are only for a product, by their names."""

_BUILT_IN: Final = JobRules()
_BATCHES: Final = BatchRules()
_NATIVE: Final = NativeRules()
_DEAD: Final = DeadLetterRules()
_OF_ALL: Final = ("segments", "keep", "dedupe_for", "dead_letters", "allow_request_urls")


def _part_of(value: object) -> float:
    """Returns `50%` as 0.5."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d+)?) ?%", value) if isinstance(value, str) else None
    if found is None or not 0 < float(found[1]) <= 100:
        raise problem_of("must be a percentage above 0, such as 50%")
    return float(found[1]) / 100


def _off(value: object) -> object:
    """Returns what YAML makes of the bare word `off` as the word."""
    return "off" if value is False else value


PartOf = Annotated[float, BeforeValidator(_part_of)]


class JobsSet(Entry):
    """A set of jobs.yaml. Keep the defaults in step with policies/jobs.yaml."""

    attempts: Attempts = _BUILT_IN.attempts
    deadline: PositiveDuration = _BUILT_IN.deadline_s
    backoff: Section = Field(default_factory=dict)
    by_cost: list[Any] | None = None
    segments: Section | None = None
    keep: Section = Field(default_factory=dict)
    dedupe_for: Duration = _BUILT_IN.dedupe_for_s
    dead_letters: Section = Field(default_factory=dict)
    allow_request_urls: Flag = _BUILT_IN.allow_request_urls
    batches: Section = Field(default_factory=dict)
    degrade_to_job: Section = Field(default_factory=dict)
    responses: Section = Field(default_factory=dict)


class JobBackoffEntry(Entry):
    base: PositiveDuration = _BUILT_IN.backoff.base_s
    factor: Factor = _BUILT_IN.backoff.factor
    max: PositiveDuration = _BUILT_IN.backoff.max_s
    jitter: Literal["full"] = "full"

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.base > self.max:
            raise problem_of("max must not be less than base")
        return self


class SegmentEntry(Entry):
    below_usd: Usd | None = None
    concurrency: Count = 100


class KeepEntry(Entry):
    jobs: PositiveDuration = _BUILT_IN.keep_jobs_s
    files: PositiveDuration = _BUILT_IN.keep_files_s
    dead: PositiveDuration = _BUILT_IN.keep_dead_s
    background: PositiveDuration = _BUILT_IN.keep_background_s
    stored_responses: PositiveDuration = _BUILT_IN.keep_responses_s
    runs: PositiveDuration = _BUILT_IN.keep_runs_s


class DeadLettersEntry(Entry):
    max_bytes: Size = _DEAD.max_bytes
    samples: Count = _DEAD.samples
    lines: DeadLines = _DEAD.lines


class BatchesEntry(Entry):
    run: RunAs = _BATCHES.run
    standard_before_end: Duration = _BATCHES.standard_before_end_s
    max_lines: Count = _BATCHES.max_lines
    max_bytes: Size = _BATCHES.max_bytes
    mixed_models: Flag = _BATCHES.mixed_models
    window: Count = _BATCHES.window
    parallel_chunks: Count = _BATCHES.parallel_chunks
    slice: PositiveDuration = _BATCHES.slice_s
    brake: Section = Field(default_factory=dict)
    cancel_grace: Duration = _BATCHES.cancel_grace_s
    group_embeddings: Whole = _BATCHES.group_embeddings
    native: Section = Field(default_factory=dict)


class NativeEntry(Entry):
    min_lines: Count = _NATIVE.min_lines
    part_lines: Count = _NATIVE.part_lines
    take_back_after: PartOf = _NATIVE.take_back_after
    price_factor: UpToOne | None = _NATIVE.price_factor
    split: dict[str, Count] = Field(default_factory=dict)


class BrakeEntry(Entry):
    after: Count = _BATCHES.brake_after
    classes: list[str] | None = None


class ResponsesEntry(Entry):
    store: Annotated[StoreMode | None, BeforeValidator(_off)] = None
    on_crash: OnCrash = ResponseRules().on_crash


class DegradeEntry(Entry):
    lanes: list[str] = Field(default_factory=list)
    when: list[str] | None = None


def read_jobs(document: Document | None) -> dict[str, JobRules]:
    """Reads every set of jobs.yaml; None: the file does not exist."""
    sets = {name: _rules(document, name, entry) for name, entry in check_sets(JobsSet, document).items()}
    of_all = {field.name: getattr(sets["default"], field.name) for field in fields(JobRules) if _is_of_all(field.name)}
    return {name: replace(rules, **of_all) for name, rules in sets.items()}


def _is_of_all(field: str) -> bool:
    return field.removesuffix("_s") in _OF_ALL or field.startswith("keep_")


def _rules(document: Document | None, name: str, entry: JobsSet) -> JobRules:
    if document is not None and name != "default":
        for one in _OF_ALL:
            if one in entry.model_fields_set:
                document.complain((name, one), "concerns all jobs at once: only the set `default` can say it")
    for one, package in PARTS.items():
        if document is not None and one in entry.model_fields_set and not is_installed(package):
            document.complain((name, one), f"{quoted(one)} is not installed")
    backoff = check_part(JobBackoffEntry, document, (name, "backoff"))
    keep = check_part(KeepEntry, document, (name, "keep"))
    dead = check_part(DeadLettersEntry, document, (name, "dead_letters"))
    return JobRules(
        attempts=entry.attempts,
        deadline_s=entry.deadline,
        backoff=Backoff(base_s=backoff.base, factor=backoff.factor, max_s=backoff.max),
        by_cost=_by_cost(document, name, entry),
        segments=_segments(document, name, entry),
        keep_jobs_s=keep.jobs,
        keep_files_s=keep.files,
        keep_dead_s=keep.dead,
        keep_background_s=keep.background,
        keep_responses_s=keep.stored_responses,
        keep_runs_s=keep.runs,
        dedupe_for_s=entry.dedupe_for,
        dead_letters=DeadLetterRules(dead.max_bytes, dead.samples, dead.lines),
        allow_request_urls=entry.allow_request_urls,
        batches=_batches(document, name),
        degrade=_degrade(document, name),
        responses=ResponseRules(**check_part(ResponsesEntry, document, (name, "responses")).model_dump()),
    )


def _by_cost(document: Document | None, name: str, entry: JobsSet) -> tuple[CostRule, ...]:
    if entry.by_cost is None or document is None:
        return () if "attempts" in entry.model_fields_set else tuple(_BUILT_IN.by_cost)
    found = [check(CostEntry, document, (name, "by_cost", index)) for index in range(len(entry.by_cost))]
    return tuple(CostRule(one.attempts, one.above_usd, one.below_usd) for one in found if one is not None)


def _segments(document: Document | None, name: str, entry: JobsSet) -> tuple[SegmentRules, ...]:
    """Returns the segments in their order; the last one takes every job."""
    if not entry.segments or document is None:
        return tuple(_BUILT_IN.segments)
    found = {one: check_part(SegmentEntry, document, (name, "segments", one)) for one in entry.segments}
    for one in found:
        if HAS_WEBHOOKS and one.startswith(WEBHOOK_SEGMENT):
            document.complain((name, "segments", one), f"names that begin with {WEBHOOK_SEGMENT} are those of webhooks")
    last = list(found)[-1]
    if found[last].below_usd is not None:
        document.complain(
            (name, "segments", last, "below_usd"), "the last segment takes all other jobs: leave it out there"
        )
    below_usd = 0.0
    for one, part in list(found.items())[:-1]:
        here = (name, "segments", one)
        if part.below_usd is None:
            document.complain(here, "needs below_usd: without it this segment takes all jobs, and those behind it none")
        elif part.below_usd <= below_usd:
            document.complain(
                (*here, "below_usd"), "must be more than that of the segment before, which has these jobs"
            )
        below_usd = part.below_usd or below_usd
    return tuple(SegmentRules(one, part.below_usd, part.concurrency) for one, part in found.items())


def _batches(document: Document | None, name: str) -> BatchRules:
    entry = check_part(BatchesEntry, document, (name, "batches"))
    brake = check_part(BrakeEntry, document, (name, "batches", "brake"))
    _check_words(document, (name, "batches", "brake", "classes"), brake.classes, list(ErrorClass), "class of errors")
    return BatchRules(
        run=entry.run,
        standard_before_end_s=entry.standard_before_end,
        max_lines=entry.max_lines,
        max_bytes=entry.max_bytes,
        mixed_models=entry.mixed_models,
        window=entry.window,
        parallel_chunks=entry.parallel_chunks,
        slice_s=entry.slice,
        brake_after=brake.after,
        brake_classes=_BATCHES.brake_classes if brake.classes is None else frozenset(brake.classes),
        cancel_grace_s=entry.cancel_grace,
        group_embeddings=entry.group_embeddings,
        native=NativeRules(**check_part(NativeEntry, document, (name, "batches", "native")).model_dump()),
    )


def _degrade(document: Document | None, name: str) -> DegradeRules:
    path = name, "degrade_to_job"
    entry = check_part(DegradeEntry, document, path)
    _check_words(document, (*path, "lanes"), entry.lanes, LANES, "lane")
    _check_words(document, (*path, "when"), entry.when, DEGRADING, "refusal")
    lanes = frozenset(lane for lane in LANES if lane in entry.lanes)
    return DegradeRules(lanes) if entry.when is None else DegradeRules(lanes, frozenset(entry.when))


def _check_words(
    document: Document | None, path: Path, words: Sequence[str] | None, known: Sequence[str], what: str
) -> None:
    """Notes those of a list that are no words of the vocabulary."""
    for index, one in enumerate(words or ()):
        if document is not None and one not in known:
            document.complain((*path, index), f"unknown {what}{did_you_mean(one, known)}")
