"""Reads the `state` section, and then the address of a shared Redis: the store of state that outlives a call.

The section is one text (`memory`, `sqlite:///FILE`, the URL of a Redis) or, for a Redis, a mapping. No connection is made:
a config is sound whether or not its Redis can be reached. Invariant: neither URL nor password is in any message.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

from pydantic import AfterValidator, Field

from gateway.core.config.fields import (
    Count,
    Duration,
    Section,
    Text,
    is_loopback,
    problem_of,
    refuse_unfilled,
)
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec
from gateway.core.config.schema import ConfigFile, Entry, check
from gateway.core.config.source import Document, Path, beside, is_file, kind_of
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import SharedState

MEMORY: Final = "memory"
REDIS: Final = "redis"
SQLITE: Final = "sqlite:///"
_BUILT_IN: Final = SharedState("")
_HERE: Path = ("state",)


def _url(text: str) -> str:
    try:
        parse_redis_url(text)
    except ValueError as error:
        raise problem_of(str(error)) from None
    return text


def _login(text: str) -> str:
    if not text.isprintable():
        raise problem_of("must be printable; is there a line break at its end?")
    refuse_unfilled(text)
    return text


def _namespace(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise problem_of("must be made of letters, digits, dots, - and _, 64 of them at most")
    return name


def _timeout(seconds: float) -> float:
    if not 0.005 <= seconds <= 1:
        raise problem_of("must be between 5ms and 1s")
    return seconds


Login = Annotated[Text, AfterValidator(_login)]


class RedisEntry(Entry):
    """The Redis that replicas share; its URL alone means the same as a section with nothing else in it."""

    stand_ins: ClassVar[Section] = {"redis": "redis://none"}

    redis: Annotated[str, AfterValidator(_url)] = Field(repr=False)
    username: Login | None = Field(default=None, repr=False)
    password: Login | None = Field(default=None, repr=False)
    namespace: Annotated[str, AfterValidator(_namespace)] = _BUILT_IN.namespace
    timeout: Annotated[Duration, AfterValidator(_timeout)] = _BUILT_IN.timeout_s
    connections: Annotated[Count, Field(le=64)] = _BUILT_IN.connections
    replicas: Annotated[Count, Field(le=1000)] = _BUILT_IN.replicas
    ca_file: Text | None = None


STATE: Final[EntryField[Any]] = EntryField("state", Any, MEMORY, after="admin")


class StateSection(SectionSpec):
    """The section `state`, and the notices about a Redis, of other sections too."""

    file_fields = (STATE,)

    def read_state(self, document: Document, config: ConfigFile) -> tuple[str, SharedState | None]:
        return state_section(document, STATE.of(config))

    def store_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        yield from _redis_notices("state", snapshot.shared)
        for section in reading.sections:
            for name, redis in section.stores(snapshot).items():
                yield from _redis_notices(name, redis if redis != snapshot.shared else None)


def state_section(document: Document, state: object) -> tuple[str, SharedState | None]:
    """Returns the kind of store: `memory`, `sqlite:///` with an absolute path, or `redis` with its settings."""
    if isinstance(state, dict) or (isinstance(state, str) and state.startswith(SCHEMES)):
        return REDIS, redis_at(document, _HERE, state)
    if not isinstance(state, str):
        document.complain(_HERE, f"expected text or a mapping, not {kind_of(state)}")
    elif state.startswith(SQLITE) and state.removeprefix(SQLITE).strip("/"):
        return _file(document, state.removeprefix(SQLITE)), None
    elif state != MEMORY:
        document.complain(
            _HERE,
            "must be memory, sqlite:///FILE (an absolute path has four slashes: sqlite:////var/lib/gateway.db), "
            f"or begin with {', '.join(SCHEMES)}",
        )
    return MEMORY, None


def redis_at(document: Document, here: Path, value: object) -> SharedState | None:
    """Returns the Redis that is named at this path, by its URL or a mapping; None: there is a mistake in it, which is noted."""
    if not isinstance(value, str):
        entry = check(RedisEntry, document, here)
        return _shared(document, here, entry) if entry else None
    try:
        parse_redis_url(value)
    except ValueError as error:
        document.complain(here, str(error))
        return None
    return _shared(document, here, RedisEntry(redis=value))


def _file(document: Document, written: str) -> str:
    if not written.isprintable():
        document.complain(_HERE, "holds characters that the name of a file should not have")
        return MEMORY
    file = str(FilePath(beside(document, written)).absolute())
    if os.path.isdir(file):
        document.complain(_HERE, f"{document.show(_HERE, written)} is a folder: name a file in it")
    elif not os.path.isdir(os.path.dirname(file)):
        shown = document.show(_HERE, os.path.dirname(written))
        document.complain(_HERE, f"there is no folder {shown}: make it first")
    return f"{SQLITE}{file}"


def _shared(document: Document, here: Path, entry: RedisEntry) -> SharedState:
    url = parse_redis_url(entry.redis)
    if entry.password is not None and url.login is not None:
        document.complain((*here, "password"), "and one in the URL exclude each other")
    if entry.username is not None and entry.password is None:
        document.complain((*here, "username"), "needs a `password`")
    if entry.ca_file is not None and not url.is_encrypted:
        document.complain((*here, "ca_file"), "needs an encrypted connection: rediss instead of redis")
    elif entry.ca_file is not None and not is_file(beside(document, entry.ca_file)):
        document.complain((*here, "ca_file"), f"there is no file {document.show((*here, 'ca_file'), entry.ca_file)}")
    has_login = entry.username is not None or entry.password is not None
    return SharedState(
        url=url.with_login(entry.username, entry.password) if has_login else entry.redis.rstrip("/"),
        namespace=entry.namespace,
        timeout_s=entry.timeout,
        connections=entry.connections,
        replicas=entry.replicas,
        ca_file=beside(document, entry.ca_file) if entry.ca_file is not None else None,
    )


def _redis_notices(name: str, shared: SharedState | None) -> Iterator[str]:
    url = parse_redis_url(shared.url) if shared else None
    far = [name for name in url.names if not is_loopback(name)] if url else []
    if url and not url.login and far:
        how = "without a password" if url.is_encrypted else "without a password and unencrypted"
        yield f"{name}: {', '.join(far)} is used {how}: whoever can reach it reads and changes what is kept there"
    elif url and not url.is_encrypted and far:
        yield f"{name}: its password travels unencrypted to {', '.join(far)}: use rediss"


# --- the address of a Redis as a URL: one server, the sentinels of a service, or nodes of a cluster ---

SCHEMES: Final = tuple(f"{tls}{kind}://" for kind in ("", "+sentinel", "+cluster") for tls in ("redis", "rediss"))
_PARTS = re.compile(r"(?P<scheme>[a-z+]+)://(?:(?P<login>[^/?#]*)@)?(?P<hosts>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)")
_LOGIN = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*")
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_DATABASE = re.compile(r"/?|/[0-9]{1,5}")
_SERVICE = re.compile(r"/[A-Za-z0-9._-]+(?:/|/[0-9]{1,5})?")


class RedisUrl(NamedTuple):
    """The parts of a sound URL; `login` is the text before the `@`, None where there is no `@`."""

    scheme: str
    login: str | None
    hosts: str
    path: str

    @property
    def is_encrypted(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def names(self) -> list[str]:
        """Returns the hosts' names or addresses, without brackets and ports."""
        found = (_HOST.fullmatch(host) for host in self.hosts.split(","))
        return [match["name"].strip("[]") for match in found if match]

    def with_login(self, username: str | None, password: str | None) -> str:
        """Returns the URL with this login instead of its own; name and password may hold any characters."""
        login = f"{quote(username or '', safe='')}:{quote(password or '', safe='')}"
        return f"{self.scheme}://{login}@{self.hosts}{self.path}"


def parse_redis_url(text: str) -> RedisUrl:
    """Returns the parts of a URL. Raises ValueError, whose message does not repeat the URL.

    It knows the grammar only, and looks up or connects nothing: the URL may hold a password.
    """
    if not text.startswith(SCHEMES):
        raise ValueError(f"must begin with {', '.join(SCHEMES)}")
    match = _PARTS.fullmatch(text) if text.isascii() and text.isprintable() else None
    if match is None:
        raise ValueError("holds characters that a URL cannot have")
    if "@" in match["path"] + match["rest"] or not _LOGIN.fullmatch(match["login"] or ""):
        raise ValueError("has a user or password with such as / ? # @ in it: write %2F %3F %23 %40, or use `password`")
    if match["rest"]:
        raise ValueError("must not have a query or fragment")
    _check_hosts(match["scheme"], match["hosts"])
    _check_path(match["scheme"], match["path"])
    return RedisUrl(match["scheme"], match["login"], match["hosts"], match["path"].rstrip("/"))


def _check_hosts(scheme: str, hosts: str) -> None:
    listed = hosts.split(",")
    if not hosts or any(host.startswith(":") for host in listed):
        raise ValueError("has no host")
    if "" in listed:
        raise ValueError("has a comma too many between its hosts")
    if not all(_is_host(host) for host in listed):
        raise ValueError("has a host that is not HOST or HOST:PORT; an IPv6 address goes in brackets")
    if len(listed) > 1 and "+" not in scheme:
        raise ValueError(
            f"has several hosts: that is {scheme}+sentinel://HOST,HOST/SERVICE or {scheme}+cluster://HOST,HOST"
        )


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    if match is None or not 1 <= int(match["port"] or 1) <= 65535:
        return False
    if not match["name"].startswith("["):
        return True
    try:
        IPv6Address(match["name"][1:-1])
    except AddressValueError:
        return False
    return True


def _check_path(scheme: str, path: str) -> None:
    if scheme.endswith("+cluster"):
        if path not in ("", "/"):
            raise ValueError("has a path, but a cluster has no databases by number: end it after the hosts")
    elif scheme.endswith("+sentinel"):
        if path in ("", "/") or path.removeprefix("/").isdigit():
            raise ValueError("names no service: end it in /SERVICE, the name by which the sentinels know it")
        if not _SERVICE.fullmatch(path):
            raise ValueError("must end in /SERVICE or /SERVICE/NUMBER: the service's name, the number of a database")
    elif not _DATABASE.fullmatch(path):
        raise ValueError("must end after the host, or in the number of a database such as /0")
