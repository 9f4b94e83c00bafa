"""A plain call and an event take no more function calls than is written down: more of them is what makes a call dear."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gateway.core.call import Call
from tests.bench.calls import RESULTS, this_python
from tests.bench.systems import ROOT

MARGIN = 0.5
"""The collector's own calls come when they come."""
KEPT_AT_HAND = 512
"""Bytes: what is larger Python has to ask the C library for, each time."""
COLLECTED = 16
"""What the collector puts before each object, in bytes."""
UNKNOWN = 1.1
"""A Python that nobody has counted with may need so much more than the one that needs most."""


@pytest.fixture(scope="module")
def counted() -> Any:
    """What is counted now, in a process that does nothing else."""
    command = [sys.executable, "-m", "tests.bench.calls"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def most(of: str) -> float:
    """How many Python calls the gateway may take for a plain call, or for an event."""
    known = json.loads(RESULTS.read_text())
    entry = known.get(this_python())
    if entry is not None:
        return float(entry["gateway"][of]["python"])
    return UNKNOWN * max(float(one["gateway"][of]["python"]) for one in known.values())


@pytest.mark.parametrize("of", ["plain", "event"])
def test_it_takes_no_more_python_calls_than_written_down(counted: Any, of: str) -> None:
    """Whoever makes it cheaper writes it down; whoever makes it dearer has to say so in results/calls.json."""
    now = counted["gateway"][of]["python"]

    assert now <= most(of) + MARGIN, (
        f"one {of} call takes {now} Python calls instead of {most(of)}. Spare some, or, where the feature is worth them, "
        "renew the figure: python -m tests.bench.calls --write"
    )


def test_an_event_of_a_message_takes_no_more_than_one_of_a_chat(counted: Any) -> None:
    """Messages that go to a provider of Anthropic's are passed on as they are, and not read."""
    now = counted["gateway"]

    assert 1 < now["message"]["python"] <= most("event") + MARGIN


def test_the_count_is_that_of_a_call(counted: Any) -> None:
    """Both do something for each call and event: neither count is of an idle loop."""
    for system in ("floor", "gateway"):
        assert counted[system]["event"]["python"] > 1
    assert 1 < counted["floor"]["plain"]["python"] < counted["gateway"]["plain"]["python"]


def test_a_call_is_small_enough_to_be_kept_at_hand() -> None:
    """Another field needs room: what only few calls have goes together, behind one field."""
    assert Call.__basicsize__ + COLLECTED <= KEPT_AT_HAND
