"""News over a real server: who hears what, what is kept for those who come later, and what is believed of whose clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from gateway.core.ports import PeerMessage
from gateway.core.types import SharedState
from gateway.drivers.redis.link import Link
from gateway.fleet.redis import MEMORY_S, MOST_DELAYED, MOST_KEPT, OVER_S, RedisNews, ServerTime
from tests.support.redis_servers import RedisServer, proxied, redis_cluster, redis_server

PATIENT_S, BRISK_S = 5.0, 0.3
PAUSE = PeerMessage("pause", "openai/gpt-4o", 60.0)
NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
def namespace() -> str:
    """One per test: the server is shared."""
    return f"news-{next(NAMES)}"


@dataclass
class Replica:
    """One end, and what it has heard."""

    link: Link
    news: RedisNews
    heard: list[PeerMessage] = field(default_factory=list)

    def names(self) -> list[str]:
        return [item.name for item in self.heard]


@asynccontextmanager
async def joined(
    url: str,
    namespace: str,
    *,
    monotonic: Callable[[], float] | None = None,
    waits: bool = True,
    timeout_s: float = PATIENT_S,
) -> AsyncIterator[Replica]:
    """A replica that hears."""
    link = Link(SharedState(url, namespace=namespace, timeout_s=timeout_s))
    replica = Replica(link, RedisNews(link, b"%d" % next(NAMES), monotonic))
    replica.news.listen(replica.heard.append)
    replica.news.start()
    await link.start()
    try:
        if waits:
            await until(lambda: replica.news._held_back is None and replica.news._time._ahead_s > -1e300)
        yield replica
    finally:
        await replica.news.aclose()
        await link.aclose()


@asynccontextmanager
async def fleet(
    server: RedisServer, namespace: str, size: int = 3, timeout_s: float = PATIENT_S
) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        joins = [joined(server.url, namespace, timeout_s=timeout_s) for _ in range(size)]
        yield [await stack.enter_async_context(join) for join in joins]


async def until(fact: Callable[[], object], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.002)


async def missed(*replicas: Replica) -> None:
    """Until their links know that the store is gone: that is noticed when something is asked."""
    for replica in replicas:
        while replica.link.is_up:
            asked = replica.link.command(b"GET", b"x")
            await asyncio.wait([asked])
            asked.exception()
            await asyncio.sleep(0.002)


async def told(*replicas: Replica) -> None:
    """Until whatever was told before is heard by all that hear anything: one after the other, in order."""
    for replica in replicas:
        mark = f"mark-{next(NAMES)}"
        replica.news.tell(PeerMessage("record", mark, 0.0))
        others = [other for other in replicas if other is not replica]
        await until(lambda: all(mark in other.names() for other in others))  # noqa: B023 - awaited at once
    for replica in replicas:
        replica.heard[:] = [item for item in replica.heard if not item.name.startswith("mark-")]


# Who hears what.


async def test_all_others_hear_it_and_nobody_hears_himself(server: RedisServer, namespace: str) -> None:
    """Once each, as it was told, with what is left of its time."""
    async with fleet(server, namespace) as replicas:
        item = PeerMessage("breaker", "ünï code/\x00 {tag} *", 60.0, b"\x00 detail 1 2 \xff")
        replicas[0].news.tell(item, lasts=True)
        replicas[0].news.tell(PeerMessage("vector", "", 0.0))
        await told(*replicas)

        assert replicas[0].heard == []
        for replica in replicas[1:]:
            first, second = replica.heard
            assert (first.kind, first.name, first.detail) == (item.kind, item.name, item.detail)
            assert 59.0 < first.left_s <= 60.0
            assert second == PeerMessage("vector", "", 0.0)


async def test_another_namespace_hears_nothing(server: RedisServer, namespace: str) -> None:
    """Gateways of other fleets may use the same server."""
    async with fleet(server, namespace, 2) as replicas, joined(server.url, namespace + "x") as stranger:
        replicas[0].news.tell(PAUSE, lasts=True)
        await told(*replicas)

        assert stranger.heard == []


async def test_an_end_that_is_earlier_is_not_even_told(server: RedisServer, namespace: str) -> None:
    """All know better; one that is later is."""
    async with fleet(server, namespace) as replicas:
        for who, left_s in ((0, 50.0), (1, 20.0), (2, 70.0)):
            replicas[who].news.tell(PAUSE._replace(left_s=left_s), lasts=True)
            await told(*replicas)

        assert [round(item.left_s) for item in replicas[0].heard] == [70]
        assert [round(item.left_s) for item in replicas[1].heard] == [50, 70]
        assert [round(item.left_s) for item in replicas[2].heard] == [50]


async def test_a_listener_that_fails_disturbs_nobody(
    server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the other listener nor what comes next."""

    def fail(_: PeerMessage) -> None:
        raise RuntimeError("a defect")

    async with fleet(server, namespace, 2) as (one, other):
        other.news._listeners.insert(0, fail)
        one.news.tell(PAUSE)
        one.news.tell(PeerMessage("quota", "a", 5.0))
        await until(lambda: len(other.heard) == 2)

    assert "could not be taken" in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"1 2",
        b"x y z",
        b"1.0 2.0 ",
        b"1.0 2.0 \x01\x01\x00\x01",
        b"9 99 \x01\x01\x00\x01ab\xff",
        b"nan nan \x00\x00\x00\x00",
    ],
)
async def test_garbage_on_the_channel_is_ignored(server: RedisServer, namespace: str, message: bytes) -> None:
    """Whoever sends it."""
    async with fleet(server, namespace, 2) as replicas:
        with server.client() as client:
            client.publish(replicas[0].news._channel.decode(), message)
        replicas[0].news.tell(PAUSE)
        await told(*replicas)

        assert replicas[1].names() == [PAUSE.name]


# What lasts.


async def test_who_comes_later_hears_what_still_lasts(server: RedisServer, namespace: str) -> None:
    """The latest end of each, with what is left of it; not what was said in passing, nor what has ended."""
    async with joined(server.url, namespace) as first:
        first.news.tell(PAUSE, lasts=True)
        first.news.tell(PAUSE._replace(left_s=90.0, detail=b"longer"), lasts=True)
        first.news.tell(PAUSE._replace(kind="quota"), lasts=True)
        first.news.tell(PAUSE._replace(name="in passing"))
        first.news.tell(PAUSE._replace(name="short", left_s=0.01), lasts=True)
        await until(lambda: not first.news._telling)
        await asyncio.sleep(0.02)
        async with joined(server.url, namespace) as late:
            await until(lambda: len(late.heard) >= 2)

            assert sorted((item.kind, item.name, item.detail) for item in late.heard) == [
                ("pause", PAUSE.name, b"longer"),
                ("quota", PAUSE.name, b""),
            ]
            assert max(item.left_s for item in late.heard) == pytest.approx(90.0, abs=1.0)


async def test_what_lasts_is_heard_in_the_order_in_which_it_was_told(server: RedisServer, namespace: str) -> None:
    """Whenever it ends: the last word is the last that a newcomer hears."""
    lasting = [("hand", 5000.0), ("pause", 50.0), ("quota", 500.0), ("limit", 100.0)]
    async with joined(server.url, namespace) as first:
        for kind, left_s in lasting:
            first.news.tell(PeerMessage(kind, "p/m", left_s), lasts=True)
            await until(lambda: not first.news._telling)
        async with joined(server.url, namespace) as late:
            await until(lambda: len(late.heard) == 4)

            assert [item.kind for item in late.heard] == [kind for kind, _ in lasting]


async def test_that_something_is_over_is_heard(server: RedisServer, namespace: str) -> None:
    """With nothing left; and what comes after it is news again, however soon it ends."""
    async with fleet(server, namespace, 2) as replicas:
        for left_s in (50.0, 0.0, 5.0):
            replicas[0].news.tell(PAUSE._replace(left_s=left_s), lasts=True)
        await told(*replicas)

        assert [round(item.left_s) for item in replicas[1].heard] == [50, 0, 5]


async def test_who_comes_soon_after_hears_that_it_is_over(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have heard the beginning; after a while nobody needs to know, and what begins anew takes its place."""
    async with joined(server.url, namespace) as one:
        for name in ("a", "b"):
            one.news.tell(PAUSE._replace(name=name), lasts=True)
            one.news.tell(PAUSE._replace(name=name, left_s=0.0), lasts=True)
        one.news.tell(PAUSE._replace(name="b", left_s=5.0), lasts=True)
        monkeypatch.setattr("gateway.fleet.redis.OVER_S", 0.001)
        one.news.tell(PAUSE._replace(name="c", left_s=0.0), lasts=True)
        await until(lambda: not one.news._telling)
        async with joined(server.url, namespace) as late:
            await until(lambda: len(late.heard) >= 2)

            assert sorted((item.name, round(item.left_s)) for item in late.heard) == [("a", 0), ("b", 5)]


async def test_who_was_cut_off_catches_up(server: RedisServer, namespace: str) -> None:
    """It is subscribed again by itself, and hears what was told meanwhile."""
    async with (
        proxied(server.port) as way,
        joined(server.url, namespace) as one,
        joined(way.url, namespace, timeout_s=BRISK_S) as cut,
    ):
        await way.refuse()
        await missed(cut)
        one.news.tell(PAUSE, lasts=True)
        await until(lambda: not one.news._telling)
        await way.recover()
        await until(lambda: cut.heard)

        assert {item.name for item in cut.heard} == {PAUSE.name}
        one.news.tell(PeerMessage("quota", "after", 5.0))
        await until(lambda: "after" in cut.names())


async def test_all_of_it_has_an_end(server: RedisServer, namespace: str) -> None:
    """Nothing is in the store for longer than what lasts longest; what a shorter one says does not shorten it."""
    async with joined(server.url, namespace) as one:
        one.news.tell(PAUSE, lasts=True)
        one.news.tell(PAUSE._replace(name="short", left_s=1.0), lasts=True)
        taken = one.news.take_slot("probe:a", 5.0)
        assert not isinstance(taken, bool)
        await taken
        with server.client() as client:
            keys = [key for key in client.scan_iter(f"{namespace}:*") if b":probe:" not in key]  # the link's own
            ttls = sorted(client.pttl(key) for key in keys)

        assert len(keys) == 3
        assert 0 < ttls[0] <= 5000
        assert 55_000 < ttls[1] <= ttls[2] <= 60_000


async def test_what_is_kept_is_bounded(server: RedisServer, namespace: str) -> None:
    """What ends first goes first; and what is over goes with what comes."""
    async with joined(server.url, namespace) as one:
        for number in range(MOST_KEPT + 100):
            one.news.tell(PeerMessage("pause", f"m{number}", 60.0 + number), lasts=True)
        await until(lambda: not one.news._telling)
        hash_key, ends_key = one.news._keys
        with server.client() as client:
            assert client.zcard(ends_key) == client.hlen(hash_key) == MOST_KEPT
            assert client.zrange(ends_key, 0, 0, withscores=True)[0][1] > time.time() + 150

            client.zadd(ends_key, dict.fromkeys(client.zrange(ends_key, 0, 49), 1.0))
            one.news.tell(PeerMessage("pause", "new", 60.0), lasts=True)
            await until(lambda: not one.news._telling)
            assert client.zcard(ends_key) == client.hlen(hash_key) == MOST_KEPT - 49


# Clocks.


async def test_no_replicas_clock_is_believed(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their wall clocks are wrong, and what they count from has nothing to do with anything: what is left is right."""
    starts_at = (1e6, -5.0, 123.0)
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                joined(server.url, namespace, monotonic=lambda start=start: start + time.monotonic())  # type: ignore[misc]  # mypy infers no lambda with a default
            )
            for start in starts_at
        ]
        monkeypatch.setattr(time, "time", lambda: 5.0)
        replicas[0].news.tell(PAUSE, lasts=True)
        await told(*replicas)
        late = await stack.enter_async_context(joined(server.url, namespace, monotonic=lambda: time.monotonic() - 1e5))
        await until(lambda: late.heard)

        for replica in (*replicas[1:], late):
            assert 58.0 < replica.heard[0].left_s <= 60.0


def test_the_servers_time_is_the_one_that_travelled_least() -> None:
    """Never ahead of the server; what is said late does not put it back; and what was said long ago is forgotten."""
    here = [0.0]
    clock = ServerTime(lambda: here[0])
    clock.observe(999.0)
    clock.observe(1000.0)
    clock.observe(998.0)
    assert clock.now() == 1000.0

    here[0] = MEMORY_S
    clock.observe(1000.0 + MEMORY_S - 0.5)
    assert clock.now() == 1000.0 + MEMORY_S

    here[0] = 2 * MEMORY_S
    clock.observe(1000.0 + 2 * MEMORY_S - 0.5)
    assert clock.now() == 1000.0 + 2 * MEMORY_S - 0.5

    here[0] = 10 * MEMORY_S
    clock.observe(50.0)
    assert clock.now() == 50.0

    clock.forget()
    clock.observe(7.0)
    assert clock.now() == 7.0


# Slots.


async def slot(replica: Replica, name: str, for_s: float = 60.0) -> bool:
    answer = replica.news.take_slot(name, for_s)
    return answer if isinstance(answer, bool) else await answer


async def test_one_of_all_has_the_slot(server: RedisServer, namespace: str) -> None:
    """Who has it may take it again, and nobody else gives it away."""
    async with fleet(server, namespace) as (one, two, three):
        assert sorted(await asyncio.gather(*[slot(each, "s") for each in (one, two, three)])) == [False, False, True]
        assert await slot(two, "another")
        (holder,) = [each for each in (one, two, three) if await slot(each, "s")]
        others = [each for each in (one, two, three) if each is not holder]

        assert await slot(holder, "s")
        others[0].news.give_slot("s")
        assert not await slot(others[1], "s")

        holder.news.give_slot("s")
        async with asyncio.timeout(10):
            while not await slot(
                others[1], "s"
            ):  # it may have been asked before it was given: each has its own connection
                pass


async def test_a_slot_that_nobody_gives_back_is_free_after_its_time(server: RedisServer, namespace: str) -> None:
    """Its holder has died; while it lives and takes it again, it keeps it."""
    async with fleet(server, namespace, 2) as (one, two):
        assert await slot(one, "s", 60.0)
        assert await slot(one, "s", 0.05)
        assert not await slot(two, "s", 60.0)
        end = time.monotonic() + 5.0
        while not await slot(two, "s", 60.0):
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        assert not await slot(one, "s")


# Without the store.


async def test_without_the_store_everybody_has_the_slot(namespace: str) -> None:
    """At once, and nothing is raised."""
    async with joined("redis://127.0.0.1:1/0", namespace, waits=False, timeout_s=0.02) as alone:
        assert alone.news.take_slot("s", 5.0) is True
        alone.news.give_slot("s")
        alone.news.tell(PAUSE)


async def test_what_lasts_is_told_when_the_store_is_back(namespace: str) -> None:
    """The latest of each kind and name, with what is left by then; what was said in passing is lost."""
    with redis_server() as server:
        async with fleet(server, namespace, 2, BRISK_S) as (one, two):
            server.kill()
            await missed(one, two)
            one.news.tell(PAUSE, lasts=True)
            one.news.tell(PAUSE._replace(left_s=40.0, detail=b"the latest"), lasts=True)
            one.news.tell(PAUSE._replace(name="short", left_s=0.01), lasts=True)
            one.news.tell(PAUSE._replace(name="in passing"))
            one.news.tell(PAUSE._replace(kind="quota", left_s=0.0), lasts=True)
            server.start()
            await until(lambda: len({item[:2] for item in two.heard}) >= 2)

            heard = {(item.kind, item.name): item for item in two.heard}
            assert set(heard) == {("pause", PAUSE.name), ("quota", PAUSE.name)}
            assert 25.0 < heard["pause", PAUSE.name].left_s < 40.0
            assert heard["pause", PAUSE.name].detail == b"the latest"
            assert heard["quota", PAUSE.name].left_s == 0.0


async def test_what_is_put_off_is_bounded(namespace: str) -> None:
    """The oldest goes first."""
    async with joined("redis://127.0.0.1:1/0", namespace, waits=False, timeout_s=0.02) as alone:
        for number in range(MOST_DELAYED + 10):
            alone.news.tell(PeerMessage("pause", f"m{number}", 60.0), lasts=True)

        assert len(alone.news._delayed) == MOST_DELAYED
        assert ("pause", "m9") not in alone.news._delayed


async def test_a_lost_answer_is_told_again_unless_something_newer_was(server: RedisServer, namespace: str) -> None:
    """Telling twice does no harm; telling what is not true any more would."""
    async with fleet(server, namespace, 2) as (one, two):
        lost: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        run, one.link.run = one.link.run, lambda *_: lost  # type: ignore[method-assign]  # a link that waits
        one.news.tell(PAUSE, lasts=True)
        one.news.tell(PAUSE._replace(name="other"), lasts=True)
        one.link.run = run  # type: ignore[method-assign]  # its own again
        one.news.tell(PAUSE._replace(left_s=0.0), lasts=True)
        lost.set_exception(ConnectionError("lost"))
        await until(lambda: "other" in two.names())
        await told(one, two)

        assert [(item.name, item.left_s > 0) for item in two.heard] == [(PAUSE.name, False), ("other", True)]


async def test_what_is_heard_while_what_is_kept_is_read_comes_after_it(server: RedisServer, namespace: str) -> None:
    """Else something that is over would begin again."""
    async with fleet(server, namespace, 2) as (one, two):
        one.news.tell(PAUSE, lasts=True)
        await told(one, two)
        two.heard.clear()
        kept: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        run, two.link.run = two.link.run, lambda *_: kept  # type: ignore[method-assign]  # a link that waits
        two.news._joined()
        two.link.run = run  # type: ignore[method-assign]  # its own again
        answer = await run(two.news._stored_script, two.news._keys, ("",))
        one.news.tell(PAUSE._replace(left_s=0.0), lasts=True)
        await until(lambda: two.news._held_back)
        kept.set_result(answer)
        await until(lambda: len(two.heard) == 2)

        assert [item.left_s > 0 for item in two.heard] == [True, False]


async def test_what_is_kept_is_read_later_if_it_cannot_be_read_now(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile what others tell is heard all the same."""
    monkeypatch.setattr("gateway.fleet.redis.AGAIN_S", 0.01)
    async with fleet(server, namespace, 2) as (one, two):
        one.news.tell(PAUSE, lasts=True)
        await told(one, two)
        two.heard.clear()
        lost: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        run, two.link.run = two.link.run, lambda *_: lost  # type: ignore[method-assign]  # a link that waits
        two.news._joined()
        two.link.run = run  # type: ignore[method-assign]  # its own again
        one.news.tell(PeerMessage("quota", "meanwhile", 5.0))
        await until(lambda: two.news._held_back)
        lost.set_exception(ConnectionError("lost"))
        await until(lambda: len(two.heard) == 2)

        assert two.names() == ["meanwhile", PAUSE.name]


async def test_what_waits_to_be_told_again_gives_way_to_what_is_newer(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the newer one went."""
    monkeypatch.setattr("gateway.fleet.redis.AGAIN_S", 0.05)
    async with fleet(server, namespace, 2) as (one, two):
        lost = asyncio.get_running_loop().create_future()
        lost.set_exception(ConnectionError("lost"))
        run, one.link.run = one.link.run, lambda *_: lost  # type: ignore[method-assign]  # a link that waits
        one.news.tell(PAUSE, lasts=True)
        await until(lambda: one.news._delayed)
        one.link.run = run  # type: ignore[method-assign]  # its own again
        one.news.tell(PAUSE._replace(left_s=0.0), lasts=True)
        await until(lambda: one.news._retry is None)
        await told(one, two)

        assert [item.left_s for item in two.heard] == [0.0]


async def test_time_goes_on_while_an_answer_is_waited_for(server: RedisServer, namespace: str) -> None:
    """What is told again ends when it would have ended; what has ended by then is not told."""
    here = [0.0]
    async with joined(server.url, namespace, monotonic=lambda: here[0]) as one:
        lost: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        one.link.run = lambda *_: lost  # type: ignore[method-assign]  # a link that waits
        for name, left_s in (("long", 60.0), ("short", 5.0), ("over", 0.0)):
            one.news.tell(PAUSE._replace(name=name, left_s=left_s), lasts=True)
        here[0] = 10.0
        lost.set_exception(ConnectionError("lost"))
        await until(lambda: one.news._delayed)

        assert {name: ends_at for (_, name), (ends_at, _) in one.news._delayed.items()} == {
            "long": 60.0,
            "over": 10.0 + OVER_S,
        }
        sent: list[PeerMessage] = []
        one.news._send = lambda item, lasts: sent.append(item)  # type: ignore[method-assign]  # to see it
        here[0] = 65.0
        one.news._send_delayed()
        assert [(item.name, item.left_s) for item in sent] == [("over", 0.0)]


async def test_what_has_ended_on_its_way_is_not_heard(server: RedisServer, namespace: str) -> None:
    """It would say that something else is over, too."""
    async with fleet(server, namespace, 2) as (one, two):
        deliver, said = two.news._deliver, list[bytes]()
        two.news._deliver = said.append  # type: ignore[method-assign, assignment]  # to hold it back
        one.news.tell(PAUSE._replace(left_s=0.02))
        one.news.tell(PAUSE)
        await until(lambda: len(said) == 2)
        await asyncio.sleep(0.05)
        for message in said:
            deliver(message)

        assert [round(item.left_s) for item in two.heard] == [60]


async def test_another_server_may_have_another_time(server: RedisServer, namespace: str) -> None:
    """After each subscription the time is learned anew."""
    async with fleet(server, namespace, 2) as (one, two):
        two.news._time.observe(time.time() + 3600.0)
        two.news._joined()
        await until(lambda: two.news._held_back is None)
        one.news.tell(PAUSE)
        await told(one, two)

        assert 58.0 < two.heard[0].left_s <= 60.0


async def test_a_second_listener_and_a_second_joining_hear_what_lasts(server: RedisServer, namespace: str) -> None:
    """Whatever is going on."""
    async with fleet(server, namespace, 2) as (one, two):
        one.news.tell(PAUSE, lasts=True)
        await told(one, two)
        second: list[PeerMessage] = []
        two.news.listen(second.append)
        two.news._joined()  # while what is kept is read
        two.heard.clear()
        await until(lambda: len(two.heard) == 2)

        assert [item.name for item in second] == [PAUSE.name] * 2


async def test_in_a_cluster_it_is_the_same(namespace: str) -> None:
    """Whichever node has what is kept, and whichever is listened to."""
    with redis_cluster() as cluster:
        async with joined(cluster.url, namespace) as one, joined(cluster.url, namespace) as two:
            one.news.tell(PAUSE, lasts=True)
            await told(one, two)
            assert two.names() == [PAUSE.name]
            assert [await slot(one, "s"), await slot(two, "s")] == [True, False]
            async with joined(cluster.url, namespace) as late:
                await until(lambda: PAUSE.name in late.names())
