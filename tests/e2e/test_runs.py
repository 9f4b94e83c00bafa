"""Runs over the wire: said by headers, shown to their tenant alone, told of, and the same over two gateways with a Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import end_of, with_jobs
from tests.e2e.harness import (
    ADMIN_KEY,
    KEYS,
    NIGHTLY_KEY,
    WEB_KEY,
    Response,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
)

WORKFLOWS = """
workflows:
  invoice: {tasks: [extract, check], slo: 99%, max_calls_per_run: 4}
"""
ID, IN_PATH = "2026-11-22/4711[3]", "2026-11-22%2F4711%5B3%5D"
WEB, NIGHTLY, OPERATOR = (f"authorization: Bearer {key}" for key in (WEB_KEY, NIGHTLY_KEY, ADMIN_KEY))


def declared(folder: Path, url: str) -> dict[str, Any]:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies" / "workflows.yaml").write_text(WORKFLOWS)
    return config_of(url, keys=KEYS, admin={"key": ADMIN_KEY}, policies=str(folder / "policies"))


async def exchange(gateway: Running, data: bytes) -> Response:
    async with connect(gateway.url) as peer:
        return await peer.exchange(data)


async def call(gateway: Running, task: str, *more: str, key: str = WEB, **body: Any) -> Response:
    names = f"x-gateway-run: {ID}", f"x-gateway-task: {task}", "x-gateway-workflow: invoice"
    return await exchange(gateway, post("/v1/chat/completions", chat(**body), *names, key, *more))


async def look(gateway: Running, path: str, key: str = WEB, method: str = "GET") -> tuple[int, Any]:
    told = await exchange(gateway, get(path, key, method=method))
    return told.status, orjson.loads(told.body) if told.body else None


async def test_a_run_is_followed_from_its_attempts_to_its_use(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(lambda url: declared(tmp_path, url))
    gateway.script("e503")
    assert (await call(gateway, "extract")).status == 200
    assert (await call(gateway, "check", "x-gateway-run-outcome: succeeded")).status == 200
    assert [one for one in gateway.received() if any("x-gateway" in name for name in one["headers"])] == []

    status, run = await look(gateway, f"/v1/runs/{IN_PATH}")
    assert status == 200
    assert (run["id"], run["outcome"], run["rescued"], run["is_told"]) == (ID, "succeeded", True, True)
    assert run["calls"] == {"all": 2, "bad": 0, "cached": 0}
    assert run["attempts"] == {"all": 3, "bad": 1}
    assert [(task["task"], task["ok"]) for task in run["tasks"]] == [("extract", True), ("check", True)]

    for method, path in (("GET", f"/v1/runs/{IN_PATH}"), ("GET", "/v1/runs/none"), ("DELETE", f"/v1/runs/{IN_PATH}")):
        status, foreign = await look(gateway, path, NIGHTLY, method)
        assert (status, foreign["error"]["code"]) == (404, "run_not_found")
    foreign_body = (await exchange(gateway, get(f"/v1/runs/{IN_PATH}", NIGHTLY))).body
    assert await look(gateway, f"/v1/runs/{IN_PATH}", method="DELETE") == (204, None)
    assert (await exchange(gateway, get(f"/v1/runs/{IN_PATH}", WEB))).body == foreign_body, "as if there never was one"


async def test_the_last_word_on_a_run_holds(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(lambda url: declared(tmp_path, url))
    await call(gateway, "extract")
    path = f"/v1/runs/{IN_PATH}/outcome"
    for word, seen in (
        ({"outcome": "succeeded", "usable": True, "value_usd": 3.2}, ("succeeded", True, 3.2)),
        ({"outcome": "succeeded", "usable": True, "value_usd": 3.2}, ("succeeded", True, 3.2)),
        ({"usable": False}, ("succeeded", False, 3.2)),
        ({"outcome": "failed"}, ("failed", False, 3.2)),
    ):
        told = orjson.loads((await exchange(gateway, post(path, word, WEB))).body)
        assert (told["outcome"], told["usable"], told["value_usd"]) == seen
    for bad in ({}, {"outcome": "done"}, {"usable": 1}, {"value_usd": "3"}, {"outcom": "failed"}):
        assert (await exchange(gateway, post(path, bad, WEB))).status == 400
    assert (await exchange(gateway, post(path, {"usable": True}, NIGHTLY))).status == 404

    _, page = await look(gateway, "/v1/runs?limit=1")
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([ID], False)
    assert (await look(gateway, "/v1/runs", NIGHTLY))[1]["data"] == []
    _, seen_by_operators = await look(gateway, "/admin/workflows", OPERATOR)
    invoice = seen_by_operators["workflows"]["invoice"]
    assert invoice["line"].startswith("attempts 100.0 % → calls 100.0 % → runs 0.0 % → usable 0.0 %; $")
    assert (invoice["slo"], invoice["meets_slo"]) == (0.99, False)
    _, runs = await look(gateway, "/admin/workflows/invoice/runs?outcome=failed", OPERATOR)
    assert [one["id"] for one in runs["runs"]] == [ID]
    assert (await look(gateway, f"/admin/runs/{IN_PATH}", OPERATOR))[1]["tenant"] == "web"


async def test_the_fuse_blows_where_a_run_goes_on_for_ever(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(lambda url: declared(tmp_path, url))
    seen = [await call(gateway, "extract") for _ in range(6)]
    assert [one.status for one in seen] == [200] * 4 + [429] * 2
    assert seen[-1].error["code"] == "run_budget_exceeded"
    assert seen[-1].header("x-should-retry") == "false"
    assert gateway.upstream_calls() == 4
    named = await exchange(gateway, post("/v1/chat/completions", chat(), "x-gateway-run: a b", WEB))
    assert (named.status, named.error["param"]) == (400, "x-gateway-run")


@pytest.mark.parametrize("said", ["metadata", "baggage", "key"])
async def test_a_call_may_say_it_otherwise(start: StartGateway, tmp_path: Path, said: str) -> None:
    def config(url: str) -> dict[str, Any]:
        found = declared(tmp_path, url)
        return {**found, "keys": [{**KEYS[0], "workflow": "invoice"}]} if said == "key" else found

    gateway = await start(config)
    body, header = chat(), "baggage: user=1"
    if said == "metadata":
        body["metadata"] = {"workflow": "invoice", "run": "r", "task": "extract"}
    else:
        header = "baggage: x-gateway-workflow=invoice,user=1, x-gateway-run=r;p=1,x-gateway-task=extract"
    assert (await exchange(gateway, post("/v1/chat/completions", body, header, WEB))).status == 200
    _, run = await look(gateway, "/v1/runs/r")
    assert (run["workflow"], run["tasks"][0]["task"]) == ("invoice", "extract")
    (sent,) = gateway.received()
    assert "x-gateway" not in str(sent["headers"])
    assert dict(sent["headers"]).get("baggage", "user=1") == "user=1"
    await gateway.stop()
    (record,) = (one for one in gateway.records if one["event"] == "call")
    assert (record["workflow"], record["run"], record["task"]) == ("invoice", "r", "extract")


async def test_a_job_is_a_part_of_the_run_that_its_caller_named(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(with_jobs(tmp_path))
    for path, body, task in (
        ("/v1/chat/completions", chat(), "x-gateway-task: letter"),
        ("/v1/jobs", {"endpoint": "/v1/chat/completions", "body": chat()}, "x-gateway-task: letter"),
    ):
        names = "x-gateway-run: by-night", task
        taken = await exchange(gateway, post(path, body, WEB, *names, "prefer: respond-async"))
        assert taken.status == 202
        await end_of(gateway.url, orjson.loads(taken.body)["id"])
    _, run = await look(gateway, "/v1/runs/by-night")
    assert [(task["task"], task["calls"]["all"]) for task in run["tasks"]] == [("letter", 2)]
