"""The policy folder: named sets, built-in defaults, unknown files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from gateway.core.balancing import Retries
from gateway.core.config.admission import KINDS, AdmissionSet, CountingEntry, LaneEntry, QueueSet, ShedEntry
from gateway.core.config.policies import TimeoutsSet, policy_files, read_policies, read_timeouts
from gateway.core.config.product_sections import Settings
from gateway.core.config.retries import (
    CLASSES,
    HOLD_LANES,
    BackoffEntry,
    BreakersSet,
    BudgetEntry,
    HedgeEntry,
    RetriesSet,
)
from gateway.core.config.source import Problem
from gateway.core.health.detector import BreakerRules
from gateway.core.snapshot import Counting, Holding, Model
from gateway.core.types import LANES, QueueBounds, StoreBounds
from gateway.dialects.config import MODEL_TABLE
from gateway.features.reuse.config import (
    CACHE_SETS,
    CachePolicies,
    CacheSet,
    ExactEntry,
    IdempotencyEntry,
    SemanticEntry,
)
from gateway.features.reuse.rules import Caching
from gateway.features.runs.config import WorkflowEntry
from gateway.sections import SECTIONS
from tests.rows import rows
from tests.support.configs import GOOD, ROOT, load_text, problems_of, with_policies

BUILT_IN = read_timeouts(None)["default"].default


def without_table(settings: Settings) -> Settings:
    """All but the rows of models.yaml, which are read when they are asked for."""
    return {setting: value for setting, value in settings.items() if setting is not MODEL_TABLE}


def test_shipped_files_are_the_built_in_defaults() -> None:
    """Whoever copies the folder changes nothing by it."""
    problems: list[Problem] = []

    shipped, built_in = (read_policies(folder, {}, problems, sections=SECTIONS) for folder in (ROOT / "policies", None))

    assert problems == []
    own = [Path(document.file) for document in shipped.documents]
    assert {file.name for file in own if file.parent.name != "errors"} == set(policy_files(SECTIONS))
    assert shipped.admission == built_in.admission
    assert shipped.queue == built_in.queue
    assert shipped.retries == built_in.retries
    assert shipped.breakers == built_in.breakers
    assert without_table(shipped.settings) == without_table(built_in.settings)
    assert [shipped.errors.of(kind) for kind in KINDS] == [built_in.errors.of(kind) for kind in KINDS]
    assert shipped.timeouts == built_in.timeouts == {"default": read_timeouts(None)["default"]}


def test_built_in_defaults_are_those_of_the_compiled_policy() -> None:
    """A snapshot made by hand behaves as one that was loaded without files."""
    built_in = read_policies(None, {}, [], sections=SECTIONS)

    assert built_in.queue.holding == {"default": Holding()}
    assert built_in.queue.bounds == QueueBounds()
    assert built_in.queue.lane_deadline_s == {"critical": 30, "interactive": 30, "batch": 600, "background": 21600}
    assert built_in.retries == {"default": Retries()}
    assert built_in.breakers == {"default": BreakerRules()}
    assert CACHE_SETS.of(built_in) == CachePolicies({"default": Caching()}, StoreBounds({}, 256 * 1024 * 1024).records)
    assert list(built_in.queue.lane_deadline_s) == list(LANES)
    counting = built_in.admission["default"].counting("other", adaptive=False, find_tokenizer=None)
    assert counting == Counting(charge="real", arrival_lag_s=0.1)
    assert built_in.admission["default"].include_usage is Model("m", (), ()).include_usage


def test_shipped_files_are_complete() -> None:
    """Every field that exists is written out; what has no default, or that of another lane, in a comment."""
    text = {name: (ROOT / "policies" / name).read_text() for name in policy_files(SECTIONS)}
    shipped = {name: yaml.safe_load(text[name]).get("default") for name in policy_files(SECTIONS)}
    admission, queue = shipped["admission.yaml"], shipped["queue.yaml"]
    retries, breakers, cache = shipped["retries.yaml"], shipped["breakers.yaml"], shipped["cache.yaml"]

    assert set(admission) == set(AdmissionSet.model_fields)
    assert list(admission["providers"]) == list(KINDS)
    assert all(set(rule) == set(CountingEntry.model_fields) for rule in admission["providers"].values())
    assert set(shipped["timeouts.yaml"]) == set(TimeoutsSet.model_fields)
    assert set(queue) == set(QueueSet.model_fields)
    assert set(queue["lanes"]) == set(LANES) - {"critical"}
    assert set(queue["lanes"]["batch"]) == set(queue["lanes"]["background"]) == set(LaneEntry.model_fields)
    assert set(queue["lanes"]["interactive"]) == set(LaneEntry.model_fields) - {"age_after", "deadline"}
    assert "# deadline: 30s" in text["queue.yaml"]
    assert set(queue["shed"]) == set(ShedEntry.model_fields) - {"memory"}
    assert "`critical`" in text["queue.yaml"]
    assert "# memory:" in text["queue.yaml"]
    assert set(retries) == set(RetriesSet.model_fields) - {"max_usd_per_call", "hedge"}
    assert set(retries["backoff"]) == set(BackoffEntry.model_fields)
    assert set(retries["budget"]) == set(BudgetEntry.model_fields)
    assert set(retries["by_class"]) == set(CLASSES) - {"rate_limit_requests", "rate_limit_tokens"}
    assert "# max_usd_per_call: " in text["retries.yaml"]
    assert all(f"#   {field}: " in text["retries.yaml"] for field in HedgeEntry.model_fields)
    assert set(cache) == set(CacheSet.model_fields) - {"semantic"}
    assert set(cache["idempotency"]) == set(IdempotencyEntry.model_fields)
    assert set(cache["exact"]) == set(ExactEntry.model_fields)
    assert all(f"#   {field}: " in text["cache.yaml"] for field in SemanticEntry.model_fields)
    assert set(breakers) == set(BreakersSet.model_fields)
    assert all(f"#     {field}: " in text["workflows.yaml"] for field in WorkflowEntry.model_fields)
    assert set(breakers["hold_for"]) == set(HOLD_LANES.model_fields) - {"critical"}


def test_named_set_is_picked_by_a_model_and_inherits_the_rest(tmp_path: Path) -> None:
    """A set says only what differs from the built-in defaults."""
    text = with_policies(
        tmp_path,
        timeouts="default: {connect: 1s}\npatient: {first_byte: 30m}\nempty:\n",
        admission="quiet: {include_usage: false}\n",
    )

    models = load_text(
        tmp_path,
        f"{text}  o3: {{targets: [openai], timeouts: patient, admission: quiet}}\n"
        "  o4: {targets: [openai], timeouts: empty}\n",
    ).models

    assert models["gpt-4o"].targets[0].clocks == replace(BUILT_IN, connect_s=1)
    assert models["o3"].targets[0].clocks == replace(BUILT_IN, first_byte_s=1800)
    assert models["o4"].targets[0].clocks == BUILT_IN
    assert [models[name].include_usage for name in ("gpt-4o", "o3")] == [True, False]


def test_clocks_of_endpoints_and_lanes_reach_the_targets(tmp_path: Path) -> None:
    """By the set that the model picks; the other endpoints have those of `default`."""
    text = with_policies(
        tmp_path, timeouts="default: {endpoints: {passthrough: {total: 7s}}}\nx: {lanes: {batch: {idle: 9s}}}\n"
    )

    snapshot = load_text(tmp_path, f"{text}  o3: {{targets: [openai], timeouts: x}}\npassthrough: openai\n")

    target = snapshot.models["o3"].targets[0]
    assert target.clocks == BUILT_IN
    assert target.clocks_by["chat", "batch"] == replace(BUILT_IN, idle_s=9)
    assert snapshot.passthrough is not None
    assert snapshot.passthrough.clocks_by["passthrough", "batch"].total_s == 7


def test_files_are_listed_in_the_snapshot_and_count_for_its_digest(tmp_path: Path) -> None:
    """What was read is said, and a changed policy is a changed config."""
    text = with_policies(tmp_path, timeouts="default: {connect: 1s}")
    first = load_text(tmp_path, text)
    second = load_text(tmp_path, with_policies(tmp_path, timeouts="default: {connect: 2s}"))

    assert first.files == (str(tmp_path / "config.yaml"), str(tmp_path / "rules" / "timeouts.yaml"))
    assert first.digest != second.digest


def test_other_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    """README, editor leftovers and hidden files are none of ours; a comment-only file is an empty one."""
    text = with_policies(tmp_path, queue="# nothing yet\n")
    for name in ("README.md", "queue.yaml~", ".hidden.yaml", ".#queue.yaml"):
        (tmp_path / "rules" / name).write_text("{{{")
    (tmp_path / "rules" / "..data").mkdir()

    assert load_text(tmp_path, text).lane_deadline_s["batch"] == 600


@rows(
    ("file", "text", "problem"),
    [
        ("timeout.yaml", "", 'rules/timeout.yaml: unknown policy file; did you mean "timeouts.yaml"?'),
        ("queue.yml", "", 'rules/queue.yml: unknown policy file; did you mean "queue.yaml"?'),
        (
            "zzz.yaml",
            "",
            "rules/zzz.yaml: unknown policy file; there are: admission.yaml, breakers.yaml, cache.yaml, jobs.yaml, "
            "models.yaml, queue.yaml, retries.yaml, timeouts.yaml, workflows.yaml",
        ),
        ("timeouts.yaml", "", "rules/timeouts.yaml: is empty"),
        ("timeouts.yaml", "- x", "rules/timeouts.yaml:1: expected named sets such as `default: {...}`, not a list"),
        ("queue.yaml", "text", 'rules/queue.yaml:1: expected named sets such as `default: {...}`, not "text"'),
        (
            "timeouts.yaml",
            "default:\n  conect: 5s",
            'rules/timeouts.yaml:2: default.conect: unknown field; did you mean "connect"?',
        ),
        (
            "timeouts.yaml",
            "slow:\n  idle: 0s",
            'rules/timeouts.yaml:2: slow.idle: "0s" must be longer than nothing',
        ),
        (
            "timeouts.yaml",
            "default:\n  idle: ${NOPE}",
            "rules/timeouts.yaml:2: default.idle: the environment variable NOPE is not set",
        ),
        ("timeouts.yaml", "default: 5s", "rules/timeouts.yaml:1: default: expected a mapping, not text"),
    ],
)
def test_mistake_in_a_policy_file_is_said_once(tmp_path: Path, file: str, text: str, problem: str) -> None:
    """With the policy file's own name and line."""
    config = with_policies(tmp_path)
    (tmp_path / "rules" / file).write_text(text)

    assert problems_of(tmp_path, config) == [problem]


def test_error_tables_of_the_folder_reach_the_targets(tmp_path: Path) -> None:
    """By the kind of the provider; a file that nobody knows is a mistake there, too."""
    text = with_policies(tmp_path)
    (tmp_path / "rules" / "errors").mkdir()
    (tmp_path / "rules" / "errors" / "openai.yaml").write_text("mine: {code: teapot, class: overloaded}")
    (tmp_path / "rules" / "errors" / "README.md").write_text("not ours")

    snapshot = load_text(tmp_path, f"{text}passthrough: openai\n")

    built_in = load_text(tmp_path, GOOD).models["gpt-4o"].targets[0].errors.rules
    own, *rest = snapshot.models["gpt-4o"].targets[0].errors.rules
    assert (own.name, str(own.error_class), set(own.codes)) == ("own openai: mine", "overloaded", {"teapot"})
    assert tuple(rest) == built_in
    assert snapshot.passthrough is not None
    assert snapshot.passthrough.errors == snapshot.models["gpt-4o"].targets[0].errors
    assert snapshot.files[1:] == (str(tmp_path / "rules" / "errors" / "openai.yaml"),)
    (tmp_path / "rules" / "errors" / "opnai.yaml").write_text("{}")
    assert problems_of(tmp_path, text) == ['rules/errors/opnai.yaml: unknown error table; did you mean "openai.yaml"?']


def test_bad_set_can_still_be_picked(tmp_path: Path) -> None:
    """A mistake inside a set does not make its name unknown."""
    text = with_policies(tmp_path, timeouts="slow: {idle: x}") + "  o3: {targets: [openai], timeouts: slow}\n"

    problems = problems_of(tmp_path, text)

    assert len(problems) == 1
    assert "slow.idle" in problems[0]
