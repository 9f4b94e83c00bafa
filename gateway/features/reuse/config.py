"""Reads `cache.yaml`: by set, which answers of a model are kept and shared between its calls.

A model picks a set; fields that a set leaves out have built-in values. The other needs of a semantic cache (an embedding
model, a package, a folder) are checked only where some model picks its set. In this
order: reading, those checks, and what models and the store get. Invariants: a set that compiles can be acted on; a
model whose calls go to other places has another version, so that no answer of a former place is given again.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.admin.describe import shown
from gateway.core.config.fields import (
    Count,
    Duration,
    PositiveDuration,
    Section,
    Size,
    Text,
    UpToOne,
    accept_off,
    is_pattern,
    problem_about_value,
    problem_of,
)
from gateway.core.config.product_sections import HAVE_EMBEDDINGS, ConfigReading, EntryField, SectionSpec, Settings
from gateway.core.config.schema import Entry, ModelEntry, check, check_part, check_sets
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.snapshot import ExplainedRequest, Model, PolicySnapshot, Provider, Setting, Target, with_settings
from gateway.core.types import StoreBounds
from gateway.drivers.store import LEASE_S
from gateway.features.reuse.rules import CACHING, LOCAL, Caching, ExactRule, SemanticRule, Which, applies
from gateway.installed import is_installed

LOCAL_FILES: Final = ("model.safetensors", "tokenizer.json")
"""The files of a folder with a local embedding model."""

_BUILT_IN: Final = Caching()
_SEMANTIC: Final = SemanticRule("")
_RECORD_BYTES: Final = 256 * 1024 * 1024
_VERSION_CHARS: Final = 16


_THE_QUESTION: Final = frozenset({"model", "messages", "input", "prompt"})


def _version(value: object) -> object:
    """Accepts a whole number as a version's name; a bare `1.10` is refused, because YAML reads it as 1.1."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _ignored(name: str) -> str:
    if name in _THE_QUESTION:
        raise problem_about_value("is the question itself: it cannot be ignored")
    if "." in name:
        raise problem_about_value("is not the name of a field: only those at the top of a request can be ignored")
    return name


def _embeddings(text: str) -> str:
    if text == "local:":
        raise problem_of("names no folder: write local:FOLDER")
    return text


Version = Annotated[str, Field(min_length=1), BeforeValidator(_version)]
IgnoredField = Annotated[str, Field(min_length=1), AfterValidator(_ignored)]
Embeddings = Annotated[str, Field(min_length=1), AfterValidator(_embeddings)]
WhichRequests = Annotated[Which, BeforeValidator(accept_off)]


class CacheSet(Entry):
    """A set of cache.yaml."""

    version: Version = _BUILT_IN.version
    idempotency: Section = Field(default_factory=dict)
    coalesce: WhichRequests = _BUILT_IN.coalesce
    exact: Section = Field(default_factory=dict)
    semantic: Section | None = None


class IdempotencyEntry(Entry):
    """The field `idempotency` of a set of `cache.yaml`."""

    keep: Duration = _BUILT_IN.keep_s
    lease: PositiveDuration = _BUILT_IN.lease_s
    max_bytes: Size = _RECORD_BYTES
    max_entry: Size = _BUILT_IN.max_record_bytes


class ExactEntry(Entry):
    """The field `exact` of a set of `cache.yaml`."""

    requests: WhichRequests = _BUILT_IN.exact.requests
    ttl: PositiveDuration = _BUILT_IN.exact.ttl_s
    stale_if_error: Duration = _BUILT_IN.exact.stale_if_error_s
    max_bytes: Size = _BUILT_IN.exact.max_bytes
    max_entry: Size = _BUILT_IN.exact.max_entry_bytes
    pace: Duration = _BUILT_IN.exact.pace_s
    ignore: list[IgnoredField] = Field(default_factory=list)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.max_entry > self.max_bytes:
            raise problem_of("max_entry must not be more than max_bytes")
        if self.stale_if_error and self.requests == "off":
            raise problem_of("stale_if_error has nothing to give with requests: off: write deterministic or always")
        return self


class SemanticEntry(Entry):
    """The field `semantic` of a set of `cache.yaml`."""

    embeddings: Embeddings
    threshold: UpToOne = _SEMANTIC.threshold
    ttl: PositiveDuration = _SEMANTIC.ttl_s
    max_entries: Count = _SEMANTIC.max_entries
    wait: Duration = _SEMANTIC.wait_s
    dimensions: Count | None = _SEMANTIC.dimensions


@dataclass(frozen=True, slots=True)
class CachePolicies:
    """The contents of cache.yaml."""

    sets: Mapping[str, Caching]
    record_bytes: int
    """The bytes of all idempotency records together, at most."""
    document: Document | None = field(default=None, compare=False, repr=False)
    """The file, for problems that only show together with the config; None: everything is built in."""


CACHE_SETS: Final[Setting[CachePolicies]] = Setting("cache sets", CachePolicies({}, _RECORD_BYTES))
"""The sets while a config is loaded; no snapshot has them."""


class CacheSection(SectionSpec):
    """The file cache.yaml, and the set that a model picks."""

    policy_files = ("cache.yaml",)
    of_model: ClassVar[EntryField[str]] = EntryField("cache", Text, "default", after="timeouts")
    model_fields = (of_model,)
    explain_order = -1

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        return {CACHE_SETS: read_caching(documents.get("cache.yaml"), beside)}

    def sets(self, reading: ConfigReading) -> Iterator[tuple[EntryField[str], Mapping[str, object]]]:
        yield self.of_model, CACHE_SETS.of(reading).sets

    def read_more(self, reading: ConfigReading) -> None:
        models = reading.models
        picked = {
            name: self.of_model.of(models[name].entry) if name in models else None for name in reading.config.models
        }
        check_caching(CACHE_SETS.of(reading), picked)

    def check_models(self, reading: ConfigReading) -> None:
        """Notes semantic caches whose model makes no embeddings."""
        cache = CACHE_SETS.of(reading)
        picked = {self.of_model.of(model.entry) for model in reading.models.values()}
        for name in picked & cache.sets.keys() if cache.document else ():
            semantic = cache.sets[name].semantic
            if cache.document is not None and semantic is not None:
                why = reading.why_none("embeddings", semantic.embeddings)
                if why is not None:
                    problem = f"{quoted(semantic.embeddings)} makes none: {why}{HAVE_EMBEDDINGS}"
                    cache.document.complain((name, "semantic", "embeddings"), problem)

    def finish_model(self, reading: ConfigReading, entry: ModelEntry, model: Model) -> Settings:
        caching = CACHE_SETS.of(reading).sets[self.of_model.of(entry)]
        places = _places((*model.plan, *model.context_plan), reading.providers)
        others = [part for section in reading.sections for part in section.answer_parts(model)]
        return {CACHING: with_routes(caching, places, others), LEASE_S: caching.lease_s}

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        bounds = store_bounds(reading.built.values(), CACHE_SETS.of(reading).record_bytes)
        return replace(with_settings(snapshot, {CACHE_SETS: CACHE_SETS.default}), store=bounds)

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        return {**shown, "cache": describe_caching(CACHING.of(model))}

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields which answers are kept, shared and given again."""
        caching, endpoint, parsed = CACHING.of(request.model), request.endpoint.name, request.parsed or {}
        exact = caching.exact
        parts = [f"set {caching.name}"]
        parts.append("an Idempotency-Key is " + (f"kept for {caching.keep_s:g} s" if caching.keep_s else "ignored"))
        parts.append("shared with equal calls" if applies(caching.coalesce, endpoint, parsed) else "not shared")
        is_kept = applies(exact.requests, endpoint, parsed)
        parts.append(f"given again for {exact.ttl_s:g} s" if is_kept else "not given again")
        if is_kept and exact.stale_if_error_s:
            parts.append(f"{exact.stale_if_error_s:g} s longer when nobody can answer")
        if caching.semantic is not None:
            like = f"similarity {caching.semantic.threshold:g} by {caching.semantic.embeddings}"
            parts.append(f"to other words with {like}")
        yield f"cache     {', '.join(parts)}"


def describe_caching(caching: Caching) -> dict[str, Any]:
    """Returns the rules of reuse, in the words of cache.yaml; the version also stands for the places that calls go to."""
    return shown(
        caching,
        *("name", "keep_s", "lease_s", "max_record_bytes"),
        set=caching.name,
        idempotency={
            "keep_s": caching.keep_s,
            "lease_s": caching.lease_s,
            "max_entry_bytes": caching.max_record_bytes,
        },
    )


# --- reading ---


def read_caching(document: Document | None, beside: FilePath) -> CachePolicies:
    """Reads every set of cache.yaml (None: it does not exist); a local model's folder is relative to the folder `beside`."""
    entries = check_sets(CacheSet, document)
    records = {name: check_part(IdempotencyEntry, document, (name, "idempotency")) for name in entries}
    record_bytes = records["default"].max_bytes
    if document is not None:
        for name, entry in records.items():
            path: Path = (name, "idempotency")
            if "max_bytes" in entry.model_fields_set and entry.max_bytes != record_bytes:
                document.complain((*path, "max_bytes"), "concerns all calls at once: only the set `default` can say it")
            elif entry.model_fields_set & {"max_bytes", "max_entry"} and entry.max_entry > record_bytes:
                document.complain(path, "max_entry must not be more than max_bytes")
    sets = {name: _caching(document, name, entry, records[name], beside) for name, entry in entries.items()}
    return CachePolicies(sets, record_bytes, document)


def _caching(
    document: Document | None, name: str, entry: CacheSet, records: IdempotencyEntry, beside: FilePath
) -> Caching:
    exact = check_part(ExactEntry, document, (name, "exact"))
    return Caching(
        name=name,
        version=entry.version,
        coalesce=entry.coalesce,
        keep_s=records.keep,
        lease_s=records.lease,
        max_record_bytes=records.max_entry,
        exact=ExactRule(
            requests=exact.requests,
            ttl_s=exact.ttl,
            stale_if_error_s=exact.stale_if_error,
            max_bytes=exact.max_bytes,
            max_entry_bytes=exact.max_entry,
            pace_s=exact.pace,
            ignore=frozenset(exact.ignore),
        ),
        semantic=_semantic(document, (name, "semantic"), beside) if entry.semantic is not None else None,
    )


def _semantic(document: Document | None, path: Path, beside: FilePath) -> SemanticRule | None:
    if document is not None and not is_installed("gateway.features.semantic"):
        document.complain(path, f"{quoted('semantic')} is not installed")
        return None
    entry = check(SemanticEntry, document, path) if document is not None else None
    if entry is None:
        return None
    return SemanticRule(
        embeddings=_found_from(beside, entry.embeddings),
        threshold=entry.threshold,
        ttl_s=entry.ttl,
        max_entries=entry.max_entries,
        wait_s=entry.wait,
        dimensions=entry.dimensions,
    )


def _found_from(beside: FilePath, embeddings: str) -> str:
    folder = embeddings.removeprefix(LOCAL)
    return embeddings if folder == embeddings else f"{LOCAL}{(beside / folder).absolute()}"


# --- what the config must have for it ---


def check_caching(cache: CachePolicies, picked: Mapping[str, str | None]) -> None:
    """Notes problems of the picked sets; `picked` maps every entry of `models` to its set, None where it is unreadable."""
    for name, caching in cache.sets.items():
        if cache.document is not None and caching.semantic is not None and name in picked.values():
            path, embeddings = (name, "semantic", "embeddings"), caching.semantic.embeddings
            _check_package(cache.document, (name, "semantic"), "numpy", "semantic")
            if embeddings.startswith(LOCAL):
                _check_package(cache.document, path, "tokenizers", "local-embeddings")
                _check_folder(cache.document, path, embeddings.removeprefix(LOCAL))
            else:
                _check_model(cache.document, path, embeddings, cache.sets, picked)


def _check_package(document: Document, path: Path, package: str, extra: str) -> None:
    if find_spec(package) is None:
        document.complain(path, f"needs the Python package {package}, which is not installed (the extra {extra})")


def _check_folder(document: Document, path: Path, folder: str) -> None:
    shown = document.show(path, str(document.at(path)).removeprefix(LOCAL))
    missing = [name for name in LOCAL_FILES if not os.path.isfile(os.path.join(folder, name))]
    if not os.path.isdir(folder):
        document.complain(path, f"there is no folder {shown}, as seen from the config file")
    elif missing:
        document.complain(path, f"the folder {shown} has no {' and no '.join(missing)}")


def _check_model(
    document: Document, path: Path, model: str, sets: Mapping[str, Caching], picked: Mapping[str, str | None]
) -> None:
    # The entry of `models` that serves this name: the exact one, else the longest matching pattern.
    fitting = [name for name in picked if name == model or fnmatchcase(model, name)]
    entry = min(fitting, key=lambda name: (name != model, -len(name), name), default=None)
    own = sets.get((picked[entry] if entry is not None else None) or "")
    if is_pattern(model):
        document.complain(path, "is a pattern: name one model")
    elif entry is None:
        suggestion = "" if document.origin_of(path) else did_you_mean(model, picked)
        document.complain(path, f"no model {document.show(path, model)}{suggestion}")
    elif own is not None and own.semantic is not None:
        shown = document.show(path, model)
        document.complain(
            path, f"{shown} would have a semantic cache itself: let it pick a set without one (`cache: NAME`)"
        )


# --- what models and the store get ---


def with_routes(caching: Caching, places: Iterable[tuple[str, ...]], others: Iterable[str] = ()) -> Caching:
    """Returns the set for a model whose calls may go to these places (provider, address, model, edits), with its version.

    What `others` say of its answers is part of that: one that was good enough for another rule is not given again.
    """
    parts = [caching.version, *(part for place in dict.fromkeys(places) for part in place), *others]
    total = sha256()
    for part in (part.encode("utf-8", "surrogatepass") for part in parts):
        total.update(b"%d:%b" % (len(part), part))
    return replace(caching, version=total.hexdigest()[:_VERSION_CHARS])


def _places(targets: Iterable[Target], providers: Mapping[str, Provider]) -> Iterator[tuple[str, ...]]:
    """Yields the places of the targets, once per provider: the credential that pays does not change an answer."""
    for target in targets:
        provider = providers[target.provider]
        edits = () if target.edits is None else (repr(target.edits),)
        yield provider.group, provider.base_url, target.model or f"{target.strip}*", *edits


def store_bounds(models: Collection[Model], record_bytes: int) -> StoreBounds:
    """Returns the store's bounds: answers for each set that a model uses, and vectors as the largest set asks."""
    used = {caching.name: caching for caching in map(CACHING.of, models)}
    keeping = {name: one for name, one in used.items() if one.exact.requests != "off" or one.semantic is not None}
    sizes = [one.semantic.max_entries for one in keeping.values() if one.semantic is not None]
    answers = {name: one.exact.max_bytes for name, one in keeping.items()}
    return StoreBounds(answers, record_bytes, max(sizes, default=_SEMANTIC.max_entries))
