"""Reads `jobs`: where durable work and its files are kept, and how much of both there may be."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import Field

from gateway.admin.describe import describe_redis
from gateway.admin.describe import shown as shown_fields
from gateway.core.config.fields import Count, Flag, Size, Text
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings, placed_after
from gateway.core.config.schema import Entry, KeyEntry, ModelEntry, check
from gateway.core.config.source import Document, Path, beside, did_you_mean, kind_of
from gateway.core.snapshot import ExplainedRequest, Key, Model, PolicySnapshot, Provider
from gateway.core.types import SharedState
from gateway.drivers.config import SCHEMES, SQLITE, redis_at
from gateway.drivers.durability import IN_REDIS, JOB_SETTINGS, KEEP_RUNS_S, Accept, JobSettings
from gateway.products.jobs.policies_config import read_jobs
from gateway.products.jobs.rules import ACCEPTS_202, JOB_RULES, JOBS, JobRules, Jobs, has_batch_api, may_take

OFF: Final = "off"
STATE: Final = "state"
SHOWN: Final = 5
"""Names of models in a notice."""
FILE: Final = "gateway-jobs.db"
"""Made in the working directory at first use where `state` is memory."""
FOLDER: Final = "file://"
_DEFAULT: Final = "default"
_BUILT_IN: Final = JobSettings()
_HERE: Path = ("jobs",)
_STORE: Path = ("jobs", "store")
_FILES: Path = ("jobs", "files")


class JobsPlace(NamedTuple):
    """Where jobs are kept: in a file, in a Redis, or nowhere."""

    file: str = ""
    redis: SharedState | None = None


class JobsEntry(Entry):
    """The section `jobs`; `jobs: off` turns them off."""

    store: Any = Field(default=STATE, repr=False)
    files: Text | None = None
    accept: Accept = _BUILT_IN.accept
    work: Flag = _BUILT_IN.works
    max_file: Size = _BUILT_IN.max_file_bytes
    max_bytes: Size = _BUILT_IN.max_bytes
    max_bytes_per_tenant: Size = _BUILT_IN.max_bytes_per_tenant
    max_response_log: Size = _BUILT_IN.max_response_log_bytes
    max_response_bytes_per_tenant: Size = _BUILT_IN.max_response_bytes_per_tenant
    max_run_bytes_per_tenant: Size = _BUILT_IN.max_run_bytes_per_tenant
    min_free: Size = _BUILT_IN.min_free_bytes
    max_open: Count = _BUILT_IN.max_open_jobs
    max_open_per_tenant: Count = _BUILT_IN.max_open_jobs_per_tenant

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Accepts `off` alone; YAML 1.1 reads that word as false."""
        if data is False or data == OFF:
            return {"store": OFF}
        return {**data, "store": OFF} if isinstance(data, dict) and data.get("store") is False else data


class JobsSection(SectionSpec):
    """The section `jobs`, the file jobs.yaml, the set that a model picks, and `accepts_202` of a key."""

    policy_files = ("jobs.yaml",)
    of_file: ClassVar[EntryField[Any]] = EntryField("jobs", Any, None, after="objects")
    of_key: ClassVar[EntryField[bool]] = EntryField("accepts_202", Flag, False, after="names_tenants")
    of_model: ClassVar[EntryField[str]] = EntryField("jobs", Text, _DEFAULT, after="cache")
    file_fields = (of_file,)
    key_fields = (of_key,)
    model_fields = (of_model,)
    explain_order = 3

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        jobs = Jobs(sets=read_jobs(documents.get("jobs.yaml")))
        return {JOBS: jobs, KEEP_RUNS_S: jobs.default.keep_runs_s}

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        return {ACCEPTS_202: self.of_key.of(entry)}

    def sets(self, reading: ConfigReading) -> Iterator[tuple[EntryField[str], Mapping[str, object]]]:
        yield self.of_model, JOBS.of(reading).sets

    def check_models(self, reading: ConfigReading) -> None:
        """Notes models that pick half price at providers that have none; what `default` says of all models is no error."""
        document = reading.document
        for name, model in reading.models.items():
            picked = self.of_model.of(model.entry)
            rules = JOBS.of(reading).sets.get(picked)
            if picked == _DEFAULT or rules is None or rules.batches.run != "native":
                continue
            owners = dict.fromkeys(model.providers)
            found = {owner: reading.providers[owner] for owner in owners if owner in reading.providers}
            if found and len(found) == len(owners) and not any(map(has_batch_api, found.values())):
                named = ", ".join(f"{owner}: {provider.dialect}" for owner, provider in found.items())
                problem = (
                    f"{document.show(('models', name, 'jobs'), picked)} has `batches.run: native`, and no provider of "
                    f"the model has a Batch API that is known here ({named}): pick a set with `run: here`, or add a target at "
                    "a provider of the dialect openai, azure or anthropic"
                )
                document.complain(("models", name, "jobs"), problem)

    def read_sections(self, reading: ConfigReading) -> None:
        is_named = self.of_file.of(reading.config) is not None
        settings = job_settings(reading, takes_files=is_named or reading.config.passthrough is None)
        reading.settings[JOBS] = replace(JOBS.of(reading), settings=settings)
        reading.settings[JOB_SETTINGS] = settings

    def finish_model(self, reading: ConfigReading, entry: ModelEntry, model: Model) -> Settings:
        return {JOB_RULES: JOBS.of(reading).sets[self.of_model.of(entry)]}

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> list[str]:
        jobs = JOBS.of(snapshot)
        return job_notices(jobs.settings, jobs.sets, reading.providers, reading.built.values())

    def stores(self, snapshot: PolicySnapshot) -> Mapping[str, SharedState | None]:
        return {"jobs.store": JOBS.of(snapshot).settings.redis}

    def secret_paths(self) -> Sequence[Path]:
        return _STORE, (*_STORE, "redis"), (*_STORE, "password")

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        jobs = JOBS.of(snapshot)
        settings = shown_fields(jobs.settings, redis=describe_redis(jobs.settings.redis))
        return placed_after(["objects", "passthrough"], shown, jobs=shown_fields(jobs, settings=settings))

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields where a job would be kept, how it is tried, and when a call becomes one unasked."""
        # Only to explain: the admin's part of jobs loads all of durable work.
        from gateway.products.jobs.admin import explain_job

        yield from explain_job(request)

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["names_tenants"], shown, accepts_202=ACCEPTS_202.of(key))


def job_settings(reading: ConfigReading, *, takes_files: bool) -> JobSettings:
    """Returns the settings of jobs; where there are any, `takes_files`."""
    document = reading.document
    entry = check(JobsEntry, document, _HERE) or JobsEntry()
    place = _place(document, entry.store, reading.state, reading.shared)
    is_on = bool(place.file) or place.redis is not None
    if place.file and "accept" in entry.model_fields_set:
        document.complain(
            (*_HERE, "accept"), "is for jobs in a Redis: a file is written to its disk before each answer"
        )
    return JobSettings(
        store=place.file,
        redis=place.redis,
        accept=entry.accept,
        files=_files(document, entry.files, place) if is_on else "",
        takes_files=is_on and takes_files,
        works=entry.work,
        max_file_bytes=entry.max_file,
        max_bytes=entry.max_bytes,
        max_bytes_per_tenant=entry.max_bytes_per_tenant,
        max_response_log_bytes=entry.max_response_log,
        max_response_bytes_per_tenant=entry.max_response_bytes_per_tenant,
        max_run_bytes_per_tenant=entry.max_run_bytes_per_tenant,
        min_free_bytes=entry.min_free,
        max_open_jobs=entry.max_open,
        max_open_jobs_per_tenant=entry.max_open_per_tenant,
    )


def _place(document: Document, store: object, state: str, shared: SharedState | None) -> JobsPlace:
    if store == OFF:
        return JobsPlace()
    if isinstance(store, dict) or (isinstance(store, str) and store.startswith(SCHEMES)):
        return JobsPlace(redis=redis_at(document, _STORE, store))
    if not isinstance(store, str):
        document.complain(_STORE, f"expected text or a mapping, not {kind_of(store)}")
        return JobsPlace()
    if store.startswith(SQLITE) and store.removeprefix(SQLITE).strip("/"):
        return JobsPlace(_file(document, store.removeprefix(SQLITE), state))
    if store != STATE:
        document.complain(
            _STORE,
            "must be state, off, sqlite:///FILE (an absolute path has four slashes: sqlite:////var/lib/jobs.db), "
            f"or begin with {', '.join(SCHEMES)}",
        )
        return JobsPlace()
    if state.startswith(SQLITE):
        return JobsPlace(f"{state.removeprefix(SQLITE)}.jobs")
    return JobsPlace(os.path.abspath(FILE)) if state == "memory" else JobsPlace(redis=shared)


def _files(document: Document, written: str | None, place: JobsPlace) -> str:
    """Returns the folder of the files' bytes, or IN_REDIS."""
    if written is None:
        return IN_REDIS if place.redis is not None else f"{place.file}.files"
    if written == IN_REDIS:
        if place.redis is None:
            document.complain(_FILES, "redis is for jobs that are kept in one: name a folder")
        return IN_REDIS
    if "://" in written and not written.startswith(f"{FOLDER}/"):
        document.complain(_FILES, "must be a folder, file:///FOLDER (from the root), or redis")
        return ""
    folder = unquote(urlsplit(written).path) if written.startswith(FOLDER) else beside(document, written)
    folder = os.path.abspath(folder)
    if folder == place.file or os.path.isfile(folder):
        document.complain(_FILES, "is a file: name a folder")
    return folder


def _file(document: Document, written: str, state: str) -> str:
    file = os.path.abspath(beside(document, written))
    if file == state.removeprefix(SQLITE):
        document.complain(_STORE, "is the file of `state`: name another one, or leave it out")
    elif os.path.isdir(file):
        document.complain(_STORE, f"{document.show(_STORE, written)} is a folder: name a file in it")
    return file


def job_notices(
    settings: JobSettings,
    sets: Mapping[str, JobRules],
    providers: Mapping[str, Provider],
    models: Collection[Model],
) -> list[str]:
    """Returns what is worth a word at start."""
    if settings.is_on and not settings.takes_files:
        return [
            "files and batches go to the provider of `passthrough`, at its price; `jobs: {}` makes them the gateway's"
        ]
    notices = []
    if settings.store and not settings.works:
        notices.append(
            "jobs.work: jobs are taken, and nobody runs them: an SQLite file is one process's alone. Leave `work` out, or keep "
            "jobs in a Redis, where `gateway work` runs them"
        )
    if settings.is_on and settings.files == IN_REDIS:
        notices.append(
            "jobs: the bytes of files, and the answers of batches, are in the memory of the Redis, 512 MiB of them at most; "
            "name a folder that all gateways share: `jobs: {files: file:///FOLDER}`"
        )
    splits = {name: None for one in sets.values() if one.batches.goes_native for name in one.batches.native.split}
    reasons = {one.group or one.name: _why_no_parts(one) for one in providers.values()}
    strays = {name: reasons.get(name, f"it is no provider{did_you_mean(name, reasons)}") for name in splits}
    notices += _dear_batches(settings, providers, models)
    return notices + [
        f"no lines of batches go to {name}, which native.split names: {why}"
        for name, why in strays.items()
        if settings.is_on and why
    ]


def _why_no_parts(provider: Provider) -> str:
    """Returns why no lines of batches go to a provider's own Batch API; empty: they may."""
    if not has_batch_api(provider):
        return f"the gateway knows no Batch API of dialect {provider.dialect}"
    if may_take(provider):
        return ""
    return "it has no api_key" + (": its Batch API is not called with `auth`" if provider.auth is not None else "")


def _dear_batches(settings: JobSettings, providers: Mapping[str, Provider], models: Collection[Model]) -> Iterator[str]:
    """Yields a word on models whose batches were to be done at half price, and cannot be."""
    dear = [
        model.name
        for model in models
        if JOB_RULES.of(model).batches.run == "native"
        and model.targets
        and not any(has_batch_api(providers[target.provider]) for target in model.targets)
    ]
    if dear and settings.is_on:
        more = f" and {len(dear) - SHOWN} more" if len(dear) > SHOWN else ""
        yield (
            f"batches of {', '.join(dear[:SHOWN])}{more} run here, at the usual price, although jobs.yaml says `run: native`: "
            "no provider of theirs has a Batch API that is known here, as openai, azure and anthropic have"
        )
