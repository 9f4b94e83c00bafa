"""The machine's time is set under a running gateway: what waits there waits as long as it was told to, and nothing expires."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.core.clock import SteadyClock, SystemClock
from gateway.products.jobs.rules import JOBS
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import end_of, look, new_job, take, with_jobs
from tests.e2e.harness import Running
from tests.fixtures.stores import redis_url

__all__ = ["redis_url"]

STEPS = [-600.0, 600.0]
"""Seconds by which the time is set ahead."""
STORES = ["sqlite", "redis"]


@dataclass
class Machine:
    """A machine whose time can be set, and whose time can pass."""

    set_s: float = 0.0
    passed_s: float = 0.0

    def wall(self) -> float:
        """The time that it shows."""
        return time.time() + self.passed_s + self.set_s

    def elapsed(self) -> float:
        """The seconds that it is up."""
        return time.monotonic() + self.passed_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine that gateways run on."""
    machine, make = Machine(), SteadyClock.__init__
    monkeypatch.setattr(SystemClock, "wall", staticmethod(machine.wall))
    monkeypatch.setattr(SteadyClock, "__init__", lambda clock: make(clock, machine.wall(), machine.elapsed))
    return machine


@pytest.fixture(params=STORES)
async def gateway(request: pytest.FixtureRequest, start: StartGateway, tmp_path: Path, machine: Machine) -> Running:
    """A gateway with jobs."""
    sections: dict[str, Any] = {}
    if request.param == "redis":
        sections = {"state": request.getfixturevalue("redis_url"), "jobs": {"store": "state", "accept": "fast"}}
    return await start(with_jobs(tmp_path, **sections))


def callers_time(gateway: Running, machine: Machine) -> float:
    """Returns what callers' clocks show: that of the machine is right, or, where replicas share a Redis, that of the Redis."""
    return time.time() if JOBS.of(gateway.gateway.policy).settings.redis else machine.wall()


async def left_s(gateway: Running, job: dict[str, Any]) -> float:
    """Returns the seconds until a job may begin, by the clock of its store."""
    work = gateway.gateway._jobs
    assert work is not None
    kept = await (await work.engine.store()).find(job["id"], None)
    assert kept is not None
    return kept.run_at - work.clock.wall()


@pytest.mark.parametrize("step_s", STEPS)
async def test_a_job_waits_as_long_as_it_was_told_to(gateway: Running, machine: Machine, step_s: float) -> None:
    """Whether it came before the time was set or afterwards, and whether it names a duration or a time."""
    before = await take(gateway.url, new_job(delay="60s"))
    machine.set_s = step_s
    after = await take(gateway.url, new_job(delay="60s"))
    named = await take(gateway.url, new_job(run_at=callers_time(gateway, machine) + 60))

    assert [await left_s(gateway, job) for job in (before, after, named)] == pytest.approx([60.0] * 3, abs=5.0)
    assert [(await look(gateway.url, job["id"]))["status"] for job in (before, after, named)] == ["scheduled"] * 3


@pytest.mark.parametrize("step_s", STEPS)
@pytest.mark.parametrize("deadline", [lambda _now: "5m", lambda now: now + 300])
async def test_a_deadline_does_not_pass_when_the_time_is_set(
    gateway: Running, machine: Machine, deadline: Callable[[float], object], step_s: float
) -> None:
    machine.set_s = step_s
    job = await take(gateway.url, new_job(deadline=deadline(callers_time(gateway, machine))))

    assert (await end_of(gateway.url, job["id"]))["status"] == "succeeded"


async def test_the_log_says_once_that_the_time_was_set(
    gateway: Running, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time that it was."""
    tick = gateway.gateway._housekeeping.tick
    with caplog.at_level(logging.WARNING, "gateway"):
        for set_s in (0.0, -600.0, -600.0, 300.0):
            machine.set_s = set_s
            await tick(time.monotonic())
    said = [record.getMessage() for record in caplog.records if "was set" in record.getMessage()]

    assert [line.partition(":")[0] for line in said] == [
        "the time of this machine was set back by 600 s",
        "the time of this machine was set ahead by 900 s",
    ]
