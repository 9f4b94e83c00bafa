"""Which part of which run a request is: read where any of its headers, its key or its body's `metadata` may say so."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.exchange import RawHeaders
from gateway.policy.runs.part import (
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
from gateway.policy.runs.workflow import RunPart
from gateway.policy.snapshot import Key, PolicySnapshot


def names_part(index: Mapping[bytes, bytes]) -> bool:
    """Tells whether a header may say so; asked of every call that brings any option, so without a loop."""
    return RUN in index or WORKFLOW in index or TASK in index or STEP in index or BAGGAGE in index or OUTCOME in index


def find_part(policy: PolicySnapshot, key: Key, index: Mapping[bytes, bytes], metadata: object) -> RunPart | None:
    """Returns the part; None: it is of no run and no workflow. Raises InvalidRequest, naming the header and the remedy."""
    part = part_of(run_words(index, metadata), policy.workflows, key.workflow)
    outcome = outcome_said(index, part)
    if part is not None:
        part.outcome = outcome
    return part


def without_own_baggage(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that go to a provider, with nothing in their baggage that is meant for the gateway."""
    kept = ((name, without_own_members(value) if name == BAGGAGE else value) for name, value in headers)
    return [header for header in kept if header != (BAGGAGE, b"")]
