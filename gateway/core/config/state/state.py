"""Reads the `state` section: the store of state that outlives a call, and the address of a shared Redis.

The section is one text (`memory`, `sqlite:///FILE`, the URL of a Redis) or, for a Redis, a mapping. No connection is made: a
config is sound whether or not its Redis can be reached. Invariant: neither URL nor password is in any message.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path as FilePath
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from gateway.core.config.fields.check import check
from gateway.core.config.fields.fields import SQLITE, Count, Duration, Section, Text, problem_of, refuse_unfilled
from gateway.core.config.schema import ConfigFile, Entry
from gateway.core.config.sections import beside, is_file
from gateway.core.config.source import Document, Path, kind_of
from gateway.core.config.state.shared_limits import SCHEMES, parse_redis_url
from gateway.fleet.lease.lease import SharedState

MEMORY: Final = "memory"
REDIS: Final = "redis"
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


def state_section(document: Document, config: ConfigFile) -> tuple[str, SharedState | None]:
    """Returns the kind of store: `memory`, `sqlite:///` with an absolute path, or `redis` with its settings."""
    state = config.state
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
    _check_login(document, here, entry, url.login is not None)
    _check_ca_file(document, (*here, "ca_file"), entry, url.is_encrypted)
    has_login = entry.username is not None or entry.password is not None
    return SharedState(
        url=url.with_login(entry.username, entry.password) if has_login else entry.redis.rstrip("/"),
        namespace=entry.namespace,
        timeout_s=entry.timeout,
        connections=entry.connections,
        replicas=entry.replicas,
        ca_file=beside(document, entry.ca_file) if entry.ca_file is not None else None,
    )


def _check_login(document: Document, here: Path, entry: RedisEntry, in_url: bool) -> None:
    if entry.password is not None and in_url:
        document.complain((*here, "password"), "and one in the URL exclude each other")
    if entry.username is not None and entry.password is None:
        document.complain((*here, "username"), "needs a `password`")


def _check_ca_file(document: Document, path: Path, entry: RedisEntry, is_encrypted: bool) -> None:
    if entry.ca_file is None:
        return
    if not is_encrypted:
        document.complain(path, "needs an encrypted connection: rediss instead of redis")
    elif not is_file(beside(document, entry.ca_file)):
        document.complain(path, f"there is no file {document.show(path, entry.ca_file)}")
