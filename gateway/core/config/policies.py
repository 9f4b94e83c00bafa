"""Reads the policy folder into named sets; missing files and fields have built-in values.

First the folder (`read_policies`), then the file that has no module of its own, timeouts.yaml.
A file with an unknown name is a mistake, not a comment. Invariant: every kind of set has a `default`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from gateway.core.balancing import Retries
from gateway.core.config.admission import AdmissionRules, QueuePolicies, read_admission, read_queue
from gateway.core.config.error_tables import ErrorTables, read_error_tables
from gateway.core.config.fields import (
    EnvText,
    FirstEvent,
    PositiveDuration,
    Section,
    SectionOrOff,
    Times,
    substitute,
)
from gateway.core.config.product_sections import Sections, SectionSpec, merged
from gateway.core.config.retries import read_breakers, read_retries
from gateway.core.config.schema import Entry, check, check_part, check_sets, keyed_by
from gateway.core.config.source import Document, Path, Problem, did_you_mean, read_document
from gateway.core.health.detector import BreakerRules
from gateway.core.snapshot import Setting
from gateway.core.types import LANES, PASSTHROUGH, Clocks, Lane

ERRORS: Final = "errors"
"""The folder of error tables in a policy folder."""
FILES: Final = (
    "admission.yaml",
    "breakers.yaml",
    "queue.yaml",
    "retries.yaml",
    "timeouts.yaml",
)


@dataclass(frozen=True, slots=True)
class PolicySets:
    """The sets of every policy file by name, and the error tables by kind of provider."""

    admission: Mapping[str, AdmissionRules]
    queue: QueuePolicies
    retries: Mapping[str, Retries]
    breakers: Mapping[str, BreakerRules]
    timeouts: Mapping[str, Timeouts]
    settings: Mapping[Setting[Any], Any]
    """What products have read of their files."""
    errors: ErrorTables
    folders: Mapping[SectionSpec, tuple[Document, ...]]
    """The files of folders that products have read."""
    documents: tuple[Document, ...]


def read_policies(
    folder: FilePath | None,
    environ: Mapping[str, str],
    problems: list[Problem],
    beside: FilePath = FilePath(),
    sections: Sections = (),
) -> PolicySets:
    """Reads all sets; without a folder, the built-in ones. Raises OSError when the folder cannot be listed.

    Relative paths in the files start at the folder `beside`, that of the config.
    """
    documents: dict[str, Document] = {}
    known = policy_files(sections)
    for file in list_policy_files(folder) if folder else ():
        if file.name not in known:
            problems.append(Problem(str(file), 0, f"unknown policy file{did_you_mean(file.name, known)}"))
        elif document := read_document(file, problems):
            documents[file.name] = substitute(document, environ)
    errors = read_error_tables(list_error_files(folder) if folder else (), environ, problems)
    folders = {section: tuple(section.read_folder(folder, environ, problems)) if folder else () for section in sections}
    admission = read_admission(documents.get("admission.yaml"))
    queue = read_queue(documents.get("queue.yaml"))
    retries = read_retries(documents.get("retries.yaml"))
    breakers = read_breakers(documents.get("breakers.yaml"))
    timeouts = read_timeouts(documents.get("timeouts.yaml"))
    return PolicySets(
        admission=admission,
        queue=queue,
        retries=retries,
        breakers=breakers,
        timeouts=timeouts,
        settings=merged(section.read_policies(documents, beside) for section in sections),
        errors=errors,
        folders=folders,
        documents=(
            *documents.values(),
            *errors.documents,
            *(one for found in folders.values() for one in found),
        ),
    )


def policy_files(sections: Sections) -> list[str]:
    """Returns the names of the files that a policy folder can have."""
    return sorted((*FILES, *(name for section in sections for name in section.policy_files)))


def list_policy_files(folder: FilePath) -> list[FilePath]:
    """Returns the YAML files of a folder without hidden ones (Kubernetes swaps files there). Raises OSError."""
    return sorted(
        file for file in folder.iterdir() if file.suffix in {".yaml", ".yml"} and not file.name.startswith(".")
    )


def list_error_files(folder: FilePath) -> list[FilePath]:
    """Returns the error tables below a policy folder; none where it has no such folder. Raises OSError."""
    return list_policy_files(folder / ERRORS) if (folder / ERRORS).is_dir() else []


# --- timeouts.yaml: the clocks of one attempt, by set, and those of single endpoints and lanes ---

ENDPOINTS: Final = (
    "chat",
    "completions",
    "embeddings",
    "responses",
    "messages",
    "count_tokens",
    "generate",
    "count_generated",
    "moderations",
    "images",
    "speech",
    "transcriptions",
    "realtime",
    PASSTHROUGH,
)
"""Keep in step with the table in routes.py, and with those of dialects/http.py and products/realtime/http.py."""
_FIELDS: Final = ("connect", "write", "first_byte", "idle", "total")
_MORE: Final = (*_FIELDS, "first_event")
_SUSPECT: Final = ("after", "in_flight")
_DRIP: Final = ("below_events_per_s", "over")
_Given = dict[str, Any]


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, EnvText) else value
    except ValueError:
        return value


Rate = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e6, allow_inf_nan=False)]


class TimeoutsSet(Entry):
    """A set of timeouts.yaml. Keep the defaults in step with policies/timeouts.yaml."""

    connect: PositiveDuration = 5.0
    write: PositiveDuration = 60.0
    first_byte: PositiveDuration = 600.0
    idle: PositiveDuration = 300.0
    total: PositiveDuration = 3600.0
    first_event: FirstEvent = None
    suspect: SectionOrOff = Field(default_factory=dict)
    drip: Section = Field(default_factory=dict)
    lanes: Section = Field(default_factory=dict)
    endpoints: Section = Field(default_factory=dict)


class ClocksEntry(Entry):
    """An endpoint's or a lane's; what it leaves out is the set's."""

    connect: PositiveDuration | None = None
    write: PositiveDuration | None = None
    first_byte: PositiveDuration | None = None
    idle: PositiveDuration | None = None
    total: PositiveDuration | None = None
    first_event: FirstEvent = None
    drip: Section = Field(default_factory=dict)


class DripEntry(Entry):
    """A stream that brings fewer events drips; 0 events: none ever does."""

    below_events_per_s: Rate | None = None
    over: PositiveDuration | None = None


class SuspectEntry(Entry):
    """The rules by which a silent target becomes suspect."""

    after: Times | None = None
    in_flight: Annotated[int, BeforeValidator(_number), Field(ge=2, le=100_000)] | None = None


CLOCK_LANES: Final = keyed_by(LANES, "ClockLanes", Section)
"""The field `lanes` of a set of `timeouts.yaml`."""
CLOCK_ENDPOINTS: Final = keyed_by(ENDPOINTS, "ClockEndpoints", Section)
"""The field `endpoints` of a set of `timeouts.yaml`."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """One set of timeouts.yaml."""

    default: Clocks
    by: Mapping[tuple[str, Lane], Clocks]
    """The clocks by endpoint and lane, where they differ from `default`."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The fields that a set names."""

    of_all: _Given
    lanes: Mapping[str, _Given]
    endpoints: Mapping[str, _Given]

    def about(self, endpoint: str, lane: str) -> _Given:
        """Returns the fields for calls to this endpoint in this lane."""
        return {**self.of_all, **self.lanes.get(lane, {}), **self.endpoints.get(endpoint, {})}


_SHORT = {"first_byte": 60.0, "idle": 60.0}
BUILT_IN: Final = _Words(
    {"connect": 5.0, "write": 60.0, "first_byte": 600.0, "idle": 300.0, "total": 3600.0}
    | {"below_events_per_s": 0.01, "over": 300.0, "first_event": None, "after": 4.0, "in_flight": 5},
    {"background": {"first_byte": 1800.0}},
    {
        "embeddings": {**_SHORT, "total": 120.0},
        "moderations": {"first_byte": 30.0, "idle": 30.0, "total": 60.0},
        "images": {"first_byte": 300.0, "total": 900.0},
        "speech": {"first_byte": 120.0, "idle": 60.0, "total": 900.0},
        "transcriptions": {"total": 1200.0},
        "realtime": {"first_byte": 5.0},  # a handshake thinks of nothing, and clients give one up after 10 s
    },
)


def read_timeouts(document: Document | None) -> dict[str, Timeouts]:
    """Reads every set of timeouts.yaml; None: the file does not exist.

    Precedence, field by field: the file's values go before built-in ones; within each, an endpoint's value goes before the
    lane's, and that before the set's. So a written limit is only ever replaced by a more specific written one. The endpoint
    goes first because it shows the kind of work: an embedding that takes minutes is dead in every lane. Invariant: every
    set has `default` clocks, for endpoints and lanes that it does not name.
    """
    return {name: _timeouts(_words(document, name, entry)) for name, entry in check_sets(TimeoutsSet, document).items()}


def _timeouts(given: _Words) -> Timeouts:
    default = _clocks(given, "", "")
    by = {(endpoint, lane): _clocks(given, endpoint, lane) for endpoint in ENDPOINTS for lane in LANES}
    return Timeouts(default, {place: clocks for place, clocks in by.items() if clocks != default})


def _clocks(given: _Words, endpoint: str, lane: str) -> Clocks:
    fields = BUILT_IN.about(endpoint, lane) | given.about(endpoint, lane)
    return Clocks(*(fields[name] for name in (*_FIELDS, *_DRIP, "first_event", *_SUSPECT)))


def _words(document: Document | None, name: str, entry: TimeoutsSet) -> _Words:
    if document is None:
        return _Words({}, {}, {})
    return _Words(
        _given(document, (name,), entry) | _suspect(document, (name, "suspect")),
        dict(_sections(CLOCK_LANES, document, (name, "lanes"))),
        dict(_sections(CLOCK_ENDPOINTS, document, (name, "endpoints"))),
    )


def _given(document: Document, path: Path, entry: Entry) -> _Given:
    """Returns the clocks that the entry at this path names, with those of its `drip`."""
    clocks = {field: value for field, value in entry.written().items() if field in _MORE}
    return clocks | check_part(DripEntry, document, (*path, "drip")).written()


def _sections(kind: type[Entry], document: Document, path: Path) -> Iterator[tuple[str, _Given]]:
    """Yields the fields of each lane, or endpoint, that is named there."""
    if not isinstance(document.at(path), dict) or check(kind, document, path) is None:
        return
    for place in kind.model_fields:
        here = (*path, place)
        entry = check(ClocksEntry, document, here) if isinstance(document.at(here), dict) else None
        if entry is not None:
            yield place, _given(document, here, entry)


def _suspect(document: Document, here: Path) -> _Given:
    if document.at(here) in (False, "off"):
        return {"in_flight": 0}
    return check_part(SuspectEntry, document, here).written()
