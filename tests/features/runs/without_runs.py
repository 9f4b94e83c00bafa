"""One life of a gateway on a jobs file, with runs or without: `python -m tests.features.runs.without_runs FOLDER [without]`.

It serves a step, a job that names its run, and a pipeline whose items are a batch; prints, as JSON, how many calls the provider
got for the step, whether runs are shown, and how the pipeline has ended.
"""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import orjson

from tests.support.without import Blocked, config_of

PACKAGE = "gateway.features.runs"
PIPELINE = {
    "input": {"type": "object"},
    "steps": {
        "one": {"call": {"model": "m", "messages": [{"role": "user", "content": "{{ input.word }}"}]}},
        "each": {
            "for_each": "input.items",
            "call": {"model": "m", "messages": [{"role": "user", "content": "{{ item }}"}]},
        },
    },
    "output": "steps.one.text",
}
STEP = {"x-gateway-workflow": "w", "x-gateway-run": "r", "x-gateway-step": "s"}


async def live(folder: Path) -> dict[str, object]:
    """Returns what the life showed."""
    from httpx import AsyncClient  # once the package is blocked, as all below

    from gateway.app import Gateway
    from gateway.emulator.app import EmulatorServer
    from gateway.settings import Settings

    provider = EmulatorServer()
    await provider.start()
    (folder / "policies" / "pipelines").mkdir(parents=True, exist_ok=True)
    (folder / "policies" / "pipelines" / "p.yaml").write_bytes(orjson.dumps(PIPELINE))  # JSON is YAML
    file = {"jobs": {"store": f"sqlite:///{folder}/jobs.db"}, "policies": "policies"}
    path = folder / "config.yaml"
    path.write_bytes(orjson.dumps(config_of(provider.base_url, file=file)))
    gateway = Gateway(Settings(config=path, host="127.0.0.1", port=0), {}, log_stream=io.StringIO())
    await gateway.start()
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": "Bearer web-key-0123456789abcdef"}
    async with AsyncClient(base_url=gateway.url, headers=headers, trust_env=False, timeout=60) as client:
        step = await client.post("/v1/chat/completions", json=ask, headers=STEP)
        assert step.status_code == 200, step.text
        calls = provider.emulator.stats.total
        wanted = {**STEP, "prefer": "respond-async, wait=30"}
        del wanted["x-gateway-step"]
        job = await client.post("/v1/chat/completions", json=ask, headers=wanted)
        assert job.status_code == 200, job.text
        about = orjson.dumps({"word": "Hi", "items": ["a", "b"]}).decode()
        of_pipeline = {"model": "pipelines/p", "messages": [{"role": "user", "content": about}]}
        start = {"endpoint": "/v1/chat/completions", "body": of_pipeline}
        accepted = await client.post("/v1/jobs", json=start, headers={"x-gateway-run": "r"})
        assert accepted.status_code == 202, accepted.text
        url, shown = f"/v1/jobs/{accepted.json()['id']}", accepted.json()
        async with asyncio.timeout(60):
            while shown["status"] not in ("succeeded", "failed"):
                await asyncio.sleep(0.05)
                shown = (await client.get(url)).json()
        runs = await client.get("/v1/runs")
    await gateway.stop()
    await provider.stop()
    return {"calls": calls, "runs": runs.status_code, "pipeline": shown["status"]}


if __name__ == "__main__":
    if "without" in sys.argv[2:]:
        sys.meta_path.insert(0, Blocked(PACKAGE))
    sys.stdout.write(orjson.dumps(asyncio.run(live(Path(sys.argv[1])))).decode())
