"""Runs and their children in every store beside the one in memory: random ends, cancels, claims, deadlines and restarts.

Beside what all stores have to answer alike: no run is lost that has to look at its children, and none is looked at for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gateway.products.jobs.model import (
    CHECK,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobEnd,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
)
from gateway.products.jobs.store import JobStore
from tests.products.jobs.test_model import TwoStores, name_of
from tests.products.jobs.test_redis_model import RedisBesideMemory
from tests.support.job_stores import ERROR


class RunRules(TwoStores):
    """What happens to runs. The other rules are tried in `test_model`."""

    accept = claim = begin = commit = complete = replay = trim = purge = look = finish = None  # type: ignore[assignment]  # no rule
    add_file = remove_file = list_files = take_garbage = give_back = None  # type: ignore[assignment]  # no rule

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[str]] = {}
        """The ended children of runs when they were claimed last."""

    @rule(seed=st.integers(0, 2**32))
    def live(self, seed: int) -> None:
        """A while in the life of runs: with draws of its own, which come to more than those of rules."""
        random = Random(seed)
        ways = [
            self._begin_run,
            self._claim,
            self._park,
            self._end_child,
            self._flag_one,
            self._give_back,
            self._end_run,
        ]
        for way in random.choices(ways, [4, 10, 10, 10, 1, 1, 1], k=12):
            way(random)
            self.no_run_is_lost()

    def _begin_run(self, random: Random) -> None:
        self.named += 1
        run_at, deadline = self.wall() + random.choice([0, 0, 3]), self.wall() + random.choice([20, 1000, 1000])
        tenant, name = random.choice("ab"), name_of(self.named)
        run = self.jobs.new(
            id=name, kind=JobKind.RUN, tenant=tenant, run_at=run_at, deadline=deadline, payload=b"input"
        )
        self.both(lambda store: store.accept([run]))

    def _claim(self, random: Random) -> None:
        most = random.randint(1, 6)
        ours, theirs = [
            self.runner.run(store.claim([ClaimRequest("fast", most)])) for store in (self.memory, self.other)
        ]
        assert [replace(work, fence=0) for work in ours] == [replace(work, fence=0) for work in theirs]
        self.works += zip(ours, theirs, strict=True)
        self.seen |= {work.job.id: self._ended_children(work.job.id) for work in ours}

    def _park(self, random: Random) -> None:
        """A run begins children, one of which may be there already, and may have heard what is asked of it."""
        place, now = self._pick(random, is_run=True), self.wall()
        if place is None:
            return
        run, is_knowing = self.works[place][0].job, random.random() < 0.5
        number = random.randint(0, 3)
        names = [name_of(self.named + new + 1) for new in range(number)]
        names += [name_of(random.randint(1, self.named))] * (random.random() < 0.2)
        self.named += number
        children = [self._child(run, name, random) for name in names]

        async def write(store: JobStore, work: ClaimedWork) -> Any:
            (told,) = await store.renew([work])
            known = replace(work.job, ends_as=told.ends_as) if is_knowing else work.job
            return await store.park(replace(work, job=known), children, {"parked": now})

        self.write(place, write)

    def _child(self, run: Job, name: str, random: Random) -> NewJob:
        is_batch = random.random() < 0.2
        now = self.wall()
        job = self.jobs.job(
            id=name,
            tenant=run.tenant,
            parent=run.id,
            run_at=now + random.choice([0, 0, 0, 3]),
            deadline=now + random.choice([8, 1000, 1000]),
            kind=JobKind.BATCH if is_batch else JobKind.CALL,
        )
        return NewJob(job, b"child", CHECK if is_batch else 0)

    def _end_child(self, random: Random) -> None:
        end = JobEnd(random.choice([JobState.SUCCEEDED, JobState.FAILED]), random.choice([ERROR, None]))
        self._write(random, False, lambda store, work: store.finish(work, end))

    def _end_run(self, random: Random) -> None:
        end = JobEnd(random.choice([JobState.SUCCEEDED, JobState.CANCELLED]))
        self._write(random, True, lambda store, work: store.finish(work, end))

    def _give_back(self, random: Random) -> None:
        run_at, error, is_run = (
            random.choice([None, self.wall() + 3]),
            random.choice([None, ERROR]),
            random.random() < 0.5,
        )
        self._write(
            random, is_run, lambda store, work: store.give_back(work, run_at=run_at, error=error, is_attempt=is_run)
        )

    def _flag_one(self, random: Random) -> None:
        opened = [int(job.id[1:]) for job in self._jobs() if not job.state.is_end]
        if opened:
            self.flag(number=random.choice(opened), tenant=None, flag=random.choice(list(JobFlag)))

    def _write(self, random: Random, is_run: bool, write: Callable[[JobStore, ClaimedWork], Awaitable[Any]]) -> None:
        place = self._pick(random, is_run=is_run)
        if place is not None:
            self.write(place, write)

    @invariant()
    def no_run_is_lost(self) -> None:
        """Of a run that waits no child has ended that its last claim could not see, and it is not to stop unknown to it."""
        for run in self._jobs():
            if run.state is JobState.WAITING:
                assert self._ended_children(run.id) == self.seen[run.id]

    def _pick(self, random: Random, *, is_run: bool) -> int | None:
        """Where a claim of a run, or of another, is: one that holds, if there is one; sometimes one that need not."""
        places = [place for place, (work, _) in enumerate(self.works) if (work.job.kind is JobKind.RUN) is is_run]
        told = self.runner.run(self.memory.renew([self.works[place][0] for place in places]))
        held = [place for place, one in zip(places, told, strict=True) if one.is_ours]
        if random.random() < 0.9:
            return random.choice(held) if held else None
        return random.choice(places) if places else None

    def _jobs(self) -> Sequence[Job]:
        return self.runner.run(self.memory.list_jobs(JobQuery(None, limit=1000))).jobs

    def _ended_children(self, run_id: str) -> set[str]:
        return {job.id for job in self._jobs() if job.parent == run_id and job.state.is_end}


class RunsInSqlite(RunRules):
    """In a file."""


class RunsInRedis(RunRules, RedisBesideMemory):
    """On a server."""


@pytest.fixture(autouse=True)
def _server(redis_url: str) -> Iterator[Any]:
    RunsInRedis.url = redis_url
    yield
    del RunsInRedis.url


def often(examples: int) -> settings:
    """In the soak ten times as many and more."""
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        phases=[Phase.generate],  # as in `test_model`
        suppress_health_check=list(HealthCheck),
    )


TestRunsInSqlite = RunsInSqlite.TestCase
TestRunsInSqlite.settings = often(settings().max_examples // 5)
TestRunsInRedis = RunsInRedis.TestCase
TestRunsInRedis.settings = often(settings().max_examples // 10)
