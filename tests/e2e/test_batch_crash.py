"""Durable work across kill -9 of the gateway's process: every line has one result, every accepted job one answer."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from collections import Counter
from pathlib import Path

import orjson
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.batch_kills import UNEVEN, run_through_kills, sdk_of
from tests.e2e.batches import asked_of, begin, check_end, end_of, line, names
from tests.e2e.durable import WEB, ask, new_job, result_of, with_jobs
from tests.e2e.harness import PATIENCE_S, Response, chat, get, post, until
from tests.e2e.lives import Life, life
from tests.e2e.replaying import assert_sound

LINES, KILLS = 300, 4
LIVES, CALLERS = 3, 8


async def test_a_batch_survives_kill_9(tmp_path: Path) -> None:
    """No line lost, none doubled; nothing whose result was kept is paid for again, and few lines have none at a kill."""
    found = await run_through_kills(tmp_path, names(LINES), KILLS, seed=11)

    assert found.files is not None
    assert found.files.errors == []
    assert "Traceback" not in found.said
    assert 0 < found.extra <= KILLS * 64, found.sentence()  # four chunks of sixteen lines


async def test_what_was_said_to_a_batch_survives_kill_9(tmp_path: Path) -> None:
    """It was made, and the gateway died: it runs. It was cancelled, and the gateway died: it stays so, whole and for good."""
    provider = EmulatorServer(UNEVEN)
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path)(provider.base_url))))
    custom_ids = names(150)
    async with life(config) as served, sdk_of(served) as sdk:
        made = await begin(sdk, map(line, custom_ids))
        served.kill()
        await served.ends()
    async with life(config) as served, sdk_of(served) as sdk:
        await until(lambda: provider.emulator.stats.statuses[200] >= 10)
        cancelled = await sdk.batches.cancel(made.id)
        served.kill()
        await served.ends()
    async with life(config) as served, sdk_of(served) as sdk:
        seen = await end_of(sdk, made.id)
        served.kill()
        await served.ends()
    async with life(config) as served, sdk_of(served) as sdk:
        later = await sdk.batches.retrieve(made.id)
        files = await check_end(sdk, later, custom_ids)
    asked = asked_of(provider.emulator.recorder)
    await provider.stop()

    assert cancelled.status == "cancelling"
    assert seen.status == "cancelled"
    assert later == seen
    assert files.codes() == {"batch_cancelled": len(custom_ids) - len(files.output)}
    assert len(files.output) >= 1
    assert set(asked) >= {one["custom_id"] for one in files.output}


async def test_what_was_accepted_survives_kill_9(tmp_path: Path) -> None:
    """Each job that was acknowledged has one answer in the end; one that was not is either there or not, and whole."""
    provider, rng = EmulatorServer(UNEVEN), random.Random(5)
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path)(provider.base_url))))
    accepted: dict[str, str] = {}
    earlier: list[str] = []
    for number in range(LIVES):
        async with life(config) as served:
            for job_id in earlier:  # none dies in each life: it would run alone, a second each, and be given up
                await result_of(served.url, job_id)
            callers = [asyncio.ensure_future(_give(served, f"{number}-{one}", accepted)) for one in range(CALLERS)]
            enough = len(accepted) + rng.randint(1, 5 * CALLERS)
            await until(lambda: len(accepted) >= enough)  # noqa: B023 - it is awaited here
            earlier = list(accepted)
            served.kill()
            assert await served.ends() == -signal.SIGKILL
            await asyncio.gather(*callers)
        assert_sound(tmp_path / "jobs.db")
    async with life(config) as served:
        answers = {job_id: await result_of(served.url, job_id) for job_id in accepted}
        listed = await _listed(served)
    await provider.stop()

    assert len(accepted) > 20
    for job_id, prompt in accepted.items():
        assert answers[job_id].status == 200
        assert prompt.encode() in answers[job_id].body
    assert accepted.keys() <= listed.keys()
    assert len(listed) - len(accepted) <= LIVES * CALLERS
    assert max(Counter(asked_of(provider.emulator.recorder)).values()) <= 1 + LIVES


async def test_a_file_that_cannot_grow_costs_no_call_and_no_job(tmp_path: Path) -> None:
    """As a full disk: jobs are refused, truly, calls go on, `/readyz` says so; with room it works again by itself."""
    provider = EmulatorServer(EmulatorConfig(recorded_requests=1000))
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path)(provider.base_url))))
    answers: dict[str, Response] = {}

    async def give(prompt: str) -> Response:
        content = prompt + " " * 200_000
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": content}]}
        answers[content] = await ask(served.url, new_job(body=body))
        return answers[content]

    async with life(config) as served:
        assert (await give("before")).status == 202
        full = (tmp_path / "jobs.db-wal").stat().st_size
        _, hard = resource.prlimit(served.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (full, hard))
        number = 0
        while (refused := await give(f"full {number}")).status == 202:  # the log may have room in its middle
            number += 1
        plain = await ask(served.url, post("/v1/chat/completions", chat(), WEB))
        ready = await ask(served.url, get("/readyz"))
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (hard, hard))
        async with asyncio.timeout(PATIENCE_S):
            while (await give("with room")).status != 202:  # noqa: ASYNC110 - a poll over the wire
                await asyncio.sleep(0.1)
        later = await ask(served.url, get("/readyz"))
        for answer in answers.values():
            if answer.status == 202:
                assert (await result_of(served.url, orjson.loads(answer.body)["id"])).status == 200
    await provider.stop()

    assert (refused.status, refused.error["code"]) == (503, "jobs_unavailable")
    assert plain.status == ready.status == 200
    assert orjson.loads(ready.body)["jobs"] == "unavailable"
    assert orjson.loads(later.body)["jobs"] == "on disk"
    ran = asked_of(provider.emulator.recorder)
    accepted = [content for content, answer in answers.items() if answer.status == 202]
    assert ran == Counter([*accepted, "hello there"])


async def _give(served: Life, caller: str, accepted: dict[str, str]) -> None:
    """Give one job after the other until the gateway is gone; those that were acknowledged are noted, with their prompts."""
    for number in range(10_000):
        prompt = f"prompt {caller}-{number}"
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": prompt}]}
        try:
            answer = await ask(served.url, new_job(body=body))
        except (OSError, EOFError):
            return
        assert answer.status == 202
        accepted[orjson.loads(answer.body)["id"]] = prompt


async def _listed(served: Life) -> dict[str, str]:
    found: dict[str, str] = {}
    after, has_more = "", True
    while has_more:
        page = orjson.loads((await ask(served.url, get(f"/v1/jobs?limit=100{after}", WEB))).body)
        found |= {one["id"]: one["status"] for one in page["data"]}
        after, has_more = f"&after={page['last_id']}", page["has_more"]
    return found
