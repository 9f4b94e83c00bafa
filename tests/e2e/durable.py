"""Gateways with jobs in a file, and those who give them jobs: what they send, and how they wait for the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.e2e.harness import KEYS, NIGHTLY_KEY, PATIENCE_S, WEB_KEY, Response, chat, config_of, connect, get, post

WEB, NIGHTLY = f"authorization: Bearer {WEB_KEY}", f"authorization: Bearer {NIGHTLY_KEY}"
"""Callers of two tenants."""
ENDS = {"succeeded", "failed", "cancelled", "expired"}
ASYNC = "prefer: respond-async"
QUICK = {"backoff": {"base": "10ms", "max": "50ms"}}
"""For jobs.yaml: what failed for now is tried again at once."""


def with_jobs(folder: Path, *, jobs: object = None, **sections: Any) -> Callable[[str], Mapping[str, Any]]:
    """Makes configs with two tenants, and a jobs file in the folder; `jobs` is laid over where that is."""
    entry = {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/blobs", "min_free": "1MiB"}
    said = {**entry, **jobs} if isinstance(jobs, dict) else entry if jobs is None else jobs
    return lambda url: config_of(url, **{"keys": KEYS, "jobs": said, **sections})


def policies(folder: Path, **files: Mapping[str, Any]) -> str:
    """Writes policy files with these sets `default`; returns their folder, for the config."""
    place = folder / "policies"
    place.mkdir(exist_ok=True)
    for name, default in files.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump({"default": dict(default)}))
    return str(place)


async def ask(url: str, request: bytes) -> Response:
    """The answer to a request on a connection of its own."""
    async with connect(url) as peer:
        return await peer.exchange(request)


def new_job(*headers: str, key: str = WEB, **fields: Any) -> bytes:
    """A request for a job; by default a small chat."""
    asked = {"endpoint": "/v1/chat/completions", "body": chat(), **fields}
    return post("/v1/jobs", {name: value for name, value in asked.items() if value is not None}, key, *headers)


async def take(url: str, request: bytes) -> dict[str, Any]:
    """The job that a request has made."""
    answer = await ask(url, request)
    assert answer.status in (200, 202), answer.raw
    job: dict[str, Any] = orjson.loads(answer.body)
    assert answer.header("location") == f"/v1/jobs/{job['id']}"
    return job


async def look(url: str, job_id: str, key: str = WEB) -> dict[str, Any]:
    """The job as it is, or was a moment ago."""
    answer = await ask(url, get(f"/v1/jobs/{job_id}", key))
    assert answer.status == 200, answer.raw
    job: dict[str, Any] = orjson.loads(answer.body)
    return job


async def result_of(url: str, job_id: str, key: str = WEB) -> Response:
    """The job's answer, once it has ended."""
    async with asyncio.timeout(PATIENCE_S), connect(url) as peer:
        while (answer := await peer.exchange(get(f"/v1/jobs/{job_id}/result", key))).status == 202:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.01)
        return answer


async def end_of(url: str, job_id: str, key: str = WEB) -> dict[str, Any]:
    """The job, once it has ended."""
    await result_of(url, job_id, key)
    job = await look(url, job_id, key)
    while job["status"] not in ENDS:  # a look may be a second old
        await asyncio.sleep(0.02)
        job = await look(url, job_id, key)
    return job


async def becomes(url: str, job_id: str, status: str, key: str = WEB) -> None:
    """Wait until a job has this status."""
    async with asyncio.timeout(PATIENCE_S):
        while (await look(url, job_id, key))["status"] != status:  # noqa: ASYNC110 - a poll over the wire
            await asyncio.sleep(0.02)


def files_of_jobs(folder: Path) -> dict[str, bytes]:
    """What is in the files that jobs have made in the folder, by name."""
    return {one.name: one.read_bytes() for one in folder.rglob("*") if one.is_file() and "config" not in one.name}
