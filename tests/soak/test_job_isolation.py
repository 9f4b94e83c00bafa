"""Ten thousand questions about jobs, files and batches of another tenant: each is answered as for what never was."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.batches import begin, end_of, line
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, WEB, new_job, take, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, Running, connect, get, post
from tests.soak.conftest import Report

QUESTIONS = int(os.environ.get("QUESTIONS", "10000"))
EACH = 5
OTHERS = {WEB: NIGHTLY, NIGHTLY: WEB}

pytestmark = pytest.mark.soak


async def test_nothing_is_told_to_another_tenant(start: StartGateway, tmp_path: Path, report: Report) -> None:
    """Status, headers that matter and every byte are as for an id that does not exist; lists and keys are one's own."""
    gateway = await start(with_jobs(tmp_path))
    ids = {key: await belongings(gateway, key, api_key) for key, api_key in ((WEB, WEB_KEY), (NIGHTLY, NIGHTLY_KEY))}
    draw = random.Random(int(os.environ.get("SEED", "1")))

    asked: Counter[str] = Counter()
    async with connect(gateway.url) as peer:
        for _ in range(QUESTIONS):
            asker = draw.choice(list(OTHERS))
            name, make, owned = draw.choice(WAYS)
            foreign = draw.choice(ids[OTHERS[asker]][owned])
            told, expected = [await peer.exchange(make(one, asker)) for one in (foreign, unknown(foreign, draw))]
            assert (told.status, told.body) == (expected.status, expected.body), (name, told.raw, expected.raw)
            assert told.status >= 400 or name.startswith("list"), (name, told.raw)
            assert foreign.encode() not in told.body
            asked[name] += 1
        for key, other in OTHERS.items():
            listed = [await listed_ids(peer, path, key) for path in ("/v1/jobs", "/v1/batches", "/v1/files")]
            assert all(
                set(ids[key][kind]) <= set(found) for kind, found in zip(("job", "batch", "file"), listed, strict=True)
            )
            assert not {one for found in listed for one in found} & {
                one for kind in ids[other].values() for one in kind
            }
        made = {key: orjson.loads((await peer.exchange(keyed(key))).body)["id"] for key in OTHERS}
    assert made[WEB] != made[NIGHTLY], "a key of one tenant found the job of another"
    report(f"{sum(asked.values()):,} questions, 0 answered otherwise: {dict(asked)}")


async def belongings(gateway: Running, key: str, api_key: str) -> dict[str, list[str]]:
    """Makes a tenant's jobs, files and batches; returns their ids by kind."""
    async with gateway.sdk(api_key) as sdk:
        batches = [await end_of(sdk, (await begin(sdk, [line("a")])).id) for _ in range(EACH)]
    jobs = [
        await take(gateway.url, new_job(key=key, run_at=int(time.time()) + 86_400 if at % 2 else None))
        for at in range(EACH)
    ]
    files = [id for one in batches for id in (one.input_file_id, one.output_file_id) if id]
    return {"job": [one["id"] for one in jobs], "batch": [one.id for one in batches], "file": files}


def unknown(known: str, draw: random.Random) -> str:
    """Returns an id of the same form that nobody has."""
    head, _, tail = known.rpartition("gw")
    return f"{head}gw{''.join(draw.sample(tail, len(tail)))}" if len(set(tail)) > 1 else known + "0"


def of(path: str, method: str = "GET") -> Callable[[str, str], bytes]:
    return lambda id, key: get(path.format(id=id), key, method=method)


def batch_of(id: str, key: str) -> bytes:
    return post(
        "/v1/batches", {"input_file_id": id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}, key
    )


def keyed(key: str) -> bytes:
    """A request whose keys are equal to those of the other tenant."""
    return new_job("idempotency-key: same", key=key, dedupe_key="same")


WAYS: list[tuple[str, Callable[[str, str], bytes], str]] = [
    ("job", of("/v1/jobs/{id}"), "job"),
    ("job result", of("/v1/jobs/{id}/result"), "job"),
    ("job events", of("/v1/jobs/{id}/events"), "job"),
    ("job cancel", of("/v1/jobs/{id}/cancel", "POST"), "job"),
    ("list jobs after", of("/v1/jobs?after={id}"), "job"),
    ("batch", of("/v1/batches/{id}"), "batch"),
    ("batch events", of("/v1/batches/{id}/events"), "batch"),
    ("batch cancel", of("/v1/batches/{id}/cancel", "POST"), "batch"),
    ("list batches after", of("/v1/batches?after={id}"), "batch"),
    ("file", of("/v1/files/{id}"), "file"),
    ("file content", of("/v1/files/{id}/content"), "file"),
    ("file delete", of("/v1/files/{id}", "DELETE"), "file"),
    ("list files after", of("/v1/files?after={id}"), "file"),
    ("batch of a file", batch_of, "file"),
    ("job as a batch", of("/v1/batches/{id}"), "job"),
    ("batch as a job", of("/v1/jobs/{id}"), "batch"),
    ("file as a job", of("/v1/jobs/{id}/result"), "file"),
]


async def listed_ids(peer: Any, path: str, key: str) -> list[str]:
    """Returns the ids of a list's first page, which holds all."""
    page = orjson.loads((await peer.exchange(get(f"{path}?limit=100", key))).body)
    return [one["id"] for one in page["data"]]
