"""`gateway batch run` where no gateway runs: the command is one itself, as long as it takes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from gateway.products.batches import http
from tests.e2e.batches import asked_of, input_of, line, names
from tests.e2e.durable import with_jobs
from tests.e2e.harness import PATIENCE_S, WEB_KEY, to_yaml, until

IN_FLIGHT = 4

pytestmark = pytest.mark.usefixtures("_alone")


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens where a gateway would: port 1 is never given away."""
    monkeypatch.setenv("GATEWAY_PORT", "1")
    monkeypatch.setattr(http, "POLL_AFTER_MS", 20)


@pytest.fixture
async def provider() -> AsyncIterator[EmulatorServer]:
    """A provider that outlives the commands."""
    server = EmulatorServer(EmulatorConfig())
    await server.start()
    yield server
    await server.stop()


def config(folder: Path, provider: EmulatorServer, **jobs: Any) -> str:
    """The path of a config with jobs in a file of this folder."""
    path = folder / "config.yaml"
    models = {"gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "max_concurrency": IN_FLIGHT}]}}
    path.write_text(to_yaml(with_jobs(folder, jobs=jobs, models=models)(provider.url)))
    return str(path)


def written(folder: Path, number: int) -> Path:
    path = folder / "night.jsonl"
    path.write_bytes(input_of(map(line, names(number))))
    return path


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    async with asyncio.timeout(PATIENCE_S):
        code = await asyncio.to_thread(main, ["batch", "run", *arguments, "--api-key", WEB_KEY])
    return code, *capsys.readouterr()


async def test_a_batch_needs_no_gateway(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, provider: EmulatorServer
) -> None:
    """The answers are there, and nothing is left running: the next command opens the jobs file again."""
    path = written(tmp_path, 20)
    for output in ("one.jsonl", "two.jsonl"):
        place = tmp_path / output
        code, said, errors = await run(
            capsys, str(path), "--config", config(tmp_path, provider), "--output", str(place)
        )
        assert (code, len(place.read_bytes().splitlines())) == (0, 20), errors
        assert "20 of 20 lines answered" in said
        assert "this process is one, by" in errors


async def test_who_interrupts_it_goes_on_by_the_batchs_id(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, provider: EmulatorServer
) -> None:
    """What was answered is not asked again; what was on its way is."""
    path, where = written(tmp_path, 40), ("--config", config(tmp_path, provider))
    await provider.configure(ttft_s=0.05)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "batch", "run", str(path)),
        *(*where, "--api-key", WEB_KEY),
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: provider.emulator.stats.total >= 8)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    last = errors.decode().splitlines()[-1]
    batch_id = last.split()[1]
    code, said, errors_after = await run(capsys, batch_id, *where, "--output", str(tmp_path / "rest.jsonl"))

    assert process.returncode == 130
    assert "Traceback" not in errors.decode()
    assert last.startswith(
        f"gateway: {batch_id} is kept in the jobs file; 'gateway batch run {batch_id} --config {where[1]}' goes on with it"
    )
    assert (code, errors_after.count("Traceback")) == (0, 0), errors_after
    assert "40 of 40 lines answered" in said
    assert len((tmp_path / "rest.jsonl").read_bytes().splitlines()) == 40
    asked = asked_of(provider.emulator.recorder)
    assert sum(asked.values()) <= 40 + IN_FLIGHT, "what was answered was asked again"


async def test_without_a_config_there_is_none_to_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The sentence says what to name."""
    code, _, errors = await run(capsys, str(written(tmp_path, 1)), "--config", str(tmp_path / "none.yaml"))

    assert code == 2
    assert "none.yaml to run one by; name a gateway by --url, or a config by --config" in errors


async def test_a_config_that_is_wrong_is_told_by_its_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As by every other command."""
    (tmp_path / "config.yaml").write_text("providers: {}\nmodells: {}\n")
    code, _, errors = await run(capsys, str(written(tmp_path, 1)), "--config", str(tmp_path / "config.yaml"))

    assert code == 2
    assert "config.yaml:2: modells: " in errors


async def test_an_edge_alone_runs_no_batch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, provider: EmulatorServer
) -> None:
    """It would wait for ever."""
    where = config(tmp_path, provider, work=False)
    code, _, errors = await run(capsys, str(written(tmp_path, 1)), "--config", where)

    assert code == 2
    assert "jobs.work: false" in errors
