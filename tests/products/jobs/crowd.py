"""Fills a jobs file with waiting jobs and tells what it takes: `python -m tests.products.jobs.crowd FOLDER JOBS CLAIMS`.

A process of its own, so that its memory is that of the store. Prints one JSON object per phase.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.products.jobs.model import ClaimRequest, JobQuery, NewJob
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.soak.support import rss_kib
from tests.support.job_stores import Jobs, key

AT_ONCE = 500
PAYLOAD_BYTES = 1024
TENANTS = 20


async def crowd(folder: Path, number: int, claims: int) -> None:
    path = str(folder / "jobs.db")
    before = 1024 * rss_kib()
    jobs = Jobs(SqliteJobStore(path, time.time, OpenBounds(2 * number, 2 * number)), time.time)  # type: ignore[arg-type]  # its clock
    filled, log_bytes = time.perf_counter(), 0
    for first in range(0, number, AT_ONCE):
        await jobs.store.accept([new(jobs, first + one) for one in range(AT_ONCE)])
        log_bytes = max(log_bytes, size_of(path + "-wal"))
    say("filled", seconds=time.perf_counter() - filled, resident=1024 * rss_kib() - before, log_bytes=log_bytes)
    await jobs.store.aclose()
    say("closed", file_bytes=size_of(path))

    opening = time.perf_counter()
    store = SqliteJobStore(path, time.time, OpenBounds(2 * number, 2 * number))
    say("opened", seconds=time.perf_counter() - opening, ready=sum(one.number for one in store.depth().values()))
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "claim one": lambda: store.claim([ClaimRequest("fast", 1)]),
        "claim fifty": lambda: store.claim([ClaimRequest("fast", 50), ClaimRequest("slow", 1)]),
        "first page": lambda: store.list_jobs(JobQuery("tenant-3")),
    }
    for name, ask in asks.items():
        times = []
        for _ in range(claims):
            began = time.perf_counter()
            await ask()
            times.append(time.perf_counter() - began)
        store.tick()
        times.sort()
        say(name, p50=times[len(times) // 2], p99=times[len(times) * 99 // 100], most=times[-1])
    say("claimed", resident=1024 * rss_kib() - before)
    await store.aclose()

    opening = time.perf_counter()
    store = SqliteJobStore(path, time.time, OpenBounds(2 * number, 2 * number))
    say("opened again", seconds=time.perf_counter() - opening)
    await store.aclose()


def new(jobs: Jobs, number: int) -> NewJob:
    """A call as it comes by HTTP: with an id, a dedupe key for one in ten, and a kilobyte to ask."""
    about = {"endpoint": "/v1/chat/completions", "metadata": {"n": str(number)}, "trace": None}
    named = {"dedupe_key": key(number), "dedupe_until": time.time() + 86_400} if number % 10 == 0 else None
    job_id = f"job_gw{key(number).hex()[:22]}"
    tenant = f"tenant-{number % TENANTS}"
    payload = b'{"model":"m"}' + os.urandom(PAYLOAD_BYTES - 13)
    return jobs.new(id=job_id, tenant=tenant, about=about, payload=payload, more=named)


def size_of(path: str) -> int:
    return os.path.getsize(path)


def say(phase: str, **figures: float) -> None:
    sys.stdout.write(json.dumps({"phase": phase, **figures}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(crowd(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
