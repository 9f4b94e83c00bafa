"""Reads the policy folder into named sets; what a file or a field leaves out comes from the built-in defaults.

A file that nobody knows is a mistake, not a comment. Invariant: every kind of set has a `default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from gateway.config.check import check_sets
from gateway.config.counting import Admission, read_admission
from gateway.config.env import substitute
from gateway.config.holding import QueuePolicies, read_queue
from gateway.config.problems import Document, Problem, did_you_mean
from gateway.config.schema import TimeoutsSet
from gateway.config.source import read_document
from gateway.ports import Clocks

FILES: Final = ("admission.yaml", "queue.yaml", "timeouts.yaml")


@dataclass(frozen=True, slots=True)
class Policies:
    """The sets of every policy file, by name."""

    admission: Mapping[str, Admission]
    queue: QueuePolicies
    clocks: Mapping[str, Clocks]
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
    timeouts = check_sets(TimeoutsSet, documents.get("timeouts.yaml"))
    return Policies(
        read_admission(documents.get("admission.yaml")),
        read_queue(documents.get("queue.yaml")),
        {name: _clocks(entry) for name, entry in timeouts.items()},
        tuple(documents.values()),
    )


def _clocks(entry: TimeoutsSet) -> Clocks:
    return Clocks(entry.connect, entry.write, entry.first_byte, entry.idle, entry.total)
