"""The policy folder: named sets, built-in defaults, unknown files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.call import LANES
from gateway.config.counting import KINDS
from gateway.config.policies import FILES, read_policies
from gateway.config.problems import Problem
from gateway.config.schema import AdmissionSet, CountingEntry, LaneEntry, QueueSet, ShedEntry, TimeoutsSet
from gateway.policy.snapshot import Counting, Holding, Model, QueueBounds
from gateway.ports import Clocks
from tests.config.support import ROOT, load_text, problems_of, with_policies

BUILT_IN = Clocks(connect_s=5, write_s=60, first_byte_s=600, idle_s=300, total_s=3600)


def test_shipped_files_are_the_built_in_defaults() -> None:
    """Whoever copies the folder changes nothing by it."""
    problems: list[Problem] = []

    shipped, built_in = read_policies(ROOT / "policies", {}, problems), read_policies(None, {}, problems)

    assert problems == []
    assert {Path(document.file).name for document in shipped.documents} == set(FILES)
    assert shipped.admission == built_in.admission
    assert shipped.queue == built_in.queue
    assert shipped.clocks == built_in.clocks == {"default": BUILT_IN}


def test_built_in_defaults_are_those_of_the_compiled_policy() -> None:
    """A snapshot made by hand behaves as one that was loaded without files."""
    built_in = read_policies(None, {}, [])

    assert built_in.queue.holding == {"default": Holding()}
    assert built_in.queue.bounds == QueueBounds()
    assert built_in.queue.lane_deadline_s == {"critical": 30, "interactive": 30, "batch": 600, "background": 21600}
    assert list(built_in.queue.lane_deadline_s) == list(LANES)
    counting = built_in.admission["default"].counting("other", adaptive=False, find_tokenizer=None)
    assert counting == Counting(charge="real", arrival_lag_s=0.1)
    assert built_in.admission["default"].include_usage is Model("m", (), ()).include_usage


def test_shipped_files_are_complete() -> None:
    """Every field that exists is written out; what has no default, or that of another lane, in a comment."""
    text = {name: (ROOT / "policies" / name).read_text() for name in FILES}
    shipped = {name: yaml.safe_load(text[name])["default"] for name in FILES}
    admission, queue = shipped["admission.yaml"], shipped["queue.yaml"]

    assert set(admission) == set(AdmissionSet.model_fields)
    assert list(admission["providers"]) == list(KINDS)
    assert all(set(rule) == set(CountingEntry.model_fields) for rule in admission["providers"].values())
    assert set(shipped["timeouts.yaml"]) == set(TimeoutsSet.model_fields)
    assert set(queue) == set(QueueSet.model_fields)
    assert set(queue["lanes"]) == set(LANES) - {"critical"}
    assert set(queue["lanes"]["batch"]) == set(queue["lanes"]["background"]) == set(LaneEntry.model_fields)
    assert set(queue["lanes"]["interactive"]) == set(LaneEntry.model_fields) - {"age_after"}
    assert set(queue["shed"]) == set(ShedEntry.model_fields) - {"memory"}
    assert "`critical`" in text["queue.yaml"]
    assert "# memory:" in text["queue.yaml"]


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

    assert models["gpt-4o"].targets[0].clocks == Clocks(1, 60, 600, 300, 3600)
    assert models["o3"].targets[0].clocks == Clocks(5, 60, 1800, 300, 3600)
    assert models["o4"].targets[0].clocks == BUILT_IN
    assert [models[name].include_usage for name in ("gpt-4o", "o3")] == [True, False]


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


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("timeout.yaml", "", 'rules/timeout.yaml: unknown policy file; did you mean "timeouts.yaml"?'),
        ("queue.yml", "", 'rules/queue.yml: unknown policy file; did you mean "queue.yaml"?'),
        (
            "zzz.yaml",
            "",
            "rules/zzz.yaml: unknown policy file; there are: admission.yaml, queue.yaml, timeouts.yaml",
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


def test_bad_set_can_still_be_picked(tmp_path: Path) -> None:
    """A mistake inside a set does not make its name unknown."""
    text = with_policies(tmp_path, timeouts="slow: {idle: x}") + "  o3: {targets: [openai], timeouts: slow}\n"

    problems = problems_of(tmp_path, text)

    assert len(problems) == 1
    assert "slow.idle" in problems[0]
