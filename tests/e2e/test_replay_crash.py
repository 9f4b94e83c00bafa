"""What is promised to those who repeat a key, across the ends of a process: kill -9, signals, a disk that is full."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import connect, until
from tests.e2e.lives import life
from tests.e2e.replaying import DONE, Ledger, Question, ask, assert_sound, check, is_replayed, questions
from tests.e2e.test_process import Provider, write

UNEVEN = EmulatorConfig(ttft_s=0.05, tokens_per_second=400.0, jitter=0.6)
"""A few tenths of a second for an answer, each its own."""
STREAM = Question("a-stream", "asked-stream", stream=True)
WHOLE = Question("a-whole", "asked-whole", stream=False)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """Answers begin, and end when they may."""
    provider = Provider()
    await provider.server.start()
    yield provider
    await provider.server.stop()


def on_sqlite(folder: Path, server: EmulatorServer, **server_options: str) -> Path:
    """A config whose state is a file."""
    sections = {"server": server_options} if server_options else {}
    return write(folder, server.base_url, state=f"sqlite:///{folder}/state.db", **sections)


def times(provider: Provider, question: Question) -> int:
    """How often the provider was asked."""
    return provider.server.emulator.stats.models[question.model]


async def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """Three times at a random moment: a client that has read the last byte gets the same again, the others get an answer."""
    provider = EmulatorServer(UNEVEN)
    await provider.start()
    config, ledger = on_sqlite(tmp_path, provider), Ledger(provider.emulator.stats, seed=5)

    for _life in range(3):
        async with life(config) as served:
            await ledger.reckon(served.url)
            await ledger.live(served.url, 24, served.kill)
            assert await served.ends() == -signal.SIGKILL
        assert_sound(tmp_path / "state.db")
    async with life(config) as served:
        await ledger.reckon(served.url)
        assert "Traceback" not in served.said
    await provider.stop()

    assert ledger.ran_again > 0
    assert ledger.replayed > 50


async def test_what_was_interrupted_runs_again(tmp_path: Path, provider: Provider) -> None:
    """Whoever ran it is dead: its key is free at once, and one execution serves all who come then."""
    config, both = on_sqlite(tmp_path, provider.server), (STREAM, WHOLE)
    async with life(config) as served, connect(served.url) as one, connect(served.url) as other:
        one.send(STREAM.request())
        other.send(WHOLE.request())
        await until(lambda: all(times(provider, question) == 1 for question in both))
        await one.reader.readuntil(b"\n\n")
        served.kill()
        assert await served.ends() == -signal.SIGKILL
    async with life(config) as served:
        asking = [asyncio.ensure_future(ask(served.url, question)) for question in both * 3]
        await until(lambda: all(times(provider, question) == 2 for question in both))
        provider.may_go_on.set()
        answers = await asyncio.gather(*asking)
        later = [await ask(served.url, question) for question in both]

    for number, question in enumerate(both):
        check(question, [*answers[number::2], later[number]])
        assert is_replayed(later[number])
        assert times(provider, question) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_going_down_in_the_middle_of_flights(tmp_path: Path, provider: Provider, number: signal.Signals) -> None:
    """All who wait for one answer are told why there is none, within the grace; what was done before is there afterwards."""
    config, done = on_sqlite(tmp_path, provider.server, grace="200ms"), Question("done", "asked-done", stream=False)
    async with life(config) as served:
        provider.may_go_on.set()
        kept = await ask(served.url, done)
        provider.may_go_on.clear()
        asking = [asyncio.ensure_future(_last_words(served.url, one)) for one in (STREAM, WHOLE) * 4]
        await until(lambda: times(provider, STREAM) == times(provider, WHOLE) == 1)
        await served.serves(8)
        served.tell(number)
        words = await asyncio.gather(*asking)
        code = await served.ends()
    provider.may_go_on.set()
    async with life(config) as served:
        again = await ask(served.url, done)
        anew = [await ask(served.url, one) for one in (STREAM, WHOLE)]

    assert code == 0
    assert all(b'"code":"shutting_down"' in one and DONE not in one for one in words)
    assert all(one.startswith(b"HTTP/1.1 503") for one in words[1::2])
    check(done, [kept, again])
    assert is_replayed(again)
    assert [(one.status, is_replayed(one)) for one in anew] == [(200, False)] * 2
    assert_sound(tmp_path / "state.db")


async def _last_words(url: str, question: Question) -> bytes:
    async with connect(url) as peer:
        peer.send(question.request("Connection: close"))
        return await peer.rest()


async def test_a_file_that_cannot_grow_costs_no_call(tmp_path: Path, provider: Provider) -> None:
    """As a full disk: calls go on, it is said once; with room it works again by itself, and has what was promised."""
    provider.may_go_on.set()
    config, asked = on_sqlite(tmp_path, provider.server), questions(24)
    async with life(config) as first:
        answers = [await ask(first.url, one) for one in asked[:4]]
        full = (tmp_path / "state.db-wal").stat().st_size  # more than the log will have, which is a file too
        _, hard = resource.prlimit(first.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (full, hard))
        answers += await asyncio.gather(*(ask(first.url, one) for one in asked[4:20]))
        await first.says("Calls go on")
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (hard, hard))
        await first.says("works again; it misses")
        answers += [await ask(first.url, one) for one in asked[20:]]
        first.kill()
        assert await first.ends() == -signal.SIGKILL
    async with life(config) as served:
        again = [await ask(served.url, one) for one in asked]

    assert first.said.count("Calls go on") == 1
    for question, one, replayed in zip(asked, answers, again, strict=True):
        check(question, [one, replayed])
        assert is_replayed(replayed)
        assert times(provider, question) == 1
    assert_sound(tmp_path / "state.db")
