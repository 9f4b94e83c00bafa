"""The reference of the config and of the policies has every field with its default, and no other."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter

import gateway
from gateway.core.balancing import BUILT_IN_RULES, Action
from gateway.core.config.admission import KINDS as PROVIDER_KINDS
from gateway.core.config.admission import QUEUE_LANES, AdmissionSet, CountingEntry, LaneEntry, QueueSet, ShedEntry
from gateway.core.config.error_tables import RuleEntry
from gateway.core.config.policies import CLOCK_ENDPOINTS, CLOCK_LANES, ClocksEntry, DripEntry, SuspectEntry, TimeoutsSet
from gateway.core.config.prices import LongInputPrices, PriceEntry, TierPrices, UnitPrices
from gateway.core.config.product_sections import entry_kinds
from gateway.core.config.retries import (
    ACTIONS,
    CLASSES,
    HOLD_LANES,
    BackoffEntry,
    BreakersSet,
    BudgetEntry,
    ClassEntry,
    CostEntry,
    HedgeEntry,
    RetriesSet,
)
from gateway.core.config.schema import (
    AdminEntry,
    BodyEntry,
    CapabilitiesEntry,
    ConfigFile,
    Entry,
    KeyEntry,
    LimitedEntry,
    ModelEntry,
    PassthroughEntry,
    ProviderEntry,
    ServerEntry,
    TargetEntry,
)
from gateway.credentials.config import AuthEntry
from gateway.dialects.config import ModelFactsEntry
from gateway.drivers.config import RedisEntry
from gateway.features.degrade.config import ModelDegradeEntry, SlowEntry
from gateway.features.grouping.config import GroupEntry
from gateway.features.output.config import OnInvalidEntry, OutputEntry
from gateway.features.ownership.config import ObjectsEntry
from gateway.features.reuse.config import CacheSet, ExactEntry, IdempotencyEntry, SemanticEntry
from gateway.features.runs.config import WorkflowEntry, WorkflowsFile
from gateway.products.jobs.config import JobsEntry
from gateway.products.jobs.policies_config import (
    BatchesEntry,
    BrakeEntry,
    DeadLettersEntry,
    DegradeEntry,
    JobBackoffEntry,
    JobsSet,
    KeepEntry,
    NativeEntry,
    ResponsesEntry,
    SegmentEntry,
)
from gateway.products.jobs.webhooks.config import WebhookEntry, WebhookSettingsEntry
from gateway.products.pipelines.config import (
    BranchEntry,
    OnFailureEntry,
    PipelineFile,
    StepEntry,
    StepInvalidEntry,
    StepOutputEntry,
)
from gateway.sections import SECTIONS
from tests.docs.support import reference, rows, section, words
from tests.rows import rows as each

KINDS = entry_kinds(SECTIONS)

TABLES: dict[type[Entry], tuple[str, str]] = {
    KINDS.config: ("config", "## The file"),
    ServerEntry: ("config", "## server"),
    AdminEntry: ("config", "## admin"),
    RedisEntry: ("config", "## state"),
    JobsEntry: ("config", "## jobs"),
    KINDS.provider: ("config", "## providers"),
    AuthEntry: ("config", "### auth"),
    KINDS.model: ("config", "## models"),
    KINDS.target: ("config", "## targets"),
    BodyEntry: ("config", "### body"),
    GroupEntry: ("config", "### group_embeddings"),
    ModelDegradeEntry: ("config", "### degrade"),
    OutputEntry: ("config", "### output"),
    OnInvalidEntry: ("config", "### on_invalid"),
    CapabilitiesEntry: ("config", "### capabilities"),
    PriceEntry: ("config", "### price"),
    PassthroughEntry: ("config", "## passthrough"),
    ObjectsEntry: ("config", "## objects"),
    WebhookEntry: ("config", "## webhooks"),
    WebhookSettingsEntry: ("config", "## webhook_settings"),
    KINDS.key: ("config", "## keys"),
    AdmissionSet: ("policies", "## admission.yaml"),
    CountingEntry: ("policies", "### providers"),
    QueueSet: ("policies", "## queue.yaml"),
    LaneEntry: ("policies", "### lanes"),
    ShedEntry: ("policies", "### shed"),
    RetriesSet: ("policies", "## retries.yaml"),
    BackoffEntry: ("policies", "### backoff"),
    BudgetEntry: ("policies", "### budget"),
    CostEntry: ("policies", "### by_cost"),
    HedgeEntry: ("policies", "### hedge"),
    BreakersSet: ("policies", "## breakers.yaml"),
    TimeoutsSet: ("policies", "## timeouts.yaml"),
    DripEntry: ("policies", "### drip"),
    SuspectEntry: ("policies", "### suspect"),
    CacheSet: ("policies", "## cache.yaml"),
    IdempotencyEntry: ("policies", "### idempotency"),
    ExactEntry: ("policies", "### exact"),
    SemanticEntry: ("policies", "### semantic"),
    JobsSet: ("policies", "## jobs.yaml"),
    JobBackoffEntry: ("policies", "### backoff of jobs"),
    SegmentEntry: ("policies", "### segments"),
    KeepEntry: ("policies", "### keep"),
    DeadLettersEntry: ("policies", "### dead_letters"),
    BatchesEntry: ("policies", "### batches"),
    NativeEntry: ("policies", "### native"),
    BrakeEntry: ("policies", "### brake"),
    DegradeEntry: ("policies", "### degrade_to_job"),
    ResponsesEntry: ("policies", "### responses"),
    WorkflowEntry: ("policies", "### A workflow"),
    ModelFactsEntry: ("policies", "### A row"),
    PipelineFile: ("policies", "## pipelines/NAME.yaml"),
    StepEntry: ("policies", "### steps"),
    BranchEntry: ("policies", "### choose"),
    OnFailureEntry: ("policies", "### on_failure"),
    StepOutputEntry: ("policies", "### output of a step"),
    StepInvalidEntry: ("policies", "### on_invalid of a step"),
    RuleEntry: ("policies", "## errors/KIND.yaml"),
}
"""Where the fields of each kind of entry are told, in a table with their defaults."""

IN_WORDS: dict[type[Entry], tuple[str, str]] = {
    QUEUE_LANES: ("policies", "### lanes"),
    ClassEntry: ("policies", "### What each class deserves"),
    HOLD_LANES: ("policies", "## breakers.yaml"),
    WorkflowsFile: ("policies", "## workflows.yaml"),
    SlowEntry: ("config", "### degrade"),
    ClocksEntry: ("policies", "## timeouts.yaml"),
    CLOCK_LANES: ("policies", "## timeouts.yaml"),
    CLOCK_ENDPOINTS: ("policies", "## timeouts.yaml"),
    LongInputPrices: ("config", "### price"),
    TierPrices: ("config", "### price"),
}
"""Where the fields of the others are told: they repeat what is in a table, or are names of lanes and endpoints."""
WITHOUT_A_PLACE: set[type[Entry]] = {
    LimitedEntry,
    UnitPrices,
    ConfigFile,
    ProviderEntry,
    ModelEntry,
    TargetEntry,
    KeyEntry,
}
"""What others are made of."""

RETRY = {Action.RETRY: "{attempts: N}"}
"""How an action is written that is no word."""


def entries() -> set[type[Entry]]:
    """Every kind of entry that a user can write."""
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if "config" not in module.name.split(".") and not module.name.endswith("_config"):
            continue
        importlib.import_module(module.name)
    found, rest = set[type[Entry]](), [Entry]
    while rest:
        more = rest.pop().__subclasses__()
        found.update(more)
        rest.extend(more)
    ours = {kind for kind in found if kind.__module__.startswith("gateway.")}
    return {*KINDS, *(kind for kind in ours if kind.__module__ != entry_kinds.__module__)}


def names_of(kind: type[Entry]) -> set[str]:
    """The fields as a user writes them."""
    return {field.alias or name for name, field in kind.model_fields.items()}


def test_every_entry_has_its_place_in_the_reference() -> None:
    """A new section of a config cannot be left out."""
    assert entries() == {*TABLES, *IN_WORDS, *WITHOUT_A_PLACE}


@each("kind", TABLES, ids=lambda kind: kind.__name__)
def test_tables_have_every_field_and_no_other(kind: type[Entry]) -> None:
    """What the loader takes is in the table, and what is in the table the loader takes."""
    page, heading = TABLES[kind]

    told = {name for row in rows(section(reference(page), heading)) for name in words(row[0])}

    assert told == names_of(kind)


@each("kind", TABLES, ids=lambda kind: kind.__name__)
def test_tables_tell_the_defaults_that_hold(kind: type[Entry]) -> None:
    """A default that is written in the table, read as YAML, is what the loader has where nothing is said."""
    page, heading = TABLES[kind]
    told = {name: row[1] for row in rows(section(reference(page), heading)) for name in words(row[0])}
    for name, field in kind.model_fields.items():
        default = told[field.alias or name]
        if field.is_required():
            assert default == "required", name
            continue
        value = field.get_default(call_default_factory=True)
        if default.startswith("`"):
            special: Any = Annotated
            annotated = special[(field.annotation, "as told", *field.metadata)]
            assert TypeAdapter(annotated).validate_python(yaml.safe_load(default.strip("`"))) == value, name
        else:
            assert not default, f"{name}: a default stands in backticks"
            assert not value, name


@each("kind", IN_WORDS, ids=lambda kind: kind.__name__)
def test_other_fields_are_named_where_they_belong(kind: type[Entry]) -> None:
    """Names of lanes and endpoints, and what repeats another table."""
    page, heading = IN_WORDS[kind]

    told = set(re.findall(r"[a-z0-9_]+", section(reference(page), heading)))

    assert names_of(kind) <= told


def test_values_with_names_are_told() -> None:
    """The kinds of providers, and what each class of errors deserves where nothing is said."""
    assert set(PROVIDER_KINDS) <= words(section(reference("config"), "## providers"))
    classes = section(reference("policies"), "### What each class deserves")
    assert set(ACTIONS) <= words(classes)
    built_in = {name: row[0].strip("`") for row in rows(classes) for name in words(row[2]) if name in BUILT_IN_RULES}
    assert set(CLASSES) <= words(classes)
    assert built_in == {name: RETRY.get(rule.action, rule.action.value) for name, rule in BUILT_IN_RULES.items()}
