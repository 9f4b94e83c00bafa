"""The address of a Redis as a URL: one server, the sentinels of a service, or nodes of a cluster.

It knows the grammar only, and looks up or connects nothing. Invariant: no message repeats any of the URL, which may hold a
password.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Final, NamedTuple
from urllib.parse import quote

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
    """Returns the parts of a URL. Raises ValueError, whose message does not repeat the URL."""
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
