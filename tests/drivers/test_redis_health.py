"""Whether a server is there: who is told what, and when, of one that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.drivers.redis import wire as redis_server
from gateway.drivers.redis.wire import ServerHealth


class Server:
    """What its probe finds; everything that is told is kept."""

    def __init__(self) -> None:
        self.is_there = True
        self.words = "nobody there"
        self.probes = 0
        self.changes: list[bool] = []
        self.lost: list[str] = []
        self.health = ServerHealth("the store", self.probe, self.lost.append, self.changes.append, timeout_s=0.05)

    async def probe(self) -> None:
        self.probes += 1
        if not self.is_there:
            raise OSError(self.words)

    async def settle(self) -> None:
        """Until the probe has found it."""
        async with asyncio.timeout(60):
            while not self.health.is_open:  # noqa: ASYNC110 - as it is from outside
                await asyncio.sleep(0)

    async def go(self) -> None:
        """Trouble that lasts for some probes."""
        probes, self.is_there = self.probes, False
        self.health.doubt("it hangs")
        async with asyncio.timeout(60):
            while self.probes < probes + 3:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "FIRST_PROBE_DELAY_S", 0.0001)
    monkeypatch.setattr(redis_server, "LAST_PROBE_DELAY_S", 0.0001)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.health.start()
    await server.settle()
    yield server
    await server.health.aclose()


async def test_a_doubt_that_was_none_is_not_noticed(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """While it lasts nothing is asked; nobody is told."""
    server.health.doubt("it hangs")
    assert (server.health.is_open, server.health.is_up) == (False, True)

    await server.settle()

    assert (server.changes, server.lost, caplog.messages) == ([True], [], [])


async def test_a_doubt_that_comes_back_is_none_any_more(server: Server) -> None:
    """It is gone at once, though the probe finds it again."""
    server.health.doubt("it hangs")
    await server.settle()

    server.health.doubt("it hangs")
    assert (server.health.is_up, server.lost) == (False, ["it hangs"])

    await server.settle()
    assert server.changes == [True, False, True]


async def test_a_doubt_long_after_another_is_a_new_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then a command is slow."""
    monkeypatch.setattr(redis_server, "CALM_S", 0.0)
    for _ in range(5):
        server.health.doubt("it hangs")
        await server.settle()

    assert server.changes == [True]


async def test_going_and_coming_are_told_in_turn(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Each with its reason, and how long it was gone."""
    await server.go()
    assert server.health.reason == "nobody there"
    server.is_there = True
    await server.settle()

    assert server.changes == [True, False, True]
    assert [line.partition(":")[0].partition(",")[0] for line in caplog.messages] == [
        "the store cannot be used",
        "the store can be used again",
    ]
    assert "nobody there" in caplog.messages[0]


async def test_a_servers_own_full_stop_is_not_said_twice(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Some of its messages are whole sentences."""
    server.words = "user is disabled."
    await server.go()

    assert "disabled. Calls go on" in caplog.messages[0]


async def test_flapping_does_not_flood_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Who falls back is told each time, the log of the first only."""
    for _ in range(20):
        await server.go()
        server.is_there = True
        await server.settle()

    assert server.changes == [True, *[False, True] * 20]
    assert len(caplog.messages) == 2


async def test_trouble_that_lasts_is_told_though_another_was(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the log has been quiet for long enough, and then its end too."""
    await server.go()
    server.is_there = True
    await server.settle()
    await server.go()
    assert len(caplog.messages) == 2

    monkeypatch.setattr(redis_server, "QUIET_S", 0.0)
    await server.go()
    server.is_there = True
    await server.settle()

    assert len(caplog.messages) == 4


async def test_a_probe_has_patience_with_a_slow_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """More with every try, so that one that needs longer than the timeout to shake hands is reached; up to a bound."""
    patience: list[float] = []

    def timeout(delay_s: float) -> asyncio.Timeout:
        patience.append(delay_s)
        return asyncio.Timeout(None)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    server.is_there = False
    server.health.doubt("it hangs")
    while len(patience) < 8:  # noqa: ASYNC110 - the probes are counted
        await asyncio.sleep(0)

    assert patience[:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
