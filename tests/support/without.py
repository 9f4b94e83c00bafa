"""A gateway without one product: `python -m tests.support.without PACKAGE FOLDER` fails unless it starts and serves.

The product's package is blocked at import, as if its folder was not there. What of a config is only for it has to be refused,
and what another gateway has accepted for it has to rest in the store.
"""

from __future__ import annotations

import asyncio
import io
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson


class Blocked:
    """A finder, to be the first of `sys.meta_path`, that finds nothing of a package, and lets nobody else find it."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if f"{name}.".startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


PARTS_OF_FILES: dict[str, dict[str, Any]] = {
    "gateway.features.semantic": {"cache.yaml": {"semantic": {"embeddings": "m"}}},
    "gateway.products.batches": {"jobs.yaml": {"batches": {}}},
    "gateway.products.responses": {"jobs.yaml": {"responses": {}}},
}
"""By product: what of another product's policy files is only for it."""


def config_of(base_url: str, **changes: Any) -> dict[str, Any]:
    """A config with one provider, model and key; `changes` are more of the model, the key or the file."""
    return {
        "providers": {"p": {"dialect": "openai", "base_url": base_url, "api_key": "sk-x"}},
        "models": {"m": {"targets": ["p/m"], **changes.get("model", {})}},
        "keys": [{"name": "web", "key": "web-key-0123456789abcdef", **changes.get("key", {})}],
        **changes.get("file", {}),
    }


def refusals(package: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of a config that is only for what is not here, with what names it; writes its policy files."""
    from gateway.installed import is_installed  # once the package is blocked
    from gateway.product_list import PRODUCTS  # once it is blocked, too

    for product in PRODUCTS:
        if not is_installed(product.package):
            yield from ((key, {"file": {key: {}}}) for key in product.file_keys)
            yield from ((key, {"key": {key: "x"}}) for key in product.key_keys)
            yield from ((key, {"model": {key: "x"}}) for key in product.model_keys)
            for name in product.policy_files:
                (folder / "policies").mkdir(exist_ok=True)
                (folder / "policies" / name).write_text("{}")
                yield name, {"file": {"policies": "policies"}}
            for name in product.policy_folders:
                (folder / "policies" / name).mkdir(parents=True)
                (folder / "policies" / name / "one.yaml").write_text("{}")
                yield f"{name}/one.yaml", {"file": {"policies": "policies"}}
    for name, section in PARTS_OF_FILES.get(package, {}).items():
        (folder / "policies").mkdir(exist_ok=True)
        (folder / "policies" / name).write_bytes(orjson.dumps({"default": section}))
        yield from ((key, {"file": {"policies": "policies"}}) for key in section)


WORK_OF = {
    "batch": "gateway.products.batches",
    "response": "gateway.products.responses",
    "delivery": "gateway.products.jobs.webhooks",
    "run": "gateway.products.pipelines",
}
"""The products that run jobs of these kinds; a step, which is a child of a run, is that of the last."""


async def leave_work(path: Path) -> int:
    """Has a store accept a job of each kind whose product is not here, and a step; returns how many."""
    from gateway.installed import is_installed  # once the package is blocked, as all below
    from gateway.products.jobs.model import CHECK, JOB, Job, JobKind, JobState, NewJob, new_id
    from gateway.products.jobs.store import open_jobs

    kinds = [kind for kind in JobKind if not is_installed(WORK_OF.get(kind, "gateway.products.jobs"))]
    kinds += [JobKind.CALL] if JobKind.RUN in kinds else []
    store, now = open_jobs(str(path), time.time, 100, 100), time.time()
    for number, kind in enumerate(kinds):
        job = Job(
            id=new_id(JOB, bytes([number] * 16)),
            kind=kind,
            tenant="web",
            key="web",
            lane="batch",
            segment="small",
            is_urgent=False,
            model="m",
            state=JobState.QUEUED,
            created_at=now,
            run_at=now,
            deadline=now + 86_400.0,
            max_attempts=1,
            about={"endpoint": "/v1/chat/completions"},
            parent="run_gw" if kind is JobKind.CALL else "",
        )
        await store.accept([NewJob(job, b"{}", first_piece=CHECK if kind is JobKind.BATCH else 0)])
    await store.aclose()
    return len(kinds)


def rests(path: Path) -> list[float]:
    """Returns for how many seconds more each piece of work in a closed store is left alone."""
    with sqlite3.connect(path) as db:
        return [ready_at - time.time() for (ready_at,) in db.execute("SELECT ready_at FROM pieces")]


async def serve(folder: Path) -> None:
    """Starts a gateway with a state file, makes a plain, a streamed and a retried call, and has a job run; where none can, it
    says so."""
    from httpx import AsyncClient  # once the package is blocked, as all below

    from gateway.app import Gateway
    from gateway.emulator.app import EmulatorServer
    from gateway.emulator.config import Fault
    from gateway.installed import is_installed
    from gateway.settings import Settings

    provider = EmulatorServer()
    await provider.start()
    path = folder / "config.yaml"
    file = {"jobs": {"store": f"sqlite:///{folder}/jobs.db"}} if is_installed("gateway.products.jobs") else {}
    state = {"state": f"sqlite:///{folder}/state.db"}
    path.write_bytes(orjson.dumps(config_of(provider.base_url, file={**file, **state})))  # JSON is YAML
    left = await leave_work(folder / "jobs.db") if file else 0
    gateway = Gateway(Settings(config=path, host="127.0.0.1", port=0), {}, log_stream=io.StringIO())
    await gateway.start()
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": "Bearer web-key-0123456789abcdef"}
    async with AsyncClient(base_url=gateway.url, headers=headers, trust_env=False, timeout=30) as client:
        plain = await client.post("/v1/chat/completions", json=ask)
        assert plain.status_code == 200, plain.text
        assert plain.json()["choices"], plain.text
        streamed = await client.post("/v1/chat/completions", json={**ask, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n"), streamed.text
        before = provider.emulator.stats.total
        provider.emulator.faults.script("m", [Fault("e503")])
        retried = await client.post("/v1/chat/completions", json=ask)
        assert retried.status_code == 200, retried.text
        assert provider.emulator.stats.total - before == 2, "the first attempt came to nothing"
        if file:
            accepted = await client.post("/v1/chat/completions", json=ask, headers={"prefer": "respond-async"})
            assert accepted.status_code == 202, accepted.text
            url, status = f"/v1/jobs/{accepted.json()['id']}", "queued"
            async with asyncio.timeout(20):
                while status != "succeeded":
                    await asyncio.sleep(0.02)
                    status = (await client.get(url)).json()["status"]
        else:
            for absent in ("jobs", "batches", "files"):
                refused = await client.get(f"/v1/{absent}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "jobs_off"), refused.text
            step = await client.post("/v1/chat/completions", json=ask, headers={"x-gateway-step": "a"})
            assert step.status_code == 404, step.text
        metrics = await client.get("/metrics")
        assert metrics.status_code == 200, metrics.text
        has_caches = is_installed("gateway.features.reuse")
        assert ("x-gateway-cache" in plain.headers) == has_caches, plain.headers
        assert ("gateway_cache_entries" in metrics.text) == has_caches, metrics.text
    await gateway.stop()
    await provider.stop()
    if file:
        resting = rests(folder / "jobs.db")
        assert len(resting) == left, resting
        assert all(3000 < rest_s <= 3600 for rest_s in resting), resting


def refuse(package: str, folder: Path) -> None:
    """Loads configs that name what is not here."""
    from gateway.app import Gateway  # once the package is blocked, as all below
    from gateway.core.errors import ConfigError
    from gateway.settings import Settings

    path = folder / "refused.yaml"
    for key, changes in refusals(package, folder):
        path.write_bytes(orjson.dumps(config_of("http://127.0.0.1:9/v1", **changes)))
        problems: list[str] = []
        try:
            Gateway(Settings(config=path, host="127.0.0.1", port=0), {}, log_stream=io.StringIO())
        except ConfigError as error:
            problems = error.problems
        assert any(key in one and "is not installed" in one for one in problems), (key, problems)


if __name__ == "__main__":
    blocked, place = sys.argv[1], Path(sys.argv[2])
    sys.meta_path.insert(0, Blocked(blocked))
    refuse(blocked, place)
    asyncio.run(serve(place))
    assert not [name for name in sys.modules if f"{name}.".startswith(f"{blocked}.")]
