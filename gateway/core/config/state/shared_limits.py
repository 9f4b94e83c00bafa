"""Limits that are shared: by the models that name the same target, and by replicas (`fail_closed`).

Limits are kept at run time under a target's name, whichever model a call asked for. Invariant: targets of one name have
the same limits, the same counting and the same breaker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import AddressValueError, IPv6Address
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from gateway.core.config.providers import is_first
from gateway.core.config.schema import LimitedEntry
from gateway.core.config.source import Document, Path, did_you_mean, kind_of
from gateway.core.snapshot.snapshot import Target

# The address of a Redis as a URL: one server, the sentinels of a service, or nodes of a cluster.
#
# It knows the grammar only, and looks up or connects nothing. Invariant: no message repeats any of the URL, which may hold a
# password.


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


FIELDS: Final[Mapping[str, str]] = {
    "requests_per_min": "rpm",
    "request_burst": "burst",
    "tokens_per_min": "tpm",
    "input_tokens_per_min": "input_tpm",
    "output_tokens_per_min": "output_tpm",
    "requests_per_day": "rpd",
    "max_concurrency": "max_concurrency",
}
"""The config's name of every limit."""
LIMITS: Final[Mapping[str, str]] = {
    "rpm": "requests_per_min",
    "tpm": "tokens_per_min",
    "rpd": "requests_per_day",
    "max_concurrency": "concurrency",
    "input_tpm": "input_tokens_per_min",
    "output_tpm": "output_tokens_per_min",
}
"""The limits that replicas can share: the config's names and those at run time."""
_Named = list[tuple[str, Target]]
"""The models that name one target, in the order of the file, each with its description of the target."""


def share_limits(targets: Mapping[str, tuple[Target, ...]]) -> tuple[dict[str, tuple[Target, ...]], tuple[str, ...]]:
    """Returns the targets of each model, made equal where they share a name, and a notice for each value that gave way.

    Of each limit the smallest holds; it fails closed if any model says so. The first model in the file decides the counting
    and the breaker; concurrency is adaptive if any model says so.
    """
    named: dict[str, _Named] = {}
    for model, own in targets.items():
        for target in own:
            named.setdefault(target.name, []).append((model, target))
    notices: list[str] = []
    shared = {
        name: _share(name, among, notices if is_first(among[0][1].provider) else []) for name, among in named.items()
    }
    return {
        model: tuple(
            replace(target, limits=one.limits, counting=one.counting, breaker=one.breaker)
            for target in own
            for one in (shared[target.name],)
        )
        for model, own in targets.items()
    }, tuple(notices)


def _share(name: str, among: _Named, notices: list[str]) -> Target:
    given = {
        field: {value for _, target in among if (value := getattr(target.limits, field)) is not None}
        for field in FIELDS
    }
    smallest = {field: min(values) for field, values in given.items() if values}
    disputed = [f"{FIELDS[field]} {value:.15g}" for field, value in smallest.items() if len(given[field]) > 1]
    models = ", ".join(model for model, _ in among)
    if disputed:
        notices.append(
            f"target {name} has different limits in the models {models}: the smallest hold ({', '.join(disputed)})"
        )
    first_model, first = among[0]
    if any(_way(target) != _way(first) for _, target in among):
        notices.append(
            f"target {name} is counted differently in the models {models}: it is counted as {first_model} says"
        )
    if any(target.breaker != first.breaker for _, target in among):
        notices.append(f"target {name} has different breakers in the models {models}: it has that of {first_model}")
    closed = frozenset[str]().union(*(target.limits.fail_closed for _, target in among))
    counting = replace(first.counting, adaptive=any(target.counting.adaptive for _, target in among))
    return replace(first, limits=replace(first.limits, **smallest, fail_closed=closed), counting=counting)


def _way(target: Target) -> tuple[object, ...]:
    """Returns a target's counting without the part that any model may switch on."""
    return replace(target.counting, adaptive=False), target.counting.exact_tokens is None


def check_fail_closed(document: Document, path: Path, entry: LimitedEntry, *, learns: bool) -> None:
    """Notes problems of `fail_closed` of the entry at this path; `learns`: it may get limits that it does not set.

    With `fail_closed` a limit lets no call through while replicas cannot share it. `true` means all of its limits, those
    learned from a provider's answers included; a list names some of those that are set.
    """
    here = (*path, "fail_closed")
    if entry.fail_closed is True and not learns and not any(_is_set(entry, name) for name in _known(entry)):
        document.complain(here, "there is no limit here that it could be about")
    for index, name in enumerate(entry.fail_closed if isinstance(entry.fail_closed, list) else ()):
        _check_name(document, (*here, index), entry, name)


def closed_limits(entry: LimitedEntry) -> frozenset[str]:
    """Returns the limits that fail closed, by their names at run time."""
    if isinstance(entry.fail_closed, list):
        return frozenset(LIMITS[name] for name in _known(entry) if name in entry.fail_closed)
    return frozenset(LIMITS[name] for name in _known(entry)) if entry.fail_closed else frozenset()


def _check_name(document: Document, path: Path, entry: LimitedEntry, name: Any) -> None:
    if not isinstance(name, str):
        document.complain(path, f"expected text, not {kind_of(name)}")
    elif name not in _known(entry):
        suggestion = "" if document.origin_of(path) else did_you_mean(name, _known(entry))
        document.complain(path, f"no limit {document.show(path, name)}{suggestion}")
    elif not _is_set(entry, name):
        document.complain(path, f"{document.show(path, name)} is not set here")


def _known(entry: LimitedEntry) -> list[str]:
    return [name for name in LIMITS if name in type(entry).model_fields]


def _is_set(entry: LimitedEntry, name: str) -> bool:
    return getattr(entry, name) is not None
