"""Reads `jobs`: where durable work and its files are kept, and how much of both there may be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from gateway.config.reading.check import check
from gateway.config.reading.fields import SQLITE, Count, Flag, Size, Text
from gateway.config.reading.problems import Document, Path, did_you_mean
from gateway.config.schema import ConfigFile, Entry
from gateway.config.sections.sections import beside
from gateway.policy.jobs.rules import BatchRules, JobRules, JobSettings
from gateway.policy.native.choice import may_take
from gateway.policy.snapshot import Provider

OFF: Final = "off"
STATE: Final = "state"
FILE: Final = "gateway-jobs.db"
"""Made in the working directory at first use where `state` is memory."""
_BUILT_IN: Final = JobSettings()
_HERE: Path = ("jobs",)


class JobsEntry(Entry):
    """The section `jobs`; `jobs: off` turns them off."""

    store: Text = STATE
    files: Text | None = None
    work: Flag = _BUILT_IN.works
    max_file: Size = _BUILT_IN.max_file_bytes
    max_bytes: Size = _BUILT_IN.max_bytes
    max_bytes_per_tenant: Size = _BUILT_IN.max_bytes_per_tenant
    min_free: Size = _BUILT_IN.min_free_bytes
    max_open: Count = _BUILT_IN.max_open_jobs
    max_open_per_tenant: Count = _BUILT_IN.max_open_jobs_per_tenant

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Accepts `off` alone; YAML 1.1 reads that word as false."""
        if data is False or data == OFF:
            return {"store": OFF}
        return {**data, "store": OFF} if isinstance(data, dict) and data.get("store") is False else data


def job_settings(document: Document, config: ConfigFile, state: str) -> JobSettings:
    """Returns the settings of jobs; `state` is the compiled store of the state that outlives a call."""
    entry = check(JobsEntry, document, _HERE) or JobsEntry()
    store = _store(document, entry, state)
    files = os.path.abspath(beside(document, entry.files)) if entry.files is not None else f"{store}.files"
    if store and (files == store or os.path.isfile(files)):
        document.complain((*_HERE, "files"), "is a file: name a folder")
    return JobSettings(
        store=store,
        files=files if store else "",
        takes_files=bool(store) and (config.jobs is not None or config.passthrough is None),
        works=entry.work,
        max_file_bytes=entry.max_file,
        max_bytes=entry.max_bytes,
        max_bytes_per_tenant=entry.max_bytes_per_tenant,
        min_free_bytes=entry.min_free,
        max_open_jobs=entry.max_open,
        max_open_jobs_per_tenant=entry.max_open_per_tenant,
    )


def _store(document: Document, entry: JobsEntry, state: str) -> str:
    """Returns the path of the file; empty: no jobs."""
    if entry.store == OFF:
        return ""
    if entry.store.startswith(SQLITE) and entry.store.removeprefix(SQLITE).strip("/"):
        return _file(document, entry.store.removeprefix(SQLITE), state)
    if entry.store != STATE:
        document.complain(
            (*_HERE, "store"),
            "must be state, off, or sqlite:///FILE (an absolute path has four slashes: sqlite:////var/lib/jobs.db)",
        )
        return ""
    if state.startswith(SQLITE):
        return f"{state.removeprefix(SQLITE)}.jobs"
    if state == "memory":
        return os.path.abspath(FILE)
    if document.at(_HERE) is not None:
        document.complain(_HERE, "are not kept in a Redis yet: name a file of this gateway, store: sqlite:///jobs.db")
    return ""


def _file(document: Document, written: str, state: str) -> str:
    file = os.path.abspath(beside(document, written))
    here = (*_HERE, "store")
    if file == state.removeprefix(SQLITE):
        document.complain(here, "is the file of `state`: name another one, or leave it out")
    elif os.path.isdir(file):
        document.complain(here, f"{document.show(here, written)} is a folder: name a file in it")
    return file


def job_notices(settings: JobSettings, sets: Mapping[str, JobRules], providers: Mapping[str, Provider]) -> list[str]:
    """Returns what is worth a word at start."""
    if settings.store and not settings.takes_files:
        return [
            "files and batches go to the provider of `passthrough`, at its price; `jobs: {}` makes them the gateway's"
        ]
    rules = sets["default"].batches if settings.store and "default" in sets else BatchRules()
    keys = {one.group or one.name: may_take(one) for one in providers.values()}
    stray = [name for name in rules.native.split if rules.goes_native and not keys.get(name)]
    return [
        f"no lines of batches go to {name}, which native.split names: "
        + ("it has no api_key" if name in keys else f"it is no provider{did_you_mean(name, keys)}")
        for name in stray
    ]
