"""Dead letters over the wire and at a terminal: a job fails for good, an operator looks, has it run again, and throws away."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import orjson
import pytest

from gateway.products.jobs.dead_letters import service
from tests.e2e.batches import begin, line
from tests.e2e.batches import end_of as end_of_batch
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import QUICK, WEB, ask, end_of, new_job, policies, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, PATIENCE_S, Running, chat, get, post, until
from tests.e2e.test_jobs_cli import run

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
SECRET = "a-secret-of-the-prompt-77c1"


async def failed_jobs(gateway: Running, number: int) -> list[str]:
    """Has so many jobs fail for good; returns their ids."""
    ids = []
    body = {**chat(), "messages": [{"role": "user", "content": SECRET}]}
    for _ in range(number):
        gateway.script("e500")
        job = await take(gateway.url, new_job(body=body, max_attempts=1))
        assert (await end_of(gateway.url, job["id"]))["status"] == "failed"
        ids.append(job["id"])
    return ids


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A gateway with jobs, in which a failure of the provider is one of the job."""
    monkeypatch.setattr(service, "COUNT_S", 0.05)
    folder = policies(tmp_path, jobs=QUICK, retries={"attempts": 1})
    return await start(with_jobs(tmp_path, policies=folder, admin={"key": ADMIN_KEY}))


async def test_a_job_that_failed_is_looked_at_replayed_and_succeeds(
    gateway: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its prompt is shown only when it is asked for; the metrics tell of it and of its success."""
    where = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    (failed,) = await failed_jobs(gateway, 1)
    listed = await ask(gateway.url, get("/admin/dlq", ADMIN))
    (group,) = orjson.loads(listed.body)["groups"]
    (letter,) = group["samples"]
    shown = await ask(gateway.url, get(f"/admin/dlq/{letter['id']}", ADMIN))
    told = orjson.loads(shown.body)
    assert (group["class"], group["letters"], letter["job"], letter["state"]) == ("server_error", 1, failed, "dead")
    assert [(one["class"], one["target"]) for one in told["trail"]] == [("server_error", "main/gpt-4o")]
    assert SECRET.encode() not in listed.body + shown.body
    page = await ask(gateway.url, get(f"/admin/dlq?group={group['group']}&limit=1", ADMIN))
    assert orjson.loads(page.body)["data"] == [
        {**letter, "age_seconds": orjson.loads(page.body)["data"][0]["age_seconds"]}
    ]

    code, output, _ = await run(capsys, "dlq", "ls", *where)
    assert (code, output.split("\n")[1].split()[1:5]) == (0, ["call", "server_error", "gpt-4o", "1"])
    code, output, _ = await run(capsys, "dlq", "show", letter["id"], "--payload", *where)
    assert (code, SECRET in output, "main/gpt-4o" in output) == (0, True, True)
    code, output, _ = await run(capsys, "dlq", "stats", *where)
    assert (code, output.split("\n")[1].split()[:3]) == (0, ["call", "server_error", "1"])
    code, output, _ = await run(capsys, "dlq", "replay", "--dry-run", *where)
    assert (code, output.startswith("1 letter would run again; about $0.")) == (0, True)

    await until(lambda: 'gateway_dlq_depth{class="server_error",kind="call"} 1.0' in metrics_of(gateway))
    code, output, _ = await run(capsys, "dlq", "replay", "--group", group["group"], *where)
    replay = re.match(r"job_gw\w+", output)
    assert code == 0
    assert replay is not None
    async with asyncio.timeout(PATIENCE_S):
        while told["state"] in ("dead", "replaying"):
            await asyncio.sleep(0.02)
            told = orjson.loads((await ask(gateway.url, get(f"/admin/dlq/{letter['id']}", ADMIN))).body)
    assert told["state"] == "replayed_ok"
    again = await end_of(gateway.url, told["replay_job"])
    assert (again["status"], again["model"]) == ("succeeded", "gpt-4o")
    assert orjson.loads((await ask(gateway.url, get("/admin/dlq", ADMIN))).body) == {"depth": 0, "groups": []}
    assert 'gateway_dlq_replays_total{class="server_error",outcome="ok"} 1.0' in metrics_of(gateway)
    assert SECRET not in gateway.log.getvalue()


async def test_jobs_that_failed_are_tried_again_by_their_ids(
    gateway: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and what has not failed for good is refused with a reason; the command tells, and fails."""
    where = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    (failed,) = await failed_jobs(gateway, 1)
    code, output, _ = await run(capsys, "jobs", "retry", failed, *where)
    told = re.match(rf"{failed} runs again as (job_gw\w+); gateway dlq show job_gw\w+ shows how far it is\n$", output)
    assert code == 0
    assert told is not None, output
    async with asyncio.timeout(PATIENCE_S):  # the replay makes it
        while (await ask(gateway.url, get(f"/v1/jobs/{told[1]}", WEB))).status == 404:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.02)
    assert (await end_of(gateway.url, told[1]))["status"] == "succeeded"

    later = await take(gateway.url, new_job(delay="1h"))
    (bad,) = await failed_jobs(gateway, 1)
    assert (await run(capsys, "dlq", "purge", "--class", "server_error", "--yes", *where))[0] == 0
    code, output, _ = await run(capsys, "jobs", "retry", failed, later["id"], bad, "job_gw_unknown", told[1], *where)
    assert code == 1
    assert output.split("\n")[:-1] == [
        f"{failed} has been tried again with success, as {told[1]}",
        f"{later['id']} has not failed: it is scheduled",
        f"{bad} has failed by what it asked for (server_error), or its dead letter was purged: send it anew, mended",
        f"{told[1]} has been tried again with success, as {told[1]}",
        "job_gw_unknown is no job of this gateway's",
    ]


async def test_dead_lines_are_tried_again_by_the_id_of_their_batch(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as a job of its own; a batch without any is refused."""
    rules = {**QUICK, "attempts": 1, "dead_letters": {"lines": "transient"}}
    folder = policies(tmp_path, jobs=rules, retries={"attempts": 1})
    gateway = await start(with_jobs(tmp_path, policies=folder, admin={"key": ADMIN_KEY}))
    where = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    gateway.script("e500", "e500")
    async with gateway.sdk() as sdk:
        ended = await end_of_batch(sdk, (await begin(sdk, [line("a"), line("b"), line("c")])).id)
        other = (await end_of_batch(sdk, (await begin(sdk, [line("a")])).id)).id
    batch = ended.id
    assert ended.request_counts is not None
    assert ended.request_counts.failed == 2
    (group,) = orjson.loads((await ask(gateway.url, get("/admin/dlq", ADMIN))).body)["groups"]
    assert {letter["line"] for letter in group["samples"]} < {1, 2, 3}  # as in a batch's errors
    code, output, _ = await run(capsys, "jobs", "retry", batch, other, *where)
    assert code == 1
    assert output.startswith(f"{batch} 2 dead lines run again; gateway dlq show job_gw"), output
    assert f"\n{other} has not failed: it is succeeded\n" in output
    async with asyncio.timeout(PATIENCE_S):
        while orjson.loads((await ask(gateway.url, get("/admin/dlq", ADMIN))).body)["depth"]:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.02)
    assert gateway.upstream_calls() == 6


def metrics_of(gateway: Running) -> str:
    from prometheus_client import generate_latest

    return generate_latest(gateway.gateway.registry).decode()


async def test_letters_are_thrown_away_only_by_those_who_mean_it(
    gateway: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is meant has to be said, and that it is; what makes no sense is refused."""
    where = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    await failed_jobs(gateway, 2)
    for words, why in (
        (("purge", "--yes"), "purge what?"),
        (("purge", "--all"), "give --yes"),
        (("replay",), "replay what?"),
        (("replay", "--all", "--rate", "0"), "'rate' must be a number"),
        (("show", "dl_gwnonsense"), "no such dead letter"),
    ):
        code, _, errors = await run(capsys, "dlq", *words, *where)
        assert (code, why in errors) == (2, True), errors
    code, output, _ = await run(capsys, "dlq", "purge", "--class", "timeout", "--yes", *where)
    assert (code, output) == (0, "0 purged\n")
    code, output, _ = await run(capsys, "dlq", "purge", "--all", "--yes", *where)
    assert (code, output) == (0, "2 purged\n")
    code, output, _ = await run(capsys, "dlq", "ls", *where)
    assert (code, output) == (0, "no dead letters\n")


async def test_jobs_that_the_store_ends_are_counted_once(gateway: Running) -> None:
    """Cancelled before anybody began them, or past their deadlines."""
    job = await take(gateway.url, new_job(delay="1h"))
    for _ in range(2):
        await ask(gateway.url, post(f"/v1/jobs/{job['id']}/cancel", {}, WEB))
    at = time.time() + 0.2
    await take(gateway.url, new_job(run_at=at, deadline=at + 1e-6))

    def is_told(outcome: str) -> bool:
        return f'gateway_jobs_total{{kind="call",outcome="{outcome}"}} 1.0' in metrics_of(gateway)

    await until(lambda: is_told("cancelled") and is_told("expired"))
