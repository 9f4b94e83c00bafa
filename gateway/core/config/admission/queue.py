"""Reads `queue.yaml`: how calls are held, by set, and the bounds of the delay queue as a whole.

A model picks the set by which its calls are held. The other fields concern all calls at once, so only the set `default`
decides them; another set may repeat them, but not contradict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from gateway.core.config.fields.check import check, check_sets
from gateway.core.config.fields.fields.fields import (
    Count,
    Duration,
    Interim,
    Percent,
    PositiveDuration,
    Section,
    Share,
    Size,
)
from gateway.core.config.schema import Entry
from gateway.core.config.source.problems import Document, Path
from gateway.core.snapshot.snapshot.snapshot import Holding
from gateway.core.types.process import QueueBounds
from gateway.core.types.words import LANES, Lane

BUILT_IN_DEADLINES_S: Final[Mapping[Lane, float]] = {
    "critical": 30.0,
    "interactive": 30.0,
    "batch": 600.0,
    "background": 21600.0,
}
_HIGHEST = LANES[0]
_OF_ALL = ("max_calls", "max_bytes", "max_percent_per_tenant", "aged_percent")
_OF_ALL_IN_A_LANE = ("deadline", "age_after")


class QueueSet(Entry):
    """A set of queue.yaml. Keep the defaults in step with policies/queue.yaml."""

    max_calls: Count = 20_000
    max_bytes: Size = 512 * 1024 * 1024
    max_percent_per_tenant: Share = 75.0
    keepalive_after: PositiveDuration = 10.0
    interim: Interim = "off"
    reserve_percent: Percent = 10.0
    lanes: Section = Field(default_factory=dict)
    aged_percent: Percent = 5.0
    shed: Section = Field(default_factory=dict)


class LaneEntries(Entry):
    """The field `lanes` of a set of `queue.yaml`."""

    critical: Section = Field(default_factory=dict)
    interactive: Section = Field(default_factory=dict)
    batch: Section = Field(default_factory=dict)
    background: Section = Field(default_factory=dict)


class LaneEntry(Entry):
    """One lane; fields that it leaves out have the lane's built-in values."""

    deadline: PositiveDuration | None = None
    prefer_primary_for: Duration | None = None
    age_after: PositiveDuration | None = None


class ShedEntry(Entry):
    """The field `shed` of a set of `queue.yaml`."""

    memory: Size | None = None
    loop_lag: PositiveDuration = 0.5


@dataclass(frozen=True, slots=True)
class QueuePolicies:
    """The contents of queue.yaml."""

    holding: Mapping[str, Holding]
    """The rules of holding, by set."""
    bounds: QueueBounds
    lane_deadline_s: Mapping[Lane, float]


@dataclass(frozen=True, slots=True)
class _Set:
    """One set as it was written, with the lanes that it names."""

    entry: QueueSet
    lanes: Mapping[Lane, LaneEntry]
    shed: ShedEntry

    def of_all(self) -> Iterator[tuple[Path, object]]:
        """Yields the fields that concern all calls at once, each with its path."""
        for field in _OF_ALL:
            if field in self.entry.model_fields_set:
                yield (field,), getattr(self.entry, field)
        for lane, entry in self.lanes.items():
            for field in _OF_ALL_IN_A_LANE:
                if field in entry.model_fields_set:
                    yield ("lanes", lane, field), getattr(entry, field)
        for field in ShedEntry.model_fields:
            if field in self.shed.model_fields_set:
                yield ("shed", field), getattr(self.shed, field)


def read_queue(document: Document | None) -> QueuePolicies:
    """Reads every set of queue.yaml; None: the file does not exist."""
    sets = {name: _set(document, name, entry) for name, entry in check_sets(QueueSet, document).items()}
    first = sets["default"]
    deadlines_s = _by_lane(first, "deadline", BUILT_IN_DEADLINES_S)
    bounds = _bounds(first)
    if document is not None:
        _check_highest(document, first)
        for name, other in sets.items():
            _check_of_all(document, name, other, bounds, deadlines_s)
    return QueuePolicies({name: _holding(one) for name, one in sets.items()}, bounds, deadlines_s)


def _set(document: Document | None, name: str, entry: QueueSet) -> _Set:
    if document is None:
        return _Set(entry, {}, ShedEntry())
    lanes: dict[Lane, LaneEntry] = {}
    path: Path = (name, "lanes")
    said = document.at(path)
    if isinstance(said, dict) and check(LaneEntries, document, path) is not None:
        found = {lane: check(LaneEntry, document, (*path, lane)) for lane in LANES if said.get(lane)}
        lanes = {lane: one for lane, one in found.items() if one is not None}
    shed = check(ShedEntry, document, (name, "shed")) if entry.shed else None
    return _Set(entry, lanes, shed or ShedEntry())


def _holding(one: _Set) -> Holding:
    return Holding(
        keepalive_after_s=one.entry.keepalive_after,
        interim=None if one.entry.interim == "off" else int(one.entry.interim),
        reserve_percent=one.entry.reserve_percent,
        prefer_primary_for_s=_by_lane(one, "prefer_primary_for", Holding().prefer_primary_for_s),
    )


def _bounds(one: _Set) -> QueueBounds:
    entry = one.entry
    return QueueBounds(
        max_calls=entry.max_calls,
        max_bytes=entry.max_bytes,
        max_percent_per_tenant=entry.max_percent_per_tenant,
        age_after_s={**QueueBounds().age_after_s, **_said(one, "age_after")},
        aged_percent=entry.aged_percent,
        shed_memory_bytes=one.shed.memory,
        shed_loop_lag_s=one.shed.loop_lag,
    )


def _by_lane(one: _Set, field: str, built_in: Mapping[Lane, float]) -> dict[Lane, float]:
    """Returns the field of every lane; the highest lane has that of `interactive` where it is not named itself."""
    said = _said(one, field)
    merged = {**built_in, **said}
    return {**merged, _HIGHEST: said.get(_HIGHEST, merged["interactive"])}


def _said(one: _Set, field: str) -> dict[Lane, float]:
    return {lane: value for lane, entry in one.lanes.items() if (value := getattr(entry, field)) is not None}


def _check_highest(document: Document, first: _Set) -> None:
    if _HIGHEST in first.lanes and first.lanes[_HIGHEST].age_after is not None:
        document.complain(("default", "lanes", _HIGHEST, "age_after"), "nothing is above this lane")


def _check_of_all(
    document: Document, name: str, one: _Set, bounds: QueueBounds, deadlines_s: Mapping[Lane, float]
) -> None:
    in_force: dict[Path, object] = {
        **{(field,): getattr(bounds, field) for field in _OF_ALL},
        **{("lanes", lane, "deadline"): deadline_s for lane, deadline_s in deadlines_s.items()},
        **{("lanes", lane, "age_after"): age_s for lane, age_s in bounds.age_after_s.items()},
        ("shed", "memory"): bounds.shed_memory_bytes,
        ("shed", "loop_lag"): bounds.shed_loop_lag_s,
    }
    for path, value in one.of_all():
        if value != in_force.get(path):
            document.complain((name, *path), "concerns all calls at once: only the set `default` can say it")
