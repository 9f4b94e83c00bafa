"""The link to Redis: what is asked is answered or refused in time, whatever the server and its askers do."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.crc import key_slot

from gateway.core.types import SharedState
from gateway.drivers.redis import link as redis_link
from gateway.drivers.redis import wire
from gateway.drivers.redis import wire as redis_server_module
from gateway.drivers.redis.link import Link, StoreGone, StoreRefused, load_script, script_of
from gateway.drivers.redis.wire import (
    PATIENCE_S,
    OperationCounts,
    ServerOptions,
    StoreCommand,
    StoreServer,
    address_of,
    always,
    connect,
    master_of,
)
from tests.rows import rows
from tests.support.redis_servers import RedisCluster, RedisServer, proxied, redis_server, redis_watched

ECHO = script_of("echo", "return ARGV[1]")
PUT = script_of("put", "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])")
BOUND_S = 10.0
"""More than anything here takes; what does not end by then does not end."""


@asynccontextmanager
async def linked(url: str, *, is_there: bool = True, **options: Any) -> AsyncIterator[Link]:
    """A link, up if anybody is there, with more patience than in production: the machine may be busy."""
    link = Link(SharedState(url, **{"timeout_s": 0.4, **options}))
    try:
        await link.start()
        if is_there:
            await until(lambda: link.is_up)
        yield link
    finally:
        await link.aclose()


@pytest.fixture
async def link(a_redis: RedisServer) -> AsyncIterator[Link]:
    async with linked(a_redis.url) as link:
        yield link


async def until(fact: Callable[[], object]) -> None:
    """What another process does."""
    async with asyncio.timeout(BOUND_S):
        while not fact():  # noqa: ASYNC110 - it is another process that changes
            await asyncio.sleep(0.002)


async def until_answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                return await ask()
            except StoreGone:
                await asyncio.sleep(0.002)


async def outcomes(*futures: asyncio.Future[Any]) -> list[Any]:
    async with asyncio.timeout(BOUND_S):
        return await asyncio.gather(*futures, return_exceptions=True)


def told(link: Link) -> list[bool]:
    changes: list[bool] = []
    link.on_change(changes.append)
    return changes


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gateway.store"]


# What is asked and answered.


async def test_a_script_returns_bytes_ints_and_lists(link: Link) -> None:
    """Floats arrive as `repr` says them."""
    script = script_of("all", "return {ARGV[1], ARGV[2], 3, {KEYS[1]}, tonumber(ARGV[3])}")

    reply = await link.run(script, [b"k"], [b"\0\xff", 0.1 + 0.2, 7])

    assert reply == [b"\0\xff", b"0.30000000000000004", 3, [b"k"], 7]


async def test_a_map_comes_as_a_list_of_names_and_values(link: Link) -> None:
    """As RESP2 has it, which every server speaks."""
    await link.command("HSET", b"h", "a", 1, "b", 2)

    assert await link.command("HGETALL", b"h") == [b"a", b"1", b"b", b"2"]


async def test_a_script_has_the_servers_time_unless_given_one(link: Link) -> None:
    """Replicas' clocks are not asked."""
    script = script_of("now", "return string.format('%.6f', now_s(ARGV[1]))")

    here, given = float(await link.run(script, [b"k"], [""])), await link.run(script, [b"k"], [12.5])

    seconds, micros = await link.command("TIME")
    assert 0 <= int(seconds) + int(micros) / 1e6 - here < BOUND_S
    assert given == b"12.500000"


async def test_scripts_of_the_folder_have_the_prelude(tmp_path: Path) -> None:
    """Every script of the store can be loaded by its name."""
    from gateway.drivers.redis.wire import FOLDER  # only this test cares where they are

    names = [path.stem for path in FOLDER.glob("*.lua") if path.stem != "prelude"]

    assert all(b"local function now_s(given)" in load_script(name).text for name in names)


async def test_what_is_asked_together_goes_out_together(a_redis: RedisServer) -> None:
    """A thousand commands over one connection cost the server some reads, not a thousand."""
    async with linked(a_redis.url, connections=1, timeout_s=5.0) as link:
        await link.command("PING")
        before = a_redis.client().info("stats")["total_reads_processed"]

        await asyncio.gather(*[link.command("PING") for _ in range(1000)])

        assert a_redis.client().info("stats")["total_reads_processed"] - before < 50


async def test_jobs_of_one_key_keep_their_order(link: Link) -> None:
    """Who asks for two things of one key need not wait for the first."""
    for number in range(500):
        link.command("RPUSH", b"list", number)
        link.command("RPUSH", b"other%d" % number, number)

    assert await link.command("LRANGE", b"list", 0, -1) == [b"%d" % number for number in range(500)]


async def test_connections_are_bounded(a_redis: RedisServer) -> None:
    """However much is asked at once."""
    async with linked(a_redis.url, connections=3) as link:
        await outcomes(*[link.command("GET", b"k%d" % number) for number in range(500)])

        clients = [client for client in a_redis.client().client_list() if client["name"] == "gateway"]

    assert len(clients) == 3


async def test_a_part_that_cannot_be_sent_is_the_askers_error(link: Link) -> None:
    """It raises at once, and disturbs nobody."""
    with pytest.raises(TypeError):
        link.command("SET", b"k", None)  # type: ignore[arg-type]  # that is the mistake

    assert await link.command("PING") == b"PONG"


async def test_what_is_asked_is_counted(link: Link) -> None:
    """Commands sent, and those without an answer."""
    before = link.operations

    await outcomes(link.command("PING"), link.command("PING"), link.command("NONSENSE"))

    assert (link.operations - before, link.failures) == (3, 1)


# Keys.

ODD = ["", "a", "b", "{", "}", "{}", "{a}", ":", "*", "a:b", "1:", "\0", "é", "a" * 100]


def test_keys_of_odd_parts_never_collide() -> None:
    """Neither by where one part ends, nor by what a part looks like."""
    link = Link(SharedState("redis://127.0.0.1"))
    parts = [(), *product(ODD), *product(ODD, ODD), ("a", "bc"), ("ab", "c"), ("a", "b", "c")]

    keys = {link.key("use", *each) for each in parts} | {link.key("us", *each) for each in parts}

    assert len(keys) == 2 * len(parts)
    assert not any(set(b"*?[]\\ \0") & set(key) for key in keys)


@rows("namespace", ["gateway", "a{b}c", "{}", "a:b", ""])
def test_a_key_has_one_slot_whatever_is_appended(namespace: str) -> None:
    """The digest of the parts decides it, not the namespace, nor a suffix."""
    link = Link(SharedState("redis://127.0.0.1", namespace=namespace))

    keys = [link.key("use", part) for part in ODD]

    assert all(
        key_slot(key) == key_slot(key + b":{x}") == key_slot(link.key("other", part))
        for key, part in zip(keys, ODD, strict=True)
    )
    assert len({key_slot(key) for key in keys}) > len(ODD) // 2


# Who loses interest.


async def test_cancelled_operations_never_mix_up_replies(link: Link) -> None:
    """Every reply is the one to its own question, however many others were given up before, at whatever moment."""
    mixed = await ask_and_cancel(link, 1000)

    assert mixed == []


async def ask_and_cancel(link: Link, operations: int) -> list[tuple[int, object]]:
    """What came back and was not what was asked for; two of three are given up, at all stages of their way."""
    mixed: list[tuple[int, object]] = []

    async def ask(nonce: int) -> None:
        reply = await link.run(ECHO, [b"k%d" % (nonce % 7)], [nonce])
        if reply != b"%d" % nonce:
            mixed.append((nonce, reply))

    for first in range(0, operations, 50):
        tasks = [asyncio.create_task(ask(nonce)) for nonce in range(first, first + 50)]
        for turn in range(first // 50 % 6):
            await asyncio.sleep(0)
            for task in tasks[turn::6]:
                task.cancel()
        for task in tasks[first // 50 % 3 :: 3]:
            task.cancel()
        mixed.extend(
            (-1, end) for end in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(end, Exception)
        )
    return mixed


async def test_what_nobody_looks_at_is_not_told_of(a_redis: RedisServer) -> None:
    """A future that has failed unseen is no defect."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with linked(a_redis.url) as link:
        link.command("NONSENSE")
        await link.command("PING")
        await link.aclose()
        link.command("PING")
        gc.collect()
        await asyncio.sleep(0)

    assert complaints == []


# Trouble.

Trouble = tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]


@pytest.fixture(params=["stopped", "killed", "hanging", "blackhole", "refused"])
async def troubled(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Trouble]]:
    """The url of a server, how it goes, and how it comes back."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        proxy = await stack.enter_async_context(proxied(server.port))

        def in_turn(do: Callable[[], object]) -> Callable[[], Awaitable[None]]:
            async def done() -> None:
                do()

            return done

        ways: dict[str, Trouble] = {
            "stopped": (in_turn(server.stop), in_turn(server.start)),
            "killed": (in_turn(server.kill), in_turn(server.start)),
            "hanging": (in_turn(server.pause), in_turn(server.resume)),
            "blackhole": (in_turn(proxy.blackhole), proxy.recover),
            "refused": (proxy.refuse, proxy.recover),
        }
        way: str = request.param
        yield (proxy.url if way in ("blackhole", "refused") else server.url), ways[way]


async def test_a_store_that_goes_and_comes_back(
    troubled: tuple[str, Trouble], caplog: pytest.LogCaptureFixture
) -> None:
    """All that is asked ends; once it is gone at once; its going and coming is told once; then it serves again."""
    url, (go, come) = troubled
    async with linked(url) as link:
        changes = told(link)
        await link.run(PUT, [b"k"], [1])
        await go()

        ends = await outcomes(*[link.run(PUT, [b"k%d" % number], [1]) for number in range(100)])
        assert all(isinstance(end, StoreGone) for end in ends)
        await until(lambda: not link.is_up)
        assert link.reason
        assert link.command("PING").done()

        await come()
        await until(lambda: link.is_up)
        assert await until_answered(lambda: link.run(PUT, [b"k"], [2])) == b"2"
        assert changes == [False, True]
        assert ["cannot be used" in line for line in said(caplog)] == [True, False]


async def test_nobody_there_at_the_start() -> None:
    """`start` returns all the same, what is asked fails at once, and it is found when it comes."""
    server = RedisServer()
    try:
        async with linked(server.url, is_there=False, timeout_s=0.05) as link:
            changes = told(link)
            assert (link.is_up, link.command("PING").done()) == (False, True)

            server.start()

            await until(lambda: link.is_up)
            assert changes == [True]
            assert await link.command("PING") == b"PONG"
    finally:
        server.close()


async def test_one_slow_command_is_no_outage(a_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Who waits for it falls back; the server is asked whether it is there, and nobody hears of a doubt that was none."""
    async with linked(a_redis.url, timeout_s=0.1) as link:
        changes = told(link)

        with pytest.raises(StoreGone):
            await link.command("BLPOP", b"nothing", 2)

        assert await until_answered(lambda: link.command("PING")) == b"PONG"
        assert (changes, said(caplog)) == ([], [])


async def test_slow_commands_in_a_row_are_an_outage(a_redis: RedisServer) -> None:
    """A server that answers the probe and nothing else is gone, too."""
    async with linked(a_redis.url, timeout_s=0.1) as link:
        changes = told(link)

        for _ in range(2):
            await until_answered(lambda: link.command("PING"))
            await outcomes(link.command("BLPOP", b"nothing", 2))

        assert changes[:1] == [False]
        await until(lambda: link.is_up)


async def test_a_command_behind_a_hanging_one_waits_no_longer(a_redis: RedisServer) -> None:
    """The deadline runs from the moment it is asked, though it was never sent."""
    async with linked(a_redis.url, timeout_s=0.1, connections=1) as link:
        first = link.command("BLPOP", b"nothing", 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        ends = await outcomes(first, *[link.command("PING") for _ in range(10)])

        assert all(isinstance(end, StoreGone) for end in ends)


async def test_an_answer_that_came_while_this_process_was_busy_is_not_late(
    a_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read before the deadline is looked at, though that has passed."""
    monkeypatch.setattr(wire, "GRACE_S", 2.0)  # enough for a server on a busy machine
    async with linked(a_redis.url, timeout_s=0.05) as link:
        sent, unsent = link.command("PING"), link.command("GET", b"k")

        time.sleep(0.1)  # noqa: ASYNC251 - the loop hangs

        assert await outcomes(sent, unsent) == [b"PONG", None]


async def test_killed_connections_cost_at_most_what_was_under_way(a_redis: RedisServer, link: Link) -> None:
    """They are made anew at once, and nobody is told of an outage."""
    changes = told(link)

    a_redis.client().client_kill_filter(_type="normal", skipme=True)

    assert await until_answered(lambda: link.command("PING")) == b"PONG"
    await until_answered(lambda: link.run(ECHO, [b"other"], [1]))
    assert changes == []


async def test_a_connection_closed_while_idle_costs_nobody_an_answer(a_redis: RedisServer, link: Link) -> None:
    """Servers close what has not been used for long."""
    connections = ["gateway"] * 4
    async with asyncio.timeout(BOUND_S):
        while connections:
            a_redis.client().client_kill_filter(_type="normal", skipme=True)
            connections = [each["name"] for each in a_redis.client().client_list() if each["name"] == "gateway"]
            await asyncio.sleep(0.01)  # the loop hears of it

    ends = await outcomes(*[link.command("INCR", b"k%d" % number) for number in range(20)])

    assert ends == [1] * 20


async def test_a_forgotten_script_is_told_again(a_redis: RedisServer, link: Link) -> None:
    """Within the same question, for all who ask for it at once; then by its digest as before."""
    await link.run(PUT, [b"k"], [0])
    a_redis.client().script_flush()

    assert await asyncio.gather(*[link.run(PUT, [b"k%d" % n], [n]) for n in range(40)]) == [
        b"%d" % n for n in range(40)
    ]
    assert a_redis.client().script_exists(PUT.sha.decode()) == [True]


async def test_a_script_that_fails_is_not_the_stores_fault(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """Only who asked is told, and the log once."""
    changes = told(link)
    broken = script_of("broken", "return redis.call('INCR', KEYS[1], ARGV[1])")

    ends = await outcomes(*[link.run(broken, [b"k"], ["secret"]) for _ in range(5)])

    assert all(isinstance(end, StoreRefused) for end in ends)
    assert (changes, await link.command("PING")) == ([], b"PONG")
    assert len(said(caplog)) == 1
    assert "broken" in said(caplog)[0]


async def test_a_replica_is_no_store() -> None:
    """It answers, but nothing can be kept in it; it serves when it has become a master."""
    with redis_server("--replicaof", "127.0.0.1 1") as server:
        async with linked(server.url, is_there=False) as link:
            await until(lambda: "read only" in link.reason)
            assert not link.is_up

            server.do("REPLICAOF", "NO", "ONE")

            await until(lambda: link.is_up)


async def test_a_demoted_master_is_gone_at_the_first_write() -> None:
    """What scripts are refused tells it, though all is answered in time."""
    with redis_server() as server:
        async with linked(server.url) as link:
            await link.run(PUT, [b"k"], [1])
            server.do("REPLICAOF", "127.0.0.1", "1")

            assert isinstance((await outcomes(link.run(PUT, [b"k"], [1])))[0], StoreGone)

            await until(lambda: not link.is_up)


async def test_a_full_server_is_gone() -> None:
    """Until there is room again."""
    with redis_server() as server:
        async with linked(server.url) as link:
            server.client().config_set("maxmemory", 1)
            assert isinstance((await outcomes(link.run(PUT, [b"k"], [1])))[0], StoreGone)
            await until(lambda: not link.is_up)
            assert "memory" in link.reason

            server.client().config_set("maxmemory", 0)

            await until(lambda: link.is_up)


async def test_data_of_another_type_are_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another program has left under our keys: it is said, with what to do; and over when it is gone."""
    monkeypatch.setattr(redis_server_module, "SPOILED_S", 0.2)
    count = script_of("count", "return redis.call('HINCRBY', KEYS[1], 'n', ARGV[1])")
    with redis_server() as server:
        async with linked(server.url) as link:
            server.do("LPUSH", "k", "theirs")

            assert isinstance((await outcomes(link.run(count, [b"k"], [1])))[0], StoreGone)
            await until(lambda: not link.is_up)
            assert "of another type" in link.reason
            assert "namespace" in link.reason

            server.do("DEL", "k")
            await until(lambda: link.is_up)

            assert await link.run(count, [b"k"], [1]) == 1


async def test_a_server_without_resp3_will_do() -> None:
    """Nothing of the newer protocol is asked of any server."""
    with redis_server("--rename-command", "HELLO", "") as server:
        async with linked(server.url) as link:
            await link.command("HSET", b"h", "a", 1)
            assert await link.command("HGETALL", b"h") == [b"a", b"1"]
            assert await link.run(PUT, [b"k"], [1]) == b"1"
            await hears(link)


async def test_who_listens_badly_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The others are told, and the store is found again."""
    with redis_server() as server:
        async with linked(server.url) as link:
            link.on_change(lambda _: 1 / 0)  # type: ignore[arg-type]  # it returns nothing
            changes = told(link)

            server.stop()
            await outcomes(link.command("PING"))
            await until(lambda: changes == [False])
            server.start()

            await until(lambda: changes == [False, True])


# Credentials.


async def test_a_user_with_odd_characters() -> None:
    """The url says them as %xx."""
    with redis_server() as server:
        server.do("ACL", "SETUSER", "us@er:1/é", "on", ">p:a@s/s%#?é", "~*", "&*", "+@all")

        async with linked(f"redis://us%40er%3A1%2F%C3%A9:p%3Aa@s%2Fs%25%23%3F%C3%A9@127.0.0.1:{server.port}/3") as link:
            assert (await link.command("ACL", "WHOAMI")).decode() == "us@er:1/é"


@pytest.mark.parametrize("renamed", [[], ["AUTH"]])
async def test_a_wrong_password_is_said_and_not_shown(renamed: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the log nor in the reason, even where the server repeats what it did not understand."""
    caplog.set_level(logging.DEBUG)
    options = [part for name in renamed for part in ("--rename-command", name, "")]
    with redis_server("--requirepass", "right", *options) as server:
        async with linked(f"redis://someone:s3cret@127.0.0.1:{server.port}/0", is_there=False) as link:
            await until(lambda: said(caplog))

            assert (link.is_up, "s3cret" in link.reason) == (False, False)
    assert len(said(caplog)) == 1
    assert not any(secret in caplog.text + repr(link) for secret in ("s3cret", "someone"))


@pytest.mark.parametrize(
    "url",
    [
        "http://u:s3cret@h",
        "redis://u:s3cret/x@h",
        "redis://:s3cret#x@h",
        "redis://u:s3cret@h:port/0",
        "redis://u:s3cret@h/0?x=1",
        "redis://u:s3cret@h/db",
        "redis+sentinel://u:s3cret@h",
        "redis://[u:s3cret@h",
        "",
    ],
)
async def test_a_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    """What can be read as a port may be a part of a password."""
    with pytest.raises(ValueError, match=r"\w") as refused:
        Link(SharedState(url))

    assert not any(secret in str(refused.value) for secret in ("s3cret", "u:"))


async def test_tls_checks_who_the_server_is(tmp_path: Path) -> None:
    """With the authority that is configured, and with no other."""
    authority, certificate = tmp_path / "ca.pem", tmp_path / "server.pem"
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(authority))
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    files = [
        f"--tls-{name}-file={path}"
        for name, path in (("cert", certificate), ("key", certificate), ("ca-cert", authority))
    ]
    with redis_server(*[part for file in files for part in file.split("=")], "--tls-auth-clients", "no") as server:
        tls = RedisServer()
        server.client().config_set("tls-port", tls.port)
        url = f"rediss://127.0.0.1:{tls.port}/0"
        async with (
            linked(url, connections=1, ca_file=str(authority)) as link,
            linked(url, connections=1, is_there=False) as stranger,
        ):
            await until(lambda: link.is_up)
            await until(lambda: "certificate" in stranger.reason)

            assert await link.run(PUT, [b"k"], [1]) == b"1"
            await hears(link)  # over a client of its own
            assert not stranger.is_up
        tls.close()


# Hearing.


@asynccontextmanager
async def hearing(link: Link, heard: Callable[[bytes], None]) -> AsyncIterator[list[None]]:
    """Subscribed; how often, is in the list."""
    joined: list[None] = []
    task = asyncio.create_task(link.subscribe(b"news", heard, lambda: joined.append(None)))
    await until(lambda: joined)
    try:
        yield joined
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hears(link: Link) -> None:
    heard: list[bytes] = []
    async with hearing(link, heard.append):
        await link.command("PUBLISH", b"news", b"one")
        await link.command("PUBLISH", b"news", b"two")
        await until(lambda: len(heard) == 2)
    assert heard == [b"one", b"two"]


async def test_what_is_published_is_heard(link: Link) -> None:
    """In its order."""
    await hears(link)


async def test_a_lost_subscription_is_made_anew(a_redis: RedisServer, link: Link) -> None:
    """Who listens is told, since something may have been missed."""
    heard: list[bytes] = []
    async with hearing(link, heard.append) as joined:
        a_redis.client().client_kill_filter(_type="pubsub")
        await until(lambda: len(joined) == 2)

        await link.command("PUBLISH", b"news", b"one")

        await until(lambda: heard == [b"one"])


async def test_a_silent_subscription_is_found_out(a_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks alive and hears nothing: the server is asked now and then, and no answer ends it."""
    monkeypatch.setattr(redis_link, "ASK_AFTER_S", 0.05)
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.25)
    async with proxied(a_redis.port) as proxy, linked(proxy.url) as link, hearing(link, lambda _: None) as joined:
        before = proxy.accepted
        proxy.blackhole()
        await until(lambda: proxy.accepted >= before + 2)
        assert len(joined) == 1

        await proxy.recover()

        await until(lambda: len(joined) >= 2)


def pings(server: RedisServer) -> int:
    """How many there were."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"])


async def test_a_quiet_subscription_goes_on(a_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has said that it is there, so it is not made anew."""
    monkeypatch.setattr(redis_link, "ASK_AFTER_S", 0.02)
    async with linked(a_redis.url) as link, hearing(link, lambda _: None) as joined:
        before = pings(a_redis)

        await until(lambda: pings(a_redis) >= before + 3)

        assert len(joined) == 1


async def test_a_listener_that_fails_goes_on_hearing(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """The log is told once."""
    heard: list[bytes] = []

    def fails(message: bytes) -> None:
        heard.append(message)
        raise RuntimeError("no")

    async with hearing(link, fails):
        for number in range(3):
            await link.command("PUBLISH", b"news", number)
        await until(lambda: len(heard) == 3)

    assert len(said(caplog)) == 1


# Many servers.


async def test_a_cluster_is_one_store(a_cluster: RedisCluster) -> None:
    """Each key is asked of the server that has its slot, right from the start, and news is heard from all."""
    async with linked(a_cluster.url) as link:
        keys = [link.key("use", str(number)) for number in range(60)]

        assert await asyncio.gather(*[link.run(PUT, [key], [1]) for key in keys]) == [b"1"] * 60

        assert all(node.client().dbsize() > 5 for node in a_cluster.nodes)
        assert await ask_and_cancel(link, 300) == []
        await hears(link)


async def test_one_seed_leads_to_the_whole_cluster(a_cluster: RedisCluster) -> None:
    """The others are found through it."""
    async with linked(f"redis+cluster://127.0.0.1:{a_cluster.nodes[1].port}") as link:
        keys = [link.key("use", str(number)) for number in range(30)]

        assert await asyncio.gather(*[link.run(PUT, [key], [1]) for key in keys]) == [b"1"] * 30


async def test_a_server_that_is_no_cluster_is_told_of(a_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Once, as that it is not found."""
    async with linked(
        a_redis.url.replace("redis://", "redis+cluster://someone:s3cret@"), is_there=False, timeout_s=0.05
    ) as link:
        await until(lambda: said(caplog))
        assert link.command("GET", b"k").done()

    assert len(said(caplog)) == 1
    assert "s3cret" not in caplog.text


async def test_a_hanging_node_is_the_trouble_of_its_keys_only(a_cluster: RedisCluster) -> None:
    """The others' are answered, and its own fail at once when it is known to be gone."""
    async with linked(a_cluster.url, timeout_s=0.1) as link:
        await until_answered(lambda: asyncio.gather(*[link.run(PUT, [b"%d" % n], [1]) for n in range(60)]))
        bad = [b"%d" % n for n in range(60) if a_cluster.node_of(b"%d" % n) is a_cluster.nodes[0]]
        good = [b"%d" % n for n in range(60) if b"%d" % n not in bad]
        a_cluster.nodes[0].pause()

        ends = await outcomes(*[link.run(PUT, [key], [2]) for key in bad])
        assert all(isinstance(end, StoreGone) for end in ends)
        assert link.command("GET", bad[0]).done()
        for key in good:
            assert await until_answered(partial(link.run, PUT, [key], [3])) == b"3"
        assert link.is_up

        a_cluster.nodes[0].resume()
        assert await until_answered(lambda: link.run(PUT, [bad[0]], [4])) == b"4"


async def test_a_slot_on_the_move_is_followed(a_cluster: RedisCluster) -> None:
    """While it is under way, and when it has arrived."""
    async with linked(a_cluster.url) as link:
        key = link.key("use", "moving")
        assert await link.run(PUT, [key], [1]) == b"1"
        source = a_cluster.node_of(key)
        target = next(node for node in a_cluster.nodes if node is not source)

        a_cluster.begin_move(key, target)
        source.do("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
        assert await link.command("GET", key) == b"1"
        a_cluster.end_move(key, target)
        try:
            assert await link.run(PUT, [key], [2]) == b"2"
            assert await asyncio.gather(*[link.command("GET", key) for _ in range(20)]) == [b"2"] * 20
        finally:
            a_cluster.move(key, source)


async def test_sentinels_lead_to_the_new_master() -> None:
    """After a failover it is found, and the old one is not written to."""
    with redis_watched() as watched:
        async with linked(watched.url) as link:
            assert await until_answered(lambda: link.run(PUT, [b"k"], [1])) == b"1"

            watched.fail_over()

            for number in count():
                assert await until_answered(partial(link.run, PUT, [b"k"], [number])) == b"%d" % number
                if watched.replica.do("GET", b"k") == b"%d" % number:  # the old one serves until it hears of it
                    break


# The end.


async def test_after_closing_nothing_is_left(a_redis: RedisServer) -> None:
    """No task, no connection; what is under way fails, and what is asked then fails at once."""
    async with linked(a_redis.url) as link:
        waiting = link.command("BLPOP", b"nothing", 2)
        await asyncio.sleep(0)

        await link.aclose()

        assert all(isinstance(end, StoreGone) for end in await outcomes(waiting))
        assert link.command("PING").done()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("store")]
        await until(lambda: not [each for each in a_redis.client().client_list() if each["name"] == "gateway"])


async def test_a_command_that_a_closed_server_refuses_leaves_no_deadline_behind() -> None:
    """It was redirected there: the server that had it before would take it for late, and close a sound connection."""
    late: list[StoreCommand] = []
    tally = OperationCounts()
    command = StoreCommand((b"GET", b"k"), b"k", tally)
    command.late = late.append
    command.expire_after(0.0)
    options = ServerOptions(lambda node: connect(address_of(SharedState("redis://127.0.0.1")), node), 0.05, 1, tally)
    server = StoreServer("the other", always(("127.0.0.1", 1)), options, lambda _: None)

    server.send(command)
    await asyncio.sleep(10 * wire.GRACE_S)

    assert (late, tally.failures) == ([], 1)
    with pytest.raises(StoreGone, match="has not been reached"):
        await command.future


async def test_a_sentinel_that_hangs_delays_nothing() -> None:
    """All are asked at once, and the first that names a master is believed."""

    left: list[bytes] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left.append(await reader.read())
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            is_question = b"GET-MASTER-ADDR-BY-NAME" in data
            writer.write(b"*2\r\n$9\r\n127.0.0.2\r\n$4\r\n7000\r\n" if is_question else b"+OK\r\n")
        writer.close()

    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (hang, answer)]
    hosts = ",".join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers)
    address = address_of(SharedState(f"redis+sentinel://{hosts}/main/0"))

    assert await asyncio.wait_for(master_of(address), PATIENCE_S / 2) == ("127.0.0.2", 7000)
    await until(lambda: left)  # the connection to it is closed
    for server in servers:
        server.close()
