"""The addresses of the servers, the master that sentinels name, and how a connection to a server is made.

It must not know which commands are sent. Invariants: no message and no repr of this module shows a credential; sentinels are
asked anew after every failure, and a former master is recognised because the probe writes to it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio import Connection, SSLConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.policy.snapshot import SharedState

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


class _NotAnAddress(ValueError):
    """The url is no store address; the message quotes nothing of it."""


def named(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(shared: SharedState) -> StoreAddress:
    """Parses the url; raises a ValueError that does not quote it."""
    try:
        return _address_of(shared)
    except _NotAnAddress:
        raise
    except ValueError:  # its message may quote a part of the password
        raise _NotAnAddress(
            "the store's url has no host:port; odd characters of a password are written as %xx"
        ) from None


def _address_of(shared: SharedState) -> StoreAddress:
    parts = urlsplit(shared.url)
    if parts.scheme not in SCHEMES:
        raise _NotAnAddress(f"the scheme of the store's url is none of {', '.join(SCHEMES)}")
    if parts.query or parts.fragment:
        raise _NotAnAddress(
            "the store's url has options; none are known, and `?` and `#` of a password are written as %xx"
        )
    kind, is_tls = SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    path = [unquote(part) for part in parts.path.split("/") if part]
    if kind == "sentinel" and not path:
        raise _NotAnAddress("the url of sentinels has to name the service: redis+sentinel://host:port/service")
    service = path.pop(0) if kind == "sentinel" else ""
    return StoreAddress(
        kind=kind,
        nodes=tuple(_node(host, PORTS[kind]) for host in hosts.split(",")),
        is_tls=is_tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=_db(path),
        service=service,
        ca_file=shared.ca_file,
    )


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _db(path: list[str]) -> int:
    if not path:
        return 0
    if path[1:] or not path[0].isdecimal():
        raise _NotAnAddress("the url's path is the number of a database")
    return int(path[0])


async def connect(address: StoreAddress, node: Node) -> Connection:
    """Returns a connection after its handshake, in RESP3 if the server can; has no timeout, the caller sets one."""
    try:
        return await _connected(address, node, 3)
    except ResponseError as error:
        if "HELLO" not in str(error).upper() and "NOPROTO" not in str(error):
            raise
    return await _connected(address, node, 2)


async def _connected(address: StoreAddress, node: Node, protocol: int) -> Connection:
    connection = _connection(address, node, protocol)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def _connection(address: StoreAddress, node: Node, protocol: int) -> Connection:
    options: dict[str, Any] = {
        "host": node[0],
        "port": node[1],
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "protocol": protocol,
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "driver_info": None,
        "client_name": "gateway",
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if address.is_tls:
        return SSLConnection(**options, ssl_ca_certs=address.ca_file, ssl_check_hostname=True)
    return Connection(**options)


async def master_of(address: StoreAddress) -> Node:
    """Asks all sentinels at once and returns the first master that one names.

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
    sentinels = replace(address, db=0)
    try:
        connection = await connect(sentinels, sentinel)
    except AuthenticationError:  # the url's login may be one of the servers only
        connection = await connect(replace(sentinels, username=None, password=None), sentinel)
    try:
        await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
        match await connection.read_response():
            case [bytes(host), bytes(port)]:
                return host.decode(), int(port)
        raise RedisConnectionError("it does not know the service")
    finally:
        await connection.disconnect(nowait=True)
