"""The policy folder: named sets, built-in defaults, unknown files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.config.policies import FILES, read_policies
from gateway.config.problems import Problem
from gateway.ports import Clocks
from tests.config.support import GOOD, ROOT, load_text, problems_of

BUILT_IN = Clocks(connect_s=5, write_s=60, first_byte_s=600, idle_s=300, total_s=3600)


def test_shipped_files_are_the_built_in_defaults() -> None:
    """Whoever copies the folder changes nothing by it."""
    problems: list[Problem] = []

    shipped, built_in = read_policies(ROOT / "policies", {}, problems), read_policies(None, {}, problems)

    assert problems == []
    assert {Path(document.file).name for document in shipped.documents} == set(FILES)
    assert shipped.include_usage == built_in.include_usage == {"default": True}
    assert shipped.clocks == built_in.clocks == {"default": BUILT_IN}
    assert shipped.lane_deadline_s == built_in.lane_deadline_s
    assert built_in.lane_deadline_s == {"interactive": 30, "batch": 600, "background": 21600}


def test_shipped_files_are_complete() -> None:
    """Every field that exists is written out."""
    shipped = {name: yaml.safe_load((ROOT / "policies" / name).read_text())["default"] for name in FILES}

    assert set(shipped["admission.yaml"]) == {"include_usage"}
    assert set(shipped["timeouts.yaml"]) == {"connect", "write", "first_byte", "idle", "total"}
    assert shipped["queue.yaml"] == {
        "lanes": {"interactive": {"deadline": "30s"}, "batch": {"deadline": "10m"}, "background": {"deadline": "6h"}}
    }


def write(tmp_path: Path, **files: str) -> str:
    """A config that reads a folder with these files."""
    folder = tmp_path / "rules"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return f"policies: rules\n{GOOD}"


def test_named_set_is_picked_by_a_model_and_inherits_the_rest(tmp_path: Path) -> None:
    """A set says only what differs from the built-in defaults."""
    text = write(
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


def test_lanes_of_the_default_set_are_used(tmp_path: Path) -> None:
    """A lane that is not there keeps the built-in deadline; another set changes nothing."""
    text = write(
        tmp_path,
        queue="default: {lanes: {batch: {deadline: '${D}'}, interactive: }}\nx: {lanes: {batch: {deadline: 1s}}}",
    )

    deadlines = load_text(tmp_path, text, {"OPENAI_API_KEY": "", "D": "20m"}).lane_deadline_s

    assert deadlines == {"interactive": 30, "batch": 1200, "background": 21600}


def test_files_are_listed_in_the_snapshot_and_count_for_its_digest(tmp_path: Path) -> None:
    """What was read is said, and a changed policy is a changed config."""
    text = write(tmp_path, timeouts="default: {connect: 1s}")
    first = load_text(tmp_path, text)
    second = load_text(tmp_path, write(tmp_path, timeouts="default: {connect: 2s}"))

    assert first.files == (str(tmp_path / "config.yaml"), str(tmp_path / "rules" / "timeouts.yaml"))
    assert first.digest != second.digest


def test_other_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    """README, editor leftovers and hidden files are none of ours; a comment-only file is an empty one."""
    text = write(tmp_path, queue="# nothing yet\n")
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
        (
            "admission.yaml",
            "default: {include_usage: 1}",
            "rules/admission.yaml:1: default.include_usage: expected true or false, not a number",
        ),
        (
            "queue.yaml",
            "default:\n  lanes:\n    interactiv: {deadline: 1s}",
            'rules/queue.yaml:3: default.lanes.interactiv: unknown field; did you mean "interactive"?',
        ),
        (
            "queue.yaml",
            "x:\n  lanes:\n    batch: {deadline: 5}",
            "rules/queue.yaml:3: x.lanes.batch.deadline: 5 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        ("queue.yaml", "x: {lanes: [1]}", "rules/queue.yaml:1: x.lanes: expected a mapping, not a list"),
        ("queue.yaml", "x: {lanes: {batch: 5s}}", "rules/queue.yaml:1: x.lanes.batch: expected a mapping, not text"),
    ],
)
def test_mistake_in_a_policy_file_is_said_once(tmp_path: Path, file: str, text: str, problem: str) -> None:
    """With the policy file's own name and line."""
    config = write(tmp_path)
    (tmp_path / "rules" / file).write_text(text)

    assert problems_of(tmp_path, config) == [problem]


def test_bad_set_can_still_be_picked(tmp_path: Path) -> None:
    """A mistake inside a set does not make its name unknown."""
    text = write(tmp_path, timeouts="slow: {idle: x}") + "  o3: {targets: [openai], timeouts: slow}\n"

    problems = problems_of(tmp_path, text)

    assert len(problems) == 1
    assert "slow.idle" in problems[0]
