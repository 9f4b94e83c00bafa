"""Who the servers are, and how one connection is made to one of them.

It must not know what is asked of them. Invariant: no message and no repr of this module shows a credential.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio import Connection, SSLConnection
from redis.exceptions import RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.policy.snapshot import SharedState

Node = tuple[str, int]
"""Host and port."""
Kind = Literal["single", "sentinel", "cluster"]

TROUBLE = (RedisError, OSError, asyncio.TimeoutError)
"""All that a server which cannot be used may raise."""
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
    """What a url says."""

    kind: Kind
    nodes: tuple[Node, ...]
    """Those that are named; of a cluster there may be more, of sentinels none of them is the server."""
    is_tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    ca_file: str | None = None

    def __str__(self) -> str:
        """As the url, for a log line."""
        scheme = next(name for name, means in SCHEMES.items() if means == (self.kind, self.is_tls))
        who = "***@" if self.username or self.password else ""
        path = f"/{self.service}/{self.db}" if self.service else f"/{self.db}"
        return f"{scheme}://{who}{','.join(named(node) for node in self.nodes)}{path}"


class _NotAnAddress(ValueError):
    """Says nothing of what was in the url."""


def named(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(shared: SharedState) -> StoreAddress:
    """Raises ValueError, without the url, when it is none."""
    try:
        return _address_of(shared)
    except _NotAnAddress:
        raise
    except ValueError:  # it may quote what it could not read, which may be a part of the password
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
    """One that has said hello, in RESP3 if the server can. It waits for ever: whoever asks sets the time."""
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
