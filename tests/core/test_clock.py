"""The clock of what is kept: it goes on evenly, whatever is done to the machine's time."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest

from gateway.core.clock import SharedClock, SteadyClock, SystemClock
from tests.e2e.harness import config_of, connect, get, post, start_gateway
from tests.support.redis_servers import redis_server

BODY = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]})
KEYED = post("/v1/chat/completions", BODY, "idempotency-key: once")
YEAR_S = 31_536_000.0


class Machine:
    """A machine whose time can be set."""

    def __init__(self) -> None:
        self.time, self.uptime = 1_000_000.0, 50.0

    def passes(self, seconds: float) -> None:
        self.time += seconds
        self.uptime += seconds


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S, 3600.0])
def test_time_that_is_set_does_not_pass(jump_s: float) -> None:
    """Only time that passes does."""
    machine = Machine()
    clock = SteadyClock(machine.time, lambda: machine.uptime)
    machine.passes(10.0)
    machine.time += jump_s
    machine.passes(5.0)

    assert clock.wall() == 1_000_015.0


@pytest.mark.parametrize(("step_s", "ahead_s"), [(-600.0, 600.0), (600.0, -600.0), (1.5, 0.0), (-1.5, 0.0)])
def test_it_tells_how_far_the_time_was_set(monkeypatch: pytest.MonkeyPatch, step_s: float, ahead_s: float) -> None:
    """What differs by less than the least step is no step: a leap second, two clocks that are read one after the other."""
    machine = Machine()
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: machine.time))
    clock = SteadyClock(machine.time, lambda: machine.uptime)
    machine.passes(10.0)
    machine.time += step_s

    assert clock.ahead_s == ahead_s


def test_a_shared_clock_goes_on_from_the_servers_time() -> None:
    """And is never ahead of what people name: where replicas share a Redis, its time is the one that counts."""
    machine = Machine()
    clock = SharedClock(machine.time, lambda: machine.uptime)
    clock.follow(5_000.0)
    machine.passes(10.0)
    machine.time += YEAR_S

    assert (clock.wall(), clock.ahead_s) == (5_010.0, 0.0)


def test_it_begins_with_the_time_of_the_machine() -> None:
    """What a file has kept from before the start is judged by it."""
    assert abs(SteadyClock().wall() - time.time()) < 60.0


@pytest.mark.parametrize("state", ["memory", "sqlite"])
async def test_keys_survive_a_machine_whose_time_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A repeated key is answered again, though by the machine's time its answer is long forgotten."""
    machine = Machine()
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: time.time() + machine.time))
    where = f"sqlite:///{tmp_path}/state.db" if state == "sqlite" else state
    gateway = await start_gateway(tmp_path, lambda url: config_of(url, state=where))
    async with connect(gateway.url) as peer:
        await peer.exchange(KEYED)
        machine.time += YEAR_S
        again = await peer.exchange(KEYED)
    await gateway.stop()

    assert again.header("idempotent-replayed") == "true"
    assert gateway.upstream_calls() == 1


async def test_how_long_a_redis_is_up_is_told_by_a_clock_that_never_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the machine's time it would have been for a year."""
    machine = Machine()
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: time.time() + machine.time))
    with redis_server() as server:
        gateway = await start_gateway(tmp_path, lambda url: config_of(url, state=server.url))
        machine.time += YEAR_S
        async with connect(gateway.url) as peer:
            said = orjson.loads((await peer.exchange(get("/readyz"))).body)
        await gateway.stop()

    assert said["state"]["since_s"] < YEAR_S / 2
