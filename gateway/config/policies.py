"""Reads the policy folder into named sets; what a file or a field leaves out comes from the built-in defaults.

A file that nobody knows is a mistake, not a comment. Invariant: every kind of set has a `default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from gateway.call import Lane
from gateway.config.check import EntryT, check
from gateway.config.env import substitute
from gateway.config.problems import Document, Path, Problem, did_you_mean, quoted
from gateway.config.schema import AdmissionSet, LaneEntries, LaneEntry, QueueSet, TimeoutsSet
from gateway.config.source import read_document
from gateway.ports import Clocks

FILES: Final = ("admission.yaml", "queue.yaml", "timeouts.yaml")
BUILT_IN_DEADLINES_S: Final[Mapping[Lane, float]] = {
    "critical": 30.0,
    "interactive": 30.0,
    "batch": 600.0,
    "background": 21600.0,
}


@dataclass(frozen=True, slots=True)
class Policies:
    """The sets of every policy file, by name."""

    include_usage: Mapping[str, bool]
    clocks: Mapping[str, Clocks]
    lane_deadline_s: Mapping[Lane, float]
    documents: tuple[Document, ...]


def list_policy_files(folder: FilePath) -> list[FilePath]:
    """The YAML files of a folder, hidden ones left out (Kubernetes keeps its swaps there). Raises OSError."""
    return sorted(
        file for file in folder.iterdir() if file.suffix in {".yaml", ".yml"} and not file.name.startswith(".")
    )


def read_policies(folder: FilePath | None, environ: Mapping[str, str], problems: list[Problem]) -> Policies:
    """All sets; without a folder, the built-in ones. Raises OSError when the folder cannot be listed."""
    documents: dict[str, Document] = {}
    for file in list_policy_files(folder) if folder else ():
        if file.name not in FILES:
            problems.append(Problem(str(file), 0, f"unknown policy file{did_you_mean(file.name, FILES)}"))
        elif document := read_document(file, problems):
            documents[file.name] = substitute(document, environ)
    admission = _sets(AdmissionSet, documents.get("admission.yaml"))
    timeouts = _sets(TimeoutsSet, documents.get("timeouts.yaml"))
    return Policies(
        {name: entry.include_usage for name, entry in admission.items()},
        {name: _clocks(entry) for name, entry in timeouts.items()},
        _deadlines(documents.get("queue.yaml")),
        tuple(documents.values()),
    )


def _sets(kind: type[EntryT], document: Document | None) -> dict[str, EntryT]:
    """A set that cannot be used keeps its name, so that picking it is not a second mistake."""
    sets = {"default": kind()}
    if document is not None and _is_mapping(document):
        sets |= {name: check(kind, document, (name,)) or kind() for name in document.data}
    return sets


def _is_mapping(document: Document) -> bool:
    if not isinstance(document.data, dict):
        document.complain((), f"expected named sets such as `default: {{...}}`, not {quoted(document.data)}")
    return isinstance(document.data, dict)


def _clocks(entry: TimeoutsSet) -> Clocks:
    return Clocks(entry.connect, entry.write, entry.first_byte, entry.idle, entry.total)


def _deadlines(document: Document | None) -> dict[Lane, float]:
    """Of the `default` set: lanes belong to keys, not to models. The others are checked all the same."""
    sets = _sets(QueueSet, document)
    found = {name: _lanes(document, name) for name in sets if document is not None and document.at((name, "lanes"))}
    return {**BUILT_IN_DEADLINES_S, **found.get("default", {})}


def _lanes(document: Document, name: str) -> dict[Lane, float]:
    path: Path = (name, "lanes")
    lanes = document.at(path)
    if not isinstance(lanes, dict) or check(LaneEntries, document, path) is None:
        return {}
    entries = {lane: check(LaneEntry, document, (*path, lane)) for lane in BUILT_IN_DEADLINES_S if lanes.get(lane)}
    return {lane: entry.deadline for lane, entry in entries.items() if entry and entry.deadline is not None}
