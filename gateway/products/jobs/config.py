"""Reads `jobs`: where durable work and its files are kept, and how much of both there may be."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import Field

from gateway.core.config.fields import SQLITE, Count, Flag, Size, Text
from gateway.core.config.schema import ConfigFile, Entry, check
from gateway.core.config.source import Document, Path, beside, did_you_mean, kind_of
from gateway.core.config.state import SCHEMES, redis_at
from gateway.core.snapshot import Model, Provider
from gateway.fleet.lease import SharedState
from gateway.products.batches.native.rules import has_batch_api, may_take
from gateway.products.jobs.rules import IN_REDIS, Accept, JobRules, JobSettings

OFF: Final = "off"
STATE: Final = "state"
SHOWN: Final = 5
"""Names of models in a notice."""
FILE: Final = "gateway-jobs.db"
"""Made in the working directory at first use where `state` is memory."""
FOLDER: Final = "file://"
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


def job_settings(document: Document, config: ConfigFile, state: str, shared: SharedState | None) -> JobSettings:
    """Returns the settings of jobs; `state` and `shared` are the compiled store of the state that outlives a call."""
    entry = check(JobsEntry, document, _HERE) or JobsEntry()
    place = _place(document, entry.store, state, shared)
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
        takes_files=is_on and (config.jobs is not None or config.passthrough is None),
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
        if model.jobs.batches.run == "native"
        and model.targets
        and not any(has_batch_api(providers[target.provider]) for target in model.targets)
    ]
    if dear and settings.is_on:
        more = f" and {len(dear) - SHOWN} more" if len(dear) > SHOWN else ""
        yield (
            f"batches of {', '.join(dear[:SHOWN])}{more} run here, at the usual price, although jobs.yaml says `run: native`: "
            "no provider of theirs has a Batch API that is known here, as openai, azure and anthropic have"
        )
