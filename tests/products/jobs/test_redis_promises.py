"""What a Redis promises of jobs, and what becomes of them when it is full, dies, is replaced, or may throw things away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gateway.core.errors import StoreUnusable
from gateway.core.types import SharedState
from gateway.drivers.durability import JobsUnavailable, NotDurable, OutcomeUnknown
from gateway.drivers.redis import partitions as durability
from gateway.drivers.redis.link import Link, StoreGone
from gateway.drivers.redis.partitions import JobDurability
from gateway.features.runs.rules import label_change
from gateway.features.runs.step import RunToChange
from gateway.products.jobs import redis
from gateway.products.jobs.model import ClaimRequest, JobFlag, JobState
from gateway.products.jobs.redis import CHECK_S, RECHECK_S, RedisJobStore
from gateway.products.jobs.store import open_redis_jobs
from gateway.products.jobs.worker import until_done
from tests.docs.support import DOCS
from tests.features.runs.test_run_store import step
from tests.support.conformance import Wall
from tests.support.flow import FakeClock
from tests.support.job_stores import OURS, Jobs
from tests.support.redis_servers import RedisServer, proxied, redis_server, redis_watched


@asynccontextmanager
async def opened(url: str, wall: Wall, replica: str = "r1", **fields: Any) -> AsyncIterator[Jobs]:
    store = await open_redis_jobs(SharedState(url), replica=replica, wall=wall, in_all=1000, per_tenant=1000, **fields)
    yield Jobs(store, wall)
    await store.aclose()


@pytest.fixture
def lasting() -> Iterator[RedisServer]:
    """One that writes each command to its disk before it answers."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


async def test_jobs_outlive_a_redis_that_is_killed(lasting: RedisServer, wall: Wall) -> None:
    """So do claims, with their fences; and the gateway goes on by itself."""
    async with opened(lasting.url, wall) as jobs:
        assert jobs.store.durability == "on disk"
        await jobs.call(id="claimed")
        work = await jobs.claim()
        await jobs.call(id="waiting")
        await jobs.call(id="later", run_at=wall() + 10)
        lasting.kill()
        with pytest.raises(JobsUnavailable):
            await jobs.call()
        assert not jobs.store.is_well
        lasting.start()

        async def is_back() -> bool:
            try:
                return bool(await jobs.store.renew([work]))
            except JobsUnavailable:
                return False

        await until_true(is_back)
        assert await jobs.finish(work) == OURS
        assert [one.job.id for one in await jobs.claim_all()] == ["waiting"]
        wall.advance(10)
        assert [one.job.id for one in await jobs.claim_all()] == ["later"]
        assert (await jobs.get("claimed")).state is JobState.SUCCEEDED


async def until_true(ask: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again."""
    for _ in range(10_000):
        if await ask():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come true in time")


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        (("--appendonly", "no"), "lost with the Redis"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "on disk within a second"),
    ],
)
async def test_the_promise_is_what_the_server_keeps(wall: Wall, options: tuple[str, ...], promise: str) -> None:
    """Not what the config asks for."""
    with redis_server(*options) as server:
        async with opened(server.url, wall, accept="fsync") as jobs:
            can_wait = promise != "lost with the Redis" and server.version >= durability.WAITAOF_SINCE
            assert jobs.store.durability == ("on disk" if can_wait else promise)
            await jobs.call()


async def test_a_redis_that_may_evict_is_refused(wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    """With the remedy; one that may do so later on takes no more jobs until it may not, and the log says both once."""
    with redis_server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(StoreUnusable, match=r"allkeys-lru.*set its maxmemory-policy to noeviction"):
            async with opened(server.url, wall):
                pass
        server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with opened(server.url, wall) as jobs:
            store = jobs.store
            assert isinstance(store, RedisJobStore)
            work = await jobs.running_call()
            for policy, waits_s in (("volatile-lru", CHECK_S), ("volatile-lru", RECHECK_S), ("noeviction", RECHECK_S)):
                server.do("CONFIG", "SET", "maxmemory-policy", policy)
                store._checked_at -= waits_s
                store.tick()
                await store.settled()
                assert store.is_well == (policy == "noeviction")
                if not store.is_well:
                    with pytest.raises(JobsUnavailable, match="maxmemory-policy"):
                        await jobs.call()
                    assert await store.renew([work]) == [OURS]
            await jobs.call()
    off, on = [record.getMessage() for record in caplog.records if record.name == "gateway.jobs"]
    assert "set its maxmemory-policy to noeviction" in off
    assert on == "jobs are on again"


async def test_a_redis_that_is_full_takes_no_jobs_and_recovers_by_itself(wall: Wall) -> None:
    """Nothing is half taken."""
    with redis_server() as server:
        async with opened(server.url, wall) as jobs:
            await jobs.call(id="before")
            server.do("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(JobsUnavailable):
                await jobs.call(id="refused")
            said = jobs.store.is_well
            server.do("CONFIG", "SET", "maxmemory", "0")

            async def takes() -> bool:
                try:
                    return bool(await jobs.accept(jobs.new(id="after")))
                except JobsUnavailable:
                    return False

            await until_true(takes)
            assert (said, jobs.store.is_well) == (False, True)
            assert [work.job.id for work in await jobs.claim_all()] == ["before", "after"]
            assert await jobs.store.find("refused", None) is None


async def test_jobs_on_replicas_are_there_after_a_failover(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged is; without a replica nothing is."""
    monkeypatch.setattr(durability, "WAIT_MS", 300)
    with redis_watched() as watched:
        async with opened(watched.url, wall, accept="replicated") as jobs:
            assert jobs.store.durability == "on a replica"
            assert jobs.store.durability_lag_s == durability.DURABILITY_LAG_S

            async def takes(name: str) -> bool:
                try:
                    return bool(await jobs.call(id=name))
                except JobsUnavailable:  # this machine is busy
                    return False

            await until_true(lambda: takes("safe"))
            work = await jobs.claim()
            await until_true(lambda: takes("waiting"))
            watched.fail_over()

            async def is_back() -> bool:
                try:
                    return bool(await jobs.store.renew([work]))
                except JobsUnavailable:
                    return False

            await until_true(is_back)
            assert await jobs.finish(work) == OURS
            assert [one.job.id for one in await jobs.claim_all()] == ["waiting"]
            watched.master.kill()

            async def says_why() -> bool:
                with pytest.raises(JobsUnavailable) as refused:
                    await jobs.call(id="unsafe")
                return "copied it to a replica" in refused.value.message

            async def is_taken_back() -> bool:
                return await jobs.store.find("unsafe", None) is None

            await until_true(says_why)
            await until_true(is_taken_back)


async def test_a_server_that_can_wait_for_its_disk_is_waited_for(redis_url: str) -> None:
    """One wait for all who came before it; a server that does not make it in time, or lacks the write, has not kept it."""
    link = _WaitingLink(SharedState(redis_url))
    safe = JobDurability(link, [link.slot_key("jobs", "0")], "fsync")
    await safe.check()
    assert safe.durability == "on disk"
    assert safe.durability_lag_s == durability.DURABILITY_LAG_S
    marks = [safe.mark(b"{0}") for _ in range(10)]
    await asyncio.gather(*[safe.settle([mark]) for mark in marks])
    assert [len(sent) for sent in link.sent] == [11]
    assert link.sent[0][-1] == (b"WAITAOF", 1, 0, durability.WAIT_MS)
    assert {sent[:2] for sent in link.sent[0][:-1]} == {(b"DEL", mark) for mark in marks}
    link.reply = [0, 0]
    with pytest.raises(JobsUnavailable, match="disk") as refused:
        await safe.settle([safe.mark(b"{0}")])
    assert not isinstance(refused.value, OutcomeUnknown)
    link.reply, link.deleted = [1, 0], 0
    with pytest.raises(OutcomeUnknown):
        await safe.settle([safe.mark(b"{0}")])


class _WaitingLink(Link):
    """As that of a Redis 7.2 which writes to its disk every second."""

    def __init__(self, shared: SharedState) -> None:
        super().__init__(shared)
        self.sent: list[tuple[tuple[Any, ...], ...]] = []
        self.reply = [1, 0]
        self.deleted = 1

    def in_line(self, key: bytes, *commands: tuple[Any, ...]) -> list[asyncio.Future[Any]]:
        self.sent.append(commands)
        return [self._told(self.reply if parts[0] == b"WAITAOF" else self.deleted) for parts in commands]

    def command_near(self, key: bytes, *parts: bytes | str | int) -> Any:
        if parts[0] == b"INFO":
            return self._told(b"redis_version:7.2.4\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\n")
        return self._told([b"appendfsync", b"everysec"])

    @staticmethod
    def _told(reply: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(reply)
        return future


async def test_while_servers_are_asked_again_what_was_known_holds() -> None:
    """The first of two needs no waiting for, the second does, also where it does not answer: nobody is told too much."""
    link = _TwoServers(SharedState("redis://127.0.0.1:1/0"))
    safe = JobDurability(link, [b"first", b"second"], "fsync")
    await safe.check()
    assert safe.mark(b"{0}") is not None
    checking = asyncio.create_task(safe.check())
    for _ in range(6):
        await asyncio.sleep(0)
        assert safe.mark(b"{0}") is not None
    await checking
    link.is_second_away = True
    with pytest.raises(JobsUnavailable):
        await safe.check()
    assert safe.mark(b"{0}") is not None


class _TwoServers(_WaitingLink):
    is_second_away = False

    def home(self, key: bytes) -> object:
        return key

    async def _later(self, reply: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def command_near(self, key: bytes, *parts: bytes | str | int) -> Any:
        if key == b"second" and self.is_second_away:
            return self._later(StoreGone("away"))
        if parts[0] == b"CONFIG" and key == b"first":
            return self._later([b"appendfsync", b"always"])
        return self._later(super().command_near(key, *parts).result())


async def test_what_is_acknowledged_is_waited_for(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accept, a cancel, a file and its end, a note: none is said to be done where no replica has it."""
    monkeypatch.setattr(durability, "WAIT_MS", 20)
    with redis_server() as server:
        async with opened(server.url, wall, accept="fast") as jobs:
            await jobs.call(id="there")
            work = await jobs.running_call()
            await jobs.store.files.add(jobs.file("kept"))
            await jobs.store.responses.put(jobs.response("r1"))
        async with opened(server.url, wall, accept="replicated") as jobs:
            store = jobs.store
            for ask in (
                lambda: store.accept([jobs.new()]),
                lambda: store.flag("there", None, JobFlag.CANCEL),
                lambda: store.flag("there", None, JobFlag.CANCEL),  # it is done already, perhaps a moment ago
                lambda: store.files.add(jobs.file("new")),
                lambda: store.files.remove("kept", "t"),
                lambda: store.responses.put(jobs.response("r2")),
                lambda: store.responses.remove("r1", "t"),
                lambda: store.note(work, {"a": 1}),
                lambda: store.runs.keep_step(step(jobs)),
                lambda: store.runs.keep_step(step(jobs)),  # the first is there, perhaps only since a moment ago
                lambda: store.runs.change([RunToChange("t", "r", label_change(jobs.wall(), outcome="succeeded"))]),
                lambda: store.runs.forget("t", "r"),
            ):
                with pytest.raises(JobsUnavailable, match="copied it to a replica"):
                    await ask()


async def test_a_wait_on_another_server_than_that_of_the_write_is_worth_nothing(wall: Wall) -> None:
    """An old master that is cut off from its replicas takes jobs, and the wait is answered by the new one."""
    with redis_watched() as new, redis_server() as old:
        async with proxied(old.port) as way:
            links = [
                Link(SharedState(f"redis://127.0.0.1:{port}/0", timeout_s=5.0)) for port in (way.port, new.master.port)
            ]
            for link in links:
                await link.start()
            safe = JobDurability(links[1], [b"x"], "replicated")
            await safe.check()
            jobs = Jobs(RedisJobStore(links, 1, "r1", safe, wall=wall), wall)
            partitions = jobs.store._partitions  # type: ignore[attr-defined]  # it is a Redis store
            partitions.patience_s = 0.0
            with pytest.raises(OutcomeUnknown):
                await jobs.call(id="on the old one")
            partitions.patience_s = 60.0
            accepting = asyncio.create_task(jobs.accept(jobs.new(id="on both")))
            await asyncio.sleep(0.1)
            assert not accepting.done()
            way.to = new.master.port
            way.reset()
            assert (await accepting).is_new
            await jobs.store.aclose()
        assert old.do("EXISTS", "gateway:1:jobs:{0}:j:on both") == 1
        assert new.master.do("EXISTS", "gateway:1:jobs:{0}:j:on both") == 1


async def test_a_disk_is_really_waited_for(wall: Wall) -> None:
    """By servers that can do so, which are those since 7.2; at once by one that does it before it answers."""
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        if server.version < durability.WAITAOF_SINCE:
            pytest.skip("needs Redis 7.2 or later: REDIS_SERVER names one")
        async with opened(server.url, wall) as jobs:
            assert jobs.store.durability == "on disk"
            await asyncio.gather(*[jobs.accept(jobs.new(id=f"j{number}")) for number in range(20)])
            with server.client() as client:
                stats: dict[str, Any] = client.info("commandstats")
            assert stats["cmdstat_waitaof"]["calls"] <= 2
            assert not client.keys("*:mark:*")
            server.do("CONFIG", "SET", "appendfsync", "no")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(durability, "WAIT_MS", 50)
                with pytest.raises(JobsUnavailable, match="written it to its disk"):
                    await jobs.store.flag("j1", None, JobFlag.CANCEL)


async def test_jobs_of_a_later_release_are_left_alone(a_redis: RedisServer, wall: Wall) -> None:
    """The number of partitions is that of the first who opened it."""
    async with opened(a_redis.url, wall):
        pass
    link = Link(SharedState(a_redis.url))
    key = link.slot_key("jobs", "all") + b":format"
    assert a_redis.do("GET", key) == b"1:1"
    a_redis.do("SET", key, "2:1")

    with pytest.raises(StoreUnusable, match="later release"):
        async with opened(a_redis.url, wall):
            pass


async def test_a_redis_that_is_not_there_is_said(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its address, without its login."""
    monkeypatch.setattr(redis, "TIMEOUT_S", 0.1)
    with pytest.raises(StoreUnusable, match="the Redis for jobs cannot be used"):
        async with opened("redis://u:secret@127.0.0.1:1/0", wall):
            pass


async def test_idle_replicas_ask_once_a_second(a_redis: RedisServer, wall: Wall) -> None:
    """A worker's claim each second is all; a tick beside it asks nothing. Also where jobs wait, run and are scheduled."""
    async with opened(a_redis.url, wall) as jobs:
        for number in range(5):
            await jobs.call(run_at=wall() + 100 * number)
        await jobs.claim_all(1)
        a_redis.do("CONFIG", "RESETSTAT")
        for _ in range(5):
            await jobs.store.claim([ClaimRequest("slow", 10), ClaimRequest("webhooks", 4)])
            jobs.store.tick()
            await jobs.store.settled()  # type: ignore[attr-defined]  # it is a Redis store
        with a_redis.client() as client:
            stats: dict[str, Any] = client.info("commandstats")

    sent = {
        name: one["calls"] for name, one in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_ping")
    }
    assert sent == {"cmdstat_evalsha": 5}


async def test_where_nothing_is_to_be_done_a_look_is_left_out_now_and_then(a_redis: RedisServer, wall: Wall) -> None:
    """So that all that an idle gateway asks is within one operation a second; what came from here is claimed at once."""
    asks = [ClaimRequest("fast", 10)]
    async with opened(a_redis.url, wall) as jobs:
        claims: Any = jobs.store._claims  # type: ignore[attr-defined]  # it is a Redis store

        async def claim_a_second_later() -> int:
            claims._looked_at = [at - 1.0 for at in claims._looked_at]
            return len(await jobs.store.claim(asks))

        await claim_a_second_later()
        a_redis.do("CONFIG", "RESETSTAT")
        for _ in range(30):
            await claim_a_second_later()
        with a_redis.client() as client:
            stats: dict[str, Any] = client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 25
        for _ in range(16):
            await claim_a_second_later()
            await jobs.call()
            (work,) = await jobs.store.claim(asks)
            await jobs.finish(work)


async def look_again(jobs: Jobs, after_s: float) -> None:
    """As if so long had passed since the settings were looked at."""
    store = jobs.store
    assert isinstance(store, RedisJobStore)
    store._checked_at -= after_s
    store.tick()
    await store.settled()


async def test_what_was_taken_goes_on_where_no_replica_is_left(
    wall: Wall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what durability there is, which is said; new jobs are refused until there is a replica again."""
    monkeypatch.setattr(durability, "WAIT_MS", 100)
    monkeypatch.setattr(durability, "SHORT_WAIT_MS", 20)
    with redis_server("--appendonly", "yes", "--repl-diskless-sync-delay", "0") as server, redis_server() as other:
        async with opened(server.url, wall, accept="fast") as jobs:
            work = await jobs.running_call()
        async with opened(server.url, wall, accept="replicated") as jobs:
            with pytest.raises(NotDurable):
                await jobs.store.note(work, {"a": 1})
            clock = FakeClock()
            assert await until_done(lambda: jobs.store.note(work, {"a": 2}), clock) == OURS
            await until_done(lambda: jobs.store.responses.put(jobs.response("r")), clock)
            await until_done(lambda: jobs.store.files.add(jobs.file("output")), clock)

            assert jobs.store.is_well
            assert jobs.store.durability == "on disk within a second, on no replica: no new jobs"
            assert (await jobs.get(work.job.id)).marks["a"] == 2
            assert await jobs.finish(work) == OURS
            with pytest.raises(JobsUnavailable, match="copied it to a replica"):
                await jobs.call()

            other.do("REPLICAOF", "127.0.0.1", server.port)

            async def is_whole() -> bool:
                await look_again(jobs, RECHECK_S + 1)
                return jobs.store.durability == "on a replica, and on disk within a second"

            await until_true(is_whole)
            await until_done(jobs.call, clock)
    said = [record.getMessage() for record in caplog.records if record.name == "gateway.jobs"]
    assert [line.partition(":")[0] for line in said] == ["no new jobs are taken", "jobs are taken again"]


async def test_a_redis_that_comes_back_another_way_is_looked_at_again(
    wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """After the reconnection, not 10 minutes later."""
    with redis_server("--appendonly", "yes") as server:
        async with opened(server.url, wall, accept="fsync") as jobs:
            before = jobs.store.durability
            assert before.startswith("on disk")
            server.stop()
            server._options = ("--appendonly", "no")
            server.start()

            async def is_back() -> bool:
                await look_again(jobs, 0)
                return jobs.store.is_well

            await until_true(is_back)
            await until_done(jobs.call, FakeClock())
            await look_again(jobs, 0)
            assert jobs.store.durability == "lost with the Redis"
    assert f"jobs are kept in another way: lost with the Redis; before: {before}" in caplog.text


ACL_OF_DOCS = re.search(r"`ACL SETUSER gateway ([^`]+)`", (DOCS / "replicas.md").read_text())


@pytest.mark.parametrize("has_info", [True, False])
async def test_the_acl_of_the_docs_is_enough(wall: Wall, caplog: pytest.LogCaptureFixture, *, has_info: bool) -> None:
    """Without INFO jobs are off, and the log says why and what to do, once."""
    assert ACL_OF_DOCS is not None
    rules = ACL_OF_DOCS[1].split()
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        server.do("ACL", "SETUSER", "gateway", *(rule for rule in rules if has_info or rule != "+info"))
        url = f"redis://gateway:SECRET@127.0.0.1:{server.port}/0"
        if has_info:
            async with opened(url, wall) as jobs:
                assert jobs.store.durability == "on disk"
                work = await jobs.running_call()
                assert await jobs.finish(work) == OURS
                await jobs.tick()
                assert jobs.store.is_well
        else:
            for _ in range(2):
                with pytest.raises(StoreUnusable, match=r"it refuses INFO \(NOPERM .*allow its user \+info"):
                    async with opened(url, wall):
                        pass
    assert caplog.messages == []


async def test_a_redis_that_refuses_everything_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """What counts is whether operations succeed; one refused command beside others that work is nothing."""
    with redis_server() as server:
        server.do("ACL", "SETUSER", "gateway", "on", ">SECRET", "~*", "&*", "+@all", "-@dangerous")
        link = Link(SharedState(f"redis://gateway:SECRET@127.0.0.1:{server.port}/0"))
        changes: list[bool] = []
        link.on_change(changes.append)
        await link.start()
        with pytest.raises(StoreGone):
            await link.command_near(b"x", b"INFO")
        for _ in range(5):
            await link.command(b"GET", link.key("x"))
        server.do("ACL", "SETUSER", "gateway", "-@all")

        async def is_gone() -> bool:
            with suppress(StoreGone):
                await link.command(b"GET", link.key("x"))
            return not link.is_up

        await until_true(is_gone)
        assert "NOPERM" in link.reason
        server.do("ACL", "SETUSER", "gateway", "+@all")

        async def is_back() -> bool:
            return link.is_up

        await until_true(is_back)
        await link.aclose()
    assert changes == [True, False, True]
