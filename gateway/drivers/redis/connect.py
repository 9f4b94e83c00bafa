"""The addresses of the servers, the master that sentinels name, and how a connection to a server is made.

It must not know which commands are sent. Invariants: no message and no repr of this module shows a credential; sentinels are
asked anew after every failure, and a former master is recognised because the probe writes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio import Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.fleet.lease.lease import SharedState

Node = tuple[str, int]
"""Host and port."""
Kind = Literal["single", "sentinel", "cluster"]

TROUBLE = (RedisError, OSError, asyncio.TimeoutError)
"""The exceptions that a server which cannot be used may raise."""
SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
PATIENCE_S = 1.0
"""Seconds that a client of `client_of` waits for a connection, or for a reply."""
PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store url, parsed."""

    kind: Kind
    nodes: tuple[Node, ...]
    """The named servers: of a cluster some of them, of a sentinel url the sentinels."""
    is_tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    ca_file: str | None = None

    def __str__(self) -> str:
        """Returns the url without its login, for log lines."""
        scheme = next(name for name, means in SCHEMES.items() if means == (self.kind, self.is_tls))
        who = "***@" if self.username or self.password else ""
        path = f"/{self.service}/{self.db}" if self.service else f"/{self.db}"
        return f"{scheme}://{who}{','.join(named(node) for node in self.nodes)}{path}"


def named(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(shared: SharedState) -> StoreAddress:
    """Parses the url, which the config has checked; raises a ValueError that does not quote it."""
    try:
        return _address_of(shared)
    except (ValueError, KeyError):  # its message may quote a part of the password
        raise ValueError(
            f"the store's url is not {', '.join(SCHEMES)}://host:port/database (for sentinels: /service/database) or has "
            "options; odd characters of a password are written as %xx"
        ) from None


def _address_of(shared: SharedState) -> StoreAddress:
    parts = urlsplit(shared.url)
    kind, is_tls = SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, _, db = parts.path.strip("/").rpartition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    if kind == "sentinel" and not service:  # no database is given
        service, db = db, ""
    if parts.query or parts.fragment or (kind == "sentinel" and not service) or not (db or "0").isdecimal():
        raise ValueError
    return StoreAddress(
        kind=kind,
        nodes=tuple(_node(host, PORTS[kind]) for host in hosts.split(",")),
        is_tls=is_tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        service=unquote(service),
        ca_file=shared.ca_file,
    )


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _options(address: StoreAddress, node: Node) -> dict[str, Any]:
    """Returns what redis-py needs for a connection. RESP2: each reply has one form, and older servers speak it, too."""
    tls = {"ssl_ca_certs": address.ca_file, "ssl_check_hostname": True} if address.is_tls else {}
    return {
        "host": node[0],
        "port": node[1],
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "protocol": 2,
        "driver_info": None,
        "client_name": "gateway",
        "retry": Retry(NoBackoff(), 0),
        **tls,
    }


def always(node: Node) -> Callable[[], Awaitable[Node]]:
    """Returns a function that finds a server which is always at this address."""

    async def find() -> Node:
        return node

    return find


async def connect(address: StoreAddress, node: Node) -> Connection:
    """Returns a connection after its handshake; has no timeout, the caller sets one."""
    kind = SSLConnection if address.is_tls else Connection
    connection = kind(**_options(address, node), socket_timeout=None, socket_connect_timeout=None)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has no type for it
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def client_of(address: StoreAddress, node: Node) -> Redis:
    """Returns redis-py's client of one server, which connects when it is used and tries nothing twice."""
    return Redis(
        **_options(address, node),
        ssl=address.is_tls,
        socket_timeout=PATIENCE_S,
        socket_connect_timeout=PATIENCE_S,
    )


async def master_of(address: StoreAddress) -> Node:
    """Asks all sentinels at once and returns the first master that one names: a sentinel that hangs delays nothing.

    Raises as a connection does when no sentinel knows it; has no timeout, the caller sets one.
    """
    tasks = [asyncio.create_task(_ask(address, sentinel)) for sentinel in address.nodes]
    trouble: BaseException | None = None
    try:
        for first in asyncio.as_completed(tasks):
            try:
                return await first
            except TROUBLE as error:
                trouble = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise RedisConnectionError(f"no sentinel knows the master of {address.service}: {trouble}")


async def _ask(address: StoreAddress, sentinel: Node) -> Node:
    try:
        return await _master_of(replace(address, db=0), sentinel)
    except AuthenticationError:  # the url's login may be one of the servers only
        return await _master_of(replace(address, db=0, username=None, password=None), sentinel)


async def _master_of(address: StoreAddress, sentinel: Node) -> Node:
    async with client_of(address, sentinel) as client:
        match await client.sentinel_get_master_addr_by_name(address.service):
            case [bytes(host), int(port)]:
                return host.decode(), port
    raise RedisConnectionError("it does not know the service")
