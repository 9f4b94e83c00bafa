"""Which part of which run a request is: read where any of its headers, its key or its body's `metadata` may say so."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.core.types.exchange import RawHeaders
from gateway.features.runs.rules.workflow import RunPart, Workflows
from gateway.features.runs.step.part import (
    BAGGAGE,
    OUTCOME,
    RUN,
    STEP,
    TASK,
    WORKFLOW,
    outcome_said,
    part_of,
    run_words,
    without_own_members,
)

MOST_NAMES = 1024
"""Of what is remembered; when there are more, it begins anew."""


class RunParts:
    """The parts that calls say they are, under one policy: names that come again are not read again.

    Invariant: what is remembered was read from the same header values, and is bounded: at most `MOST_NAMES` of each.
    """

    __slots__ = ("_names", "_runs", "workflows")

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self._names: dict[tuple[str, bytes | None, bytes | None, bytes | None], RunPart] = {}
        """By a key's workflow and the headers that name workflow, task and step: what they make of whatever run."""
        self._runs: dict[bytes, str] = {}

    def remembered(self) -> int:
        """Returns how many names are remembered."""
        return len(self._names) + len(self._runs)

    def find(self, key: Key, index: Mapping[bytes, bytes], metadata: object) -> RunPart | None:
        """Returns the part; None: it is of no run and no workflow. Raises InvalidRequest, naming the header and the remedy."""
        raw = index.get(RUN)
        if raw is None or metadata is not None or BAGGAGE in index:
            part = part_of(run_words(index, metadata), self.workflows, key.workflow)
        else:
            run = self._runs.get(raw) or self._read_run(raw, index)
            names = key.workflow, index.get(WORKFLOW), index.get(TASK), index.get(STEP)
            named = self._names.get(names) or self._read_names(names, index)
            part = RunPart(named.workflow, run, named.task, named.labels, named.rules)
        if OUTCOME in index:
            outcome = outcome_said(index, part)
            if part is not None:
                part.outcome = outcome
        return part

    def _read_run(self, raw: bytes, index: Mapping[bytes, bytes]) -> str:
        run = run_words(index).run
        if len(self._runs) >= MOST_NAMES:
            self._runs.clear()
        self._runs[raw] = run
        return run

    def _read_names(
        self, names: tuple[str, bytes | None, bytes | None, bytes | None], index: Mapping[bytes, bytes]
    ) -> RunPart:
        part = part_of(run_words(index), self.workflows, names[0])
        if part is None:
            raise ValueError("the names of a part that has no run")
        if len(self._names) >= MOST_NAMES:
            self._names.clear()
        self._names[names] = part
        return part


def without_own_baggage(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that go to a provider, with nothing in their baggage that is meant for the gateway."""
    kept = ((name, without_own_members(value) if name == BAGGAGE else value) for name, value in headers)
    return [header for header in kept if header != (BAGGAGE, b"")]
