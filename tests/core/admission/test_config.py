"""queue.yaml: how a model's calls are held, what the queue as a whole may hold, and every mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.snapshot import Holding, PolicySnapshot
from gateway.core.types import QueueBounds
from tests.rows import rows
from tests.support.configs import load_text, problems_of, with_policies

BUILT_IN = {"critical": 30, "interactive": 30, "batch": 600, "background": 21600}


def load_queue(folder: Path, queue: str, models: str = "") -> PolicySnapshot:
    """The snapshot of a good config with this queue.yaml and these models besides `gpt-4o`."""
    return load_text(folder, with_policies(folder, queue=queue) + models)


def test_every_field_of_the_default_set_is_compiled(tmp_path: Path) -> None:
    """In the units of its name."""
    queue = """
default:
  max_calls: 7
  max_bytes: 1MiB
  max_percent_per_tenant: 50
  keepalive_after: 3s
  reserve_percent: 12.5
  lanes:
    critical: {deadline: 1s, prefer_primary_for: 0s}
    interactive: {deadline: 2s, prefer_primary_for: 3s, age_after: 4s}
    batch: {deadline: 5s, prefer_primary_for: 6s, age_after: 7s}
    background: {deadline: 8s, prefer_primary_for: 9s, age_after: 10s}
  aged_percent: 20
  shed: {memory: 1GiB, loop_lag: 100ms}
"""

    snapshot = load_queue(tmp_path, queue)

    assert snapshot.queue == QueueBounds(
        max_calls=7,
        max_bytes=2**20,
        max_percent_per_tenant=50,
        age_after_s={"interactive": 4, "batch": 7, "background": 10},
        aged_percent=20,
        shed_memory_bytes=2**30,
        shed_loop_lag_s=0.1,
    )
    assert snapshot.lane_deadline_s == {"critical": 1, "interactive": 2, "batch": 5, "background": 8}
    assert snapshot.models["gpt-4o"].holding == Holding(
        keepalive_after_s=3,
        reserve_percent=12.5,
        prefer_primary_for_s={"critical": 0, "interactive": 3, "batch": 6, "background": 9},
    )


@pytest.mark.parametrize("queue", ["# nothing yet\n", "default:\n", "default: {lanes: , shed: , max_calls: }"])
def test_what_is_left_out_is_built_in(tmp_path: Path, queue: str) -> None:
    """A file, a set and a field alike."""
    snapshot = load_queue(tmp_path, queue)

    assert snapshot.queue == QueueBounds()
    assert snapshot.lane_deadline_s == BUILT_IN
    assert snapshot.models["gpt-4o"].holding == Holding()


def test_lanes_of_the_default_set_are_used(tmp_path: Path) -> None:
    """A lane that is not there keeps the built-in numbers; a variable may be a duration."""
    text = with_policies(tmp_path, queue="default: {lanes: {batch: {deadline: '${D}'}, interactive: }}")

    deadlines = load_text(tmp_path, text, {"OPENAI_API_KEY": "", "D": "20m"}).lane_deadline_s

    assert deadlines == BUILT_IN | {"batch": 1200}


def test_critical_is_as_interactive_unless_it_is_named(tmp_path: Path) -> None:
    """Field by field, in the default set and in those a model picks."""
    queue = (
        "default: {lanes: {interactive: {deadline: 9s, prefer_primary_for: 4s}, critical: {prefer_primary_for: 1s}}}\n"
        "x: {lanes: {interactive: {prefer_primary_for: 7s}}}\n"
    )

    snapshot = load_queue(tmp_path, queue, "  o3: {targets: [openai], queue: x}\n")

    assert snapshot.lane_deadline_s == BUILT_IN | {"critical": 9, "interactive": 9}
    prefers = {name: model.holding.prefer_primary_for_s for name, model in snapshot.models.items()}
    assert [prefers["gpt-4o"][lane] for lane in ("critical", "interactive")] == [1, 4]
    assert [prefers["o3"][lane] for lane in ("critical", "interactive")] == [7, 7]


def test_model_picks_how_its_calls_are_held(tmp_path: Path) -> None:
    """A set inherits from the built-in one, not from `default`."""
    queue = "default: {keepalive_after: 1s}\nx: {reserve_percent: 0, lanes: {batch: {prefer_primary_for: 5s}}}\n"

    models = load_queue(tmp_path, queue, "  o3: {targets: [openai], queue: x}\n").models

    assert models["gpt-4o"].holding == Holding(keepalive_after_s=1)
    assert models["o3"].holding == Holding(
        reserve_percent=0, prefer_primary_for_s={**Holding().prefer_primary_for_s, "batch": 5}
    )


def test_another_set_may_repeat_what_default_says_of_all_calls(tmp_path: Path) -> None:
    """A copy with one change, or a merge key, is a good way to begin a set."""
    queue = (
        "default: &all {max_calls: 5, lanes: {batch: {deadline: 1m, age_after: 2s}}, shed: {memory: 1GB}}\n"
        "x: {<<: *all, reserve_percent: 50}\n"
        "y: {max_calls: 5, max_bytes: 512MiB, aged_percent: 5, lanes: {background: {deadline: 6h}}, "
        "shed: {loop_lag: 500ms}}\n"
    )

    assert load_queue(tmp_path, queue, "  o3: {targets: [openai], queue: x}\n").models["o3"].holding == Holding(
        reserve_percent=50
    )


ONLY_DEFAULT = "concerns all calls at once: only the set `default` can say it"


@rows(
    ("text", "problem"),
    [
        ("x:\n  max_calls: 5", f"rules/queue.yaml:2: x.max_calls: {ONLY_DEFAULT}"),
        ("x: {max_bytes: 1MB}", f"rules/queue.yaml:1: x.max_bytes: {ONLY_DEFAULT}"),
        ("x: {max_percent_per_tenant: 1}", f"rules/queue.yaml:1: x.max_percent_per_tenant: {ONLY_DEFAULT}"),
        ("x: {aged_percent: 1}", f"rules/queue.yaml:1: x.aged_percent: {ONLY_DEFAULT}"),
        ("x: {lanes: {batch: {deadline: 1s}}}", f"rules/queue.yaml:1: x.lanes.batch.deadline: {ONLY_DEFAULT}"),
        ("x: {lanes: {batch: {age_after: 1s}}}", f"rules/queue.yaml:1: x.lanes.batch.age_after: {ONLY_DEFAULT}"),
        ("x: {lanes: {critical: {age_after: 1s}}}", f"rules/queue.yaml:1: x.lanes.critical.age_after: {ONLY_DEFAULT}"),
        ("x: {shed: {memory: 1GB}}", f"rules/queue.yaml:1: x.shed.memory: {ONLY_DEFAULT}"),
        ("default: {max_calls: 7}\nx: {max_calls: 20000}", f"rules/queue.yaml:2: x.max_calls: {ONLY_DEFAULT}"),
        (
            "default: {lanes: {critical: {age_after: 1s}}}",
            "rules/queue.yaml:1: default.lanes.critical.age_after: nothing is above this lane",
        ),
        (
            "default:\n  lanes:\n    interactiv: {deadline: 1s}",
            'rules/queue.yaml:3: default.lanes.interactiv: unknown field; did you mean "interactive"?',
        ),
        (
            "x:\n  lanes:\n    batch: {prefer_primary_for: 5}",
            "rules/queue.yaml:3: x.lanes.batch.prefer_primary_for: 5 has no unit: "
            "write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        (
            "default: {lanes: {batch: {age_afer: 5s}}}",
            'rules/queue.yaml:1: default.lanes.batch.age_afer: unknown field; did you mean "age_after"?',
        ),
        (
            "default: {lanes: {batch: {deadline: 0s}}}",
            'rules/queue.yaml:1: default.lanes.batch.deadline: "0s" must be longer than nothing',
        ),
        ("x: {lanes: [1]}", "rules/queue.yaml:1: x.lanes: expected a mapping, not a list"),
        ("x: {lanes: {batch: 5s}}", "rules/queue.yaml:1: x.lanes.batch: expected a mapping, not text"),
        ("default: {max_call: 1}", 'rules/queue.yaml:1: default.max_call: unknown field; did you mean "max_calls"?'),
        ("default: {max_calls: 0}", "rules/queue.yaml:1: default.max_calls: must be at least 1"),
        (
            "default: {max_bytes: 512}",
            "rules/queue.yaml:1: default.max_bytes: 512 has no unit: write for example 500kB, 20MB or 512MiB",
        ),
        (
            "default: {max_percent_per_tenant: 0}",
            "rules/queue.yaml:1: default.max_percent_per_tenant: must be more than 0",
        ),
        ("default: {reserve_percent: 101}", "rules/queue.yaml:1: default.reserve_percent: must be at most 100"),
        ("default: {reserve_percent: 10%}", "rules/queue.yaml:1: default.reserve_percent: expected a number, not text"),
        ("default: {aged_percent: -1}", "rules/queue.yaml:1: default.aged_percent: must be at least 0"),
        (
            "default: {keepalive_after: 0s}",
            'rules/queue.yaml:1: default.keepalive_after: "0s" must be longer than nothing',
        ),
        (
            "default: {shed: {memroy: 1GB}}",
            'rules/queue.yaml:1: default.shed.memroy: unknown field; did you mean "memory"?',
        ),
        (
            "default:\n  shed: {loop_lag: 1}",
            "rules/queue.yaml:2: default.shed.loop_lag: 1 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        ("default: {shed: 1GB}", "rules/queue.yaml:1: default.shed: expected a mapping, not text"),
    ],
)
def test_mistake_in_the_queue_is_said_once(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and a suggestion; what concerns all calls is not said in two ways."""
    assert problems_of(tmp_path, with_policies(tmp_path, queue=text)) == [problem]


@rows(
    ("file", "before", "after"),
    [
        ("queue", "default: {max_calls: 1}", "default: {max_calls: 2}"),
        ("queue", "default: {shed: {memory: 1GB}}", "default: {shed: {memory: 2GB}}"),
        ("queue", "default: {lanes: {batch: {age_after: 1s}}}", "default: {lanes: {background: {age_after: 1s}}}"),
        ("admission", "default: {learn_limits: true}", "default: {learn_limits: false}"),
        ("admission", "default: {providers: {xai: {charge: max}}}", "default: {providers: {groq: {charge: max}}}"),
    ],
)
def test_every_policy_counts_for_the_digest(tmp_path: Path, file: str, before: str, after: str) -> None:
    """So that a reload puts a change in force."""
    digests = {load_text(tmp_path, with_policies(tmp_path, **{file: text})).digest for text in (before, after)}

    assert len(digests) == 2


@pytest.mark.parametrize(("said", "interim"), [("off", None), ("102", 102), ("103", 103), ('"103"', 103)])
def test_interim_responses_are_sent_where_they_are_asked_for(tmp_path: Path, said: str, interim: int | None) -> None:
    """YAML's bare `off`, and a number with or without quotes."""
    snapshot = load_queue(tmp_path, f"default: {{interim: {said}}}\n")
    assert snapshot.models["gpt-4o"].holding == Holding(interim=interim)
