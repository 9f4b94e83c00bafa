"""Webhooks across kill -9 of the gateway's process: the end of every accepted job is told, under one id each."""

from __future__ import annotations

from pathlib import Path

import orjson
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.durable import new_job, take, with_jobs
from tests.e2e.harness import until
from tests.e2e.lives import life
from tests.receiver import OK, receiver

KILLS, JOBS = 3, 12
"""Of each life so many jobs."""


async def test_every_end_is_told_through_kills(tmp_path: Path) -> None:
    """The receiver answers none of the attempts of a life before it is killed, or some of them; then all that comes."""
    provider = EmulatorServer(EmulatorConfig(ttft_s=0.02, jitter=0.5, output_tokens=2))
    await provider.start()
    config, accepted = tmp_path / "config.yaml", set[str]()
    async with receiver(None) as there:
        hook = {"url": there.url, "secrets": ["the secret of this receiver alone"]}
        config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path, webhooks={"crm": hook})(provider.base_url))))
        for number in range(KILLS):
            async with life(config) as served:
                seen = len(there.requests)
                accepted |= {(await take(served.url, new_job()))["id"] for _ in range(JOBS)}
                there.answer = OK if number % 2 else None
                await until(lambda seen=seen: len(there.requests) > seen + 2)  # type: ignore[misc]  # a default of its own
                served.kill()
                await served.ends()
        there.answer = OK
        async with life(config):
            await until(lambda: set(_told(there.requests)) == accepted)
    await provider.stop()

    assert all(len(ids) == 1 for ids in _told(there.requests).values())


def _told(requests: list[bytes]) -> dict[str, set[bytes]]:
    """By job that was told of, the ids under which it was."""
    told: dict[str, set[bytes]] = {}
    for request in requests:
        head, _, body = request.partition(b"\r\n\r\n")
        message = head.lower().partition(b"webhook-id: ")[2].partition(b"\r\n")[0]
        told.setdefault(orjson.loads(body)["data"]["id"], set()).add(message)
    return told
