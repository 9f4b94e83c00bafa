"""The gateway as a process: how it starts, is told things by signals, and ends. Real processes, real signals.

Those whose start and last end are of interest begin with an interpreter of their own, the others as a fork.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import PATIENCE_S, chat, config_of, connect, get, post
from tests.e2e.lives import life

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
STREAM = post(CHAT, orjson.dumps(chat(stream=True)))


class Served:
    """A `gateway` process whose standard error is read line by line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[str] = []
        self.url = ""

    async def says(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.process.stderr.readline()).decode():
                self.said.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"it never said {pattern!r}, but: {''.join(self.said)}")

    async def ends(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, standard output, all of standard error."""
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await self.process.communicate()
        code = self.process.returncode
        assert code is not None
        return code, output.decode(), "".join(self.said) + errors.decode()


@asynccontextmanager
async def running(*arguments: str, **environ: str) -> AsyncIterator[Served]:
    """`python -m gateway …`, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments, stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, **environ}
    )
    try:
        yield Served(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def serving(config: Path, *arguments: str, **environ: str) -> AsyncIterator[Served]:
    """`gateway serve` on a free port, once it listens."""
    async with running("serve", "--config", str(config), "--port", "0", *arguments, **environ) as served:
        served.url = (await served.says(r"listens on (http://[^,\s]+)"))[1]
        yield served


class Provider:
    """An emulator whose streams stop after their first token until they are let go."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.server = EmulatorServer(EmulatorConfig(tokens_per_second=10.0), sleep=self._sleep)

    async def _sleep(self, _seconds: float) -> None:
        await self.may_go_on.wait()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    await provider.server.start()
    yield provider
    await provider.server.stop()


def write(folder: Path, base_url: str, **sections: Any) -> Path:
    """A config file."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config_of(base_url, **sections)))
    return path


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace a text in a file."""
    path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def config(tmp_path: Path, provider: Provider) -> Path:
    return write(tmp_path, provider.server.base_url)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a forked process writes its call log."""
    return tmp_path / "output"


def written(output: Path) -> str:
    """All of it."""
    return output.read_text()


async def status_of(url: str, request: bytes) -> int:
    """The status of a request on a connection of its own."""
    async with connect(url) as peer:
        return (await peer.exchange(request)).status


async def test_it_serves_and_ends_with_0_on_sigterm(config: Path, provider: Provider) -> None:
    """One JSON line per call on standard output, its own words on standard error."""
    provider.may_go_on.set()
    async with serving(config) as served:
        assert await status_of(served.url, post()) == 200
        assert await status_of(served.url, post(CHAT, b"{")) == 400
        served.process.send_signal(signal.SIGTERM)
        code, output, errors = await served.ends()

    assert code == 0
    lines = [orjson.loads(line) for line in output.splitlines()]
    assert [(line["event"], line["status"]) for line in lines] == [("call", 200), ("refused", 400)]
    assert "Traceback" not in errors


async def test_the_example_config_answers_without_any_key() -> None:
    """As `make run` does on a fresh clone."""
    async with serving(ROOT / "config.example.yaml", OPENAI_API_KEY="") as served:
        assert await status_of(served.url, post()) == 200
        assert await status_of(served.url, get("/v1/models")) == 200
        served.process.send_signal(signal.SIGINT)
        code, _, errors = await served.ends()

    assert code == 0
    assert "made up" in errors


async def test_the_log_may_be_text(config: Path, provider: Provider, output: Path) -> None:
    """For people."""
    provider.may_go_on.set()
    async with life(config, "--log-format", "text", output=output) as served:
        assert await status_of(served.url, post()) == 200
        served.tell(signal.SIGTERM)
        await served.ends()

    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} 200 ok .*model=gpt-4o", written(output))


async def test_sigterm_lets_a_stream_finish_and_takes_nothing_new(
    config: Path, provider: Provider, output: Path
) -> None:
    """Not ready, no new calls, liveness stays; the stream comes to its end; exit code 0."""
    async with life(config, output=output) as served, connect(served.url) as streaming, connect(served.url) as kept:
        assert (await kept.exchange(get("/readyz"))).status == 200
        streaming.send(STREAM)
        await streaming.reader.readuntil(b"\r\n\r\n")
        served.tell(signal.SIGTERM)
        await served.says("stopping")

        ready, live, refused = [await status_of(served.url, one) for one in (get("/readyz"), get("/livez"), post())]
        on_kept = await kept.exchange(post())
        provider.may_go_on.set()
        rest = await streaming.rest()
        code = await served.ends()

    assert (ready, live, refused, on_kept.status) == (503, 200, 503, 503)
    assert b"data: [DONE]\n\n" in rest
    assert code == 0
    assert "Traceback" not in served.said
    assert [orjson.loads(line).get("outcome") for line in written(output).splitlines()].count("ok") == 1


async def test_a_second_signal_ends_it_at_once(config: Path) -> None:
    """The stream that was waited for ends with an error event, never as if it were complete; exit code 1."""
    async with serving(config) as served, connect(served.url) as streaming:
        streaming.send(STREAM)
        await streaming.reader.readuntil(b"\r\n\r\n")
        served.process.terminate()
        await served.says("stopping")
        served.process.terminate()
        rest = await streaming.rest()
        code, _, errors = await served.ends()

    assert code == 1
    assert b'"code":"shutting_down"' in rest
    assert b"[DONE]" not in rest
    assert "Traceback" not in errors


async def test_the_grace_has_an_end(tmp_path: Path, provider: Provider) -> None:
    """A stream that is still running then gets an error event, a call without an answer a 503; exit code 0."""
    config = write(tmp_path, provider.server.base_url, server={"grace": "100ms"})
    async with life(config) as served, connect(served.url) as streaming, connect(served.url) as waiting:
        streaming.send(STREAM)
        await streaming.reader.readuntil(b"\r\n\r\n")
        waiting.send(post())
        while provider.server.emulator.stats.active < 2:  # noqa: ASYNC110 - a counter sets no event
            await asyncio.sleep(0.001)
        served.tell(signal.SIGTERM)
        rest = await streaming.rest()
        refused = await waiting.response()
        code = await served.ends()

    assert code == 0
    assert b'"code":"shutting_down"' in rest
    assert (refused.status, refused.error["code"]) == (503, "shutting_down")
    assert "Traceback" not in served.said


async def test_sighup_loads_the_config_again(config: Path, provider: Provider) -> None:
    """A good one takes over, a bad one is told with its line; the process goes on."""
    provider.may_go_on.set()
    async with life(config) as served:
        rewrite(config, "gpt-4o-mini", "gpt-4.1")
        served.tell(signal.SIGHUP)
        await served.says("config version 2 is in force")
        rewrite(config, "models:", "nonsense: 1\nmodels:")
        served.tell(signal.SIGHUP)
        await served.says("config not reloaded")
        await served.says("nonsense: unknown field")
        assert re.search(r"config\.yaml:\d+: nonsense: unknown field", served.said)
        assert await status_of(served.url, post()) == 200
        served.tell(signal.SIGTERM)
        assert await served.ends() == 0


async def test_a_port_in_use_is_one_sentence(config: Path, output: Path) -> None:
    """Exit code 1, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with life(config, "--port", str(port), words="cannot listen", output=output) as served:
            code = await served.ends()

    assert (code, written(output)) == (1, "")
    owner, _, remedy = served.said.partition("; choose another port: --port, GATEWAY_PORT or server.port")
    assert owner.startswith(f"gateway: cannot listen on 127.0.0.1:{port}: address already in use by ")
    assert f" (pid {os.getpid()}, in " in owner
    assert remedy
    assert len(served.said.splitlines()) == 1


async def test_a_reader_of_the_log_that_left_stops_nothing(config: Path, provider: Provider) -> None:
    """Calls matter more than their log."""
    provider.may_go_on.set()
    async with life(config, before=write_to_nobody) as served:
        for _ in range(3):
            assert await status_of(served.url, post()) == 200
        served.tell(signal.SIGTERM)
        assert await served.ends() == 0

    assert "Traceback" not in served.said


def write_to_nobody() -> None:
    """As behind a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


async def test_the_emulator_is_a_command_of_its_own() -> None:
    """It says where it listens, answers as it was told to, and ends with 0."""
    async with running("emulate", "--port", "0", "--models", "a,b", "--fault", "e500=1") as served:
        url = (await served.says(r"base_url (http://\S+)/v1"))[1]
        assert await status_of(url, get("/v1/models/a")) == 200
        assert await status_of(url, post(CHAT, orjson.dumps(chat("a")))) == 500
        assert await status_of(url, post(CHAT, orjson.dumps(chat("c")))) == 404
        served.process.terminate()
        code, _, errors = await served.ends()

    assert code == 0
    assert "Traceback" not in errors


EARLY = """
import os, signal, sys
import gateway.cli.main as cli
print([name for name in ("pydantic", "asyncio", "uvloop") if name in sys.modules])
load = cli.import_module
def loads(name):
    os.kill(os.getpid(), getattr(signal, os.environ["MET"]))
    print("goes on")
    return load(name)
cli.import_module = loads
sys.exit(cli.main())
"""


@pytest.mark.parametrize(("name", "code", "said"), [("SIGHUP", 2, "[]\ngoes on\n"), ("SIGINT", 130, "[]\n")])
async def test_a_signal_while_the_process_loads_is_no_accident(tmp_path: Path, name: str, code: int, said: str) -> None:
    """SIGHUP asks for a config that is about to be read (there is none here), Ctrl-C ends without a traceback."""
    arguments = ("serve", "--config", str(tmp_path / "none.yaml"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", EARLY, *arguments), stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, "MET": name}
    )
    got, output, errors = await Served(process).ends()

    assert (got, output) == (code, said)
    assert "Traceback" not in errors
