"""`gateway webhooks` at a terminal, against a real gateway and a real receiver."""

from __future__ import annotations

import base64
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import new_job, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, Running, until
from tests.e2e.test_jobs_cli import run
from tests.e2e.test_webhooks import NEW_TEXT, parts, telling, types
from tests.receiver import OK, receiver


def operator(gateway: Running) -> tuple[str, ...]:
    """Where, and by whose leave."""
    return ("--url", gateway.url, "--admin-key", ADMIN_KEY)


async def test_webhooks_are_shown_tested_switched_and_told_again(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name; the official SDK verifies the test event, too."""
    async with receiver(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n") as there:
        gateway = await start(with_jobs(tmp_path, webhooks=telling(there), admin={"key": ADMIN_KEY}))
        crm = ("crm", *operator(gateway))
        code, output, _ = await run(capsys, "webhooks", "test", *crm)
        assert (code, output.startswith("crm answered 410 (gone, ")) == (1, True)
        there.answer = OK
        code, output, _ = await run(capsys, "webhooks", "test", *crm)
        assert (code, output.startswith("crm answered 204 (ok, ")) == (0, True)
        headers, body = parts(there.requests[-1])
        event = openai.OpenAI(api_key="unused", webhook_secret=NEW_TEXT).webhooks.unwrap(body, headers)
        assert str(event.type) == "test"

        code, output, _ = await run(capsys, "webhooks", "disable", *crm)
        assert (code, output) == (0, "crm is disabled\n")
        job = await take(gateway.url, new_job())
        code, output, _ = await run(capsys, "webhooks", "enable", *crm)
        assert (code, output) == (0, "crm is ok\n")
        await until(lambda: types(there).get(job["id"]) == "job.succeeded")
        code, output, _ = await run(capsys, "webhooks", "ls", *operator(gateway))
        assert output.split("\n")[1].split()[:5] == ["crm", "ok", "0", "0", "0"]
        assert output.rstrip().endswith(there.url.removesuffix("/hooks?t=1"))

        told = len(there.requests)
        code, output, _ = await run(capsys, "webhooks", "redeliver", "crm", job["id"], *operator(gateway))
        assert (code, output) == (0, "1 redelivered to crm\n")
        await until(lambda: len(there.requests) == told + 1)
        assert parts(there.requests[-1])[0]["webhook-id"] == parts(there.requests[-2])[0]["webhook-id"]
        code, output, _ = await run(capsys, "webhooks", "redeliver", "crm", "--since", "24h", *operator(gateway))
        assert (code, output) == (0, "0 redelivered to crm\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("redeliver", "crm"), "redeliver what?"),
        (("redeliver", "cmr", "--since", "1h"), "'cmr' is no webhook; there are: crm, (requests)."),
        (("redeliver", "crm", "nonsense"), "The field 'id' must be that of a job"),
        (("test", "(requests)"), "URLs of requests are not tested or switched"),
    ],
)
async def test_what_makes_no_sense_is_said(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    """In one sentence, with exit code 2."""
    async with receiver(OK) as there:
        gateway = await start(with_jobs(tmp_path, webhooks=telling(there), admin={"key": ADMIN_KEY}))
        code, output, errors = await run(capsys, "webhooks", *words, *operator(gateway))

    assert (code, output) == (2, "")
    assert why in errors


async def test_a_new_secret_is_long_and_comes_with_its_way_in(capsys: pytest.CaptureFixture[str]) -> None:
    """Another one each time; no gateway is asked."""
    secrets = set()
    for _ in range(3):
        code, output, _ = await run(capsys, "webhooks", "rotate", "crm")
        assert code == 0
        assert 'webhooks: {crm: {…, secrets: ["${HOOK_NEW}", "${HOOK_OLD}"]}}' in output
        secrets.add(output.split("\n")[0])
    assert len(secrets) == 3
    assert {len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in secrets} == {32}
