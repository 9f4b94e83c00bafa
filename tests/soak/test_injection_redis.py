"""Names that mean something to Redis, to a cluster's hash tags, to globs and to whoever joins parts with colons: on a shared
Redis each of them is a name like any other, and nobody gets, uses up or forgets what is another's."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.caches import keeping
from tests.e2e.harness import ADMIN_KEY, Response, Running, chat, config_of, connect, post, until
from tests.e2e.replaying import is_replayed
from tests.e2e.test_cache_replicas import Config, StartPair, pair, purge, told
from tests.support.redis_servers import RedisCluster, RedisServer, redis_cluster, redis_server

__all__ = ["pair"]

Server = RedisServer | RedisCluster

pytestmark = pytest.mark.soak

NAMES = [
    *(
        "a",
        "{a}",
        "{a",
        "a}",
        "{}",
        "{}a",
        "}{",
        "a:b",
        ":a",
        "a:",
        "a:b:c",
        "1:a",
        "a|b",
        "*",
        "a*",
        "?",
        "[a-z]",
        "^a",
    ),
    *(
        "a b",
        "%",
        "%" * 120,
        "'; DROP TABLE records; --",
        "' OR '1'='1",
        "\\",
        "\\r\\nFLUSHALL",
        "*1\\r\\n$8\\r\\nFLUSHALL",
    ),
    *(
        "$(id)",
        "${jndi:x}",
        "../../etc/passwd",
        "gateway:1:records:{a}",
        "return redis.call('FLUSHALL')",
        "ARGV[1]",
        "-1",
    ),
]
"""Tenants, names of keys, models and Idempotency-Keys."""
ODDER = ["\u00e4", "a\u0301", "\u0430", "\U0001d482", "\u4e2d\u6587", "%" * 256]
"""Models may be anything that is printable."""
OURS = re.compile(rb"(?s)gateway:1:[a-z_]+:\{[0-9a-f]{32}\}(:[a-z]+(:.{0,64})?)?")
"""Nothing of a name is in the name of a key."""
JOBS = b"gateway:1:jobs:"
STRANGER = b"stranger"
LIMIT = 2


def secret_of(name: str) -> str:
    """Of the caller with this name, who is also the tenant."""
    return f"key-number-{NAMES.index(name):03}-0123456789"


def callers(**limits: Any) -> list[dict[str, Any]]:
    """One of each name; in a config `${` would be a variable."""
    names = {name: name.replace("${", "$${") for name in NAMES}
    return [{"name": text, "tenant": text, "key": secret_of(name), **limits} for name, text in names.items()]


async def ask(replica: Running, tenant: str, *headers: str, model: str = "gpt-4o", **fields: Any) -> Response:
    body = orjson.dumps(chat(model, **fields))
    async with connect(replica.url) as peer:
        return await peer.exchange(
            post("/v1/chat/completions", body, f"authorization: Bearer {secret_of(tenant)}", *headers)
        )


@pytest.fixture(params=["one", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """With a key of somebody else's in it."""
    with redis_server() if request.param == "one" else redis_cluster() as server:
        _home_of(STRANGER, server).do("SET", STRANGER, "as it was")
        yield server


def _home_of(key: bytes, server: Server) -> RedisServer:
    return server.node_of(key) if isinstance(server, RedisCluster) else server


def assert_nothing_but_ours(server: Server) -> None:
    """All keys have our form and an end, but for the one that a stranger had put there, which is as it was."""
    home = _home_of(STRANGER, server)
    assert home.do("GET", STRANGER) == b"as it was"
    home.do("DEL", STRANGER)
    for node in server.nodes if isinstance(server, RedisCluster) else [server]:
        with node.client() as client:
            for key in client.scan_iter(count=1000):
                assert OURS.fullmatch(key) or key.startswith(JOBS), key
                assert client.pttl(key) != -1, key


def _keyed(url: str) -> dict[str, Any]:
    return config_of(url, keys=callers())


async def test_records_are_their_owners(server: Server, pair: StartPair) -> None:
    """Each tenant has each key once: an execution of its own, replayed to it by either replica, and to nobody else."""
    one, other = await pair(_keyed)
    bodies: Counter[bytes] = Counter()
    for tenant in NAMES:
        firsts = await asyncio.gather(*(ask(one, tenant, f"Idempotency-Key: {key}") for key in NAMES))
        agains = await asyncio.gather(*(ask(other, tenant, f"Idempotency-Key: {key}") for key in NAMES))
        for key, first, again in zip(NAMES, firsts, agains, strict=True):
            assert (first.status, is_replayed(first)) == (200, False), (tenant, key)
            assert (again.body, is_replayed(again)) == (first.body, True), (tenant, key)
            bodies[first.body] += 1

    assert one.upstream_calls() == len(bodies) == len(NAMES) ** 2
    assert set(bodies.values()) == {1}
    assert_nothing_but_ours(server)


def _kept(folder: Path) -> Config:
    return lambda url: config_of(url, keys=callers(), **keeping(folder))


@pytest.mark.parametrize("selector", ["tenant", "model"])
async def test_a_purge_takes_what_it_names(tmp_path: Path, server: Server, pair: StartPair, selector: str) -> None:
    """Neither a glob nor a prefix: one tenant's answers, or one model's, and of those all."""
    one, other = await pair(_kept(tmp_path))
    names = [*NAMES, *ODDER] if selector == "model" else NAMES

    async def hits(replica: Running) -> list[str]:
        found = await asyncio.gather(*(_ask_of(replica, selector, name, "cache-control: no-store") for name in names))
        assert {answer.status for answer in found} == {200}
        return [name for name, one in zip(names, found, strict=True) if one.header("x-gateway-cache") == "hit"]

    await asyncio.gather(*(_ask_of(one, selector, name) for name in names))
    await told(one)
    left = list(names)
    for name in names:
        assert await hits(other) == left
        assert await purge(other, **{selector: name}) == 1, name
        left.remove(name)
    assert await hits(one) == await hits(other) == []
    assert_nothing_but_ours(server)


async def _ask_of(replica: Running, selector: str, name: str, *headers: str) -> Response:
    if selector == "tenant":
        return await ask(replica, name, *headers)
    return await ask(replica, "a", *headers, model=name)


def _lives_alone(replica: Running) -> bool:
    """A part of a limit has not been heard of by the store: a cluster's servers are not reached all at once."""
    sharing = replica.gateway._sharing
    return sharing is None or any(share.is_alone for share in sharing._shares)


async def test_limits_are_their_owners(server: Server, pair: StartPair) -> None:
    """Each key has its own few calls a minute, at both replicas together, whatever the others use."""
    one, other = await pair(lambda url: config_of(url, keys=callers(rpm=LIMIT), admin={"key": ADMIN_KEY}))
    await until(lambda: not any(_lives_alone(replica) for replica in (one, other)))
    statuses: dict[str, list[int]] = {}
    for name in NAMES:
        statuses[name] = [(await ask(replica, name)).status for replica in (one, other) * LIMIT]

    assert {name: sorted(each) for name, each in statuses.items()} == dict.fromkeys(
        NAMES, [200] * LIMIT + [429] * LIMIT
    )
    assert_nothing_but_ours(server)
