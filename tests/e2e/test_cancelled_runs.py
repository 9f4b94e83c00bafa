"""Runs of pipelines that are stopped: told once, wherever runs are shown and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from prometheus_client import generate_latest

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import WEB, ask, becomes, new_job, policies, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, Running, get, post, until
from tests.support.redis_servers import RedisServer

OPERATOR = f"authorization: Bearer {ADMIN_KEY}"
ONE = {"steps": {"only": {"call": {"model": "gpt-4o", "messages": [{"role": "user", "content": "{{ input }}"}]}}}}


async def shown(gateway: Running, path: str, key: str = WEB) -> Any:
    return orjson.loads((await ask(gateway.url, get(path, key))).body)


def runs_told(gateway: Running) -> set[str]:
    lines = generate_latest(gateway.gateway.registry).decode().splitlines()
    return {line.partition("{")[2] for line in lines if line.startswith("gateway_workflow_runs_total{")}


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_cancelled_run_is_told_as_that_once(
    store: str, start: StartGateway, tmp_path: Path, a_redis: RedisServer
) -> None:
    """Also one that had not begun."""
    place = Path(policies(tmp_path)) / "pipelines"
    place.mkdir()
    (place / "one.yaml").write_text(yaml.safe_dump(ONE))
    kept: dict[str, Any] = {} if store == "sqlite" else {"store": a_redis.url}
    gateway = await start(with_jobs(tmp_path, jobs=kept, policies=str(place.parent), admin={"key": ADMIN_KEY}))
    gateway.script("slow_first_token;seconds=30")
    request = {"model": "pipelines/one", "messages": [{"role": "user", "content": "x"}]}

    async def begun(**fields: Any) -> str:
        return str((await take(gateway.url, new_job(body=request, **fields)))["id"])

    running = await begun()
    await until(lambda: gateway.upstream_calls() == 1)
    later = await begun(delay="1h")
    for run_id in (running, later, running):  # the one that is stopped is stopped again
        await ask(gateway.url, post(f"/v1/jobs/{run_id}/cancel", {}, WEB))
        await becomes(gateway.url, run_id, "cancelled")

    for run_id in (running, later):
        told = await shown(gateway, f"/v1/runs/{run_id}")
        assert (told["outcome"], told["workflow"], told["is_told"]) == ("cancelled", "pipelines/one", True)
    found = await shown(gateway, "/admin/runs?outcome=cancelled", OPERATOR)
    assert {one["id"] for one in found["runs"]} == {running, later}
    assert all(one["usable"] is None for one in found["runs"])
    await until(counted(gateway, {'outcome="cancelled",workflow="other"} 2.0'}))


def counted(gateway: Running, ends: set[str]) -> Callable[[], bool]:
    return lambda: runs_told(gateway) == ends
