"""The structure of the house gets better or stays: each figure of `rails.json` may only shrink.

They take the place of caps on lines and modules: what makes code hard to follow is what a reader has to open, and who may
change what. `python -m tests.rails` writes better figures down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rails import house
from tests.rails.trees import ROOT

RAILS = Path(__file__).with_name("rails.json")
BYTECODES = {True: 1.005, False: 1.1}
"""By whether this Python has figures: other releases and libraries take a little more, other Pythons a tenth."""
SLACK = {"429": {"changes": 10, "modules": 3}}
"""What comes and goes: on a busy machine a wait may end in two steps."""
RENEW = "Write it down: python -m tests.rails"


def this_python() -> str:
    """The minor version: bytecodes differ from one to the next."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RAILS.read_text())


@pytest.fixture(scope="module")
def walked() -> Any:
    """What calls run through now, in a process that does nothing else."""
    command = [sys.executable, "-m", "tests.rails.walk"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_fields_of_a_call_have_no_more_writers(recorded: Any) -> None:
    """A field that several modules write belongs to nobody; a product keeps its state beside the call."""
    old, now = recorded["house"]["call fields"], house.call_fields()

    assert sorted(now.keys() - old.keys()) == [], "a new field of `Call`"
    assert _pairs(now) - _pairs(old) == set(), "a new module writes a field of `Call`"
    assert now == old, RENEW


def test_no_more_modules_have_one_importer(recorded: Any) -> None:
    """Such a module is a private part of its importer, with a public address."""
    old, now = recorded["house"]["modules with one importer"], house.measure()["modules with one importer"]

    assert now <= old, "a new module has one importer: let it stand in that one"
    assert now == old, RENEW


@pytest.mark.parametrize("kind", ["plain", "sdk", "stream", "429"])
def test_a_call_runs_through_no_more(recorded: Any, walked: Any, kind: str) -> None:
    """Modules that it enters, changes between them, and bytecodes of calls that are answered whole."""
    now, most = walked[kind], _most(recorded["walk"], kind)

    assert now.keys() == most.keys()
    assert {name: (count, most[name]) for name, count in now.items() if count > most[name]} == {}
    if kind not in SLACK:
        assert now["modules"] == most["modules"], RENEW


def test_products_of_which_a_call_asks_nothing_cost_it_little() -> None:
    """With all of them in the config its bytecodes are at most 2 % above those with none."""
    command = [sys.executable, "-m", "tests.rails.walk", "products"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)

    assert found["bare"] < found["all"] <= found["bare"] * 1.02


def _most(walks: Any, kind: str) -> dict[str, float]:
    is_known = this_python() in walks
    known = [walks[this_python()][kind]] if is_known else [one[kind] for one in walks.values()]
    most = {name: float(max(one[name] for one in known)) for name in known[0]}
    for name, more in SLACK.get(kind, {}).items():
        most[name] += more
    if "bytecodes" in most:
        most["bytecodes"] *= BYTECODES[is_known]
    return most


def _pairs(table: dict[str, list[str]]) -> set[tuple[str, str]]:
    return {(name, other) for name, others in table.items() for other in others}
