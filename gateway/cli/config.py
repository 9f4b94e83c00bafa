"""What a command knows of the config: the settings of the process, the compiled policy, and where the gateway of it listens."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import NamedTuple

from gateway.core.clock import SystemClock
from gateway.core.config.fields import substitute
from gateway.core.config.load import load_snapshot
from gateway.core.config.schema import AdminEntry, ServerEntry, check
from gateway.core.config.source import Document, read_document
from gateway.core.http.client.transport import Pools
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import PolicySnapshot, Provider
from gateway.dialects.config import DialectLanguages
from gateway.sections import SECTIONS
from gateway.settings import Settings


def settings_of(options: argparse.Namespace) -> Settings:
    """Returns the settings of the process, those given as options first. Raises pydantic's ValidationError."""
    names = ("config", "host", "port", "workers", "log_format", "log_level")
    return Settings(**{name: value for name in names if (value := getattr(options, name, None)) is not None})


def compile_config(settings: Settings) -> PolicySnapshot:
    """Returns the policy of a config, with which nothing will be sent. Raises ConfigError."""

    async def no_emulator(_name: str) -> str:
        raise RuntimeError("nothing is sent while a config is only checked")

    pools = Pools(no_emulator)

    def connect(provider: Provider, model: str | None) -> Wire:
        return Wire(provider, model, pools.transport(provider))

    return load_snapshot(
        *(settings.config, os.environ),
        sections=SECTIONS,
        languages=DialectLanguages(),
        connect=connect,
        version=1,
        now_wall=SystemClock().wall(),
        host=settings.host,
    )


# --- The gateway of this folder: where commands find it, and the key that opens its `/admin` ---


EVERY_ADDRESS = ("0.0.0.0", "::")


class LocalGateway(NamedTuple):
    """Where the gateway of a config listens, and its admin key."""

    url: str
    """The URL for calls, jobs and batches."""
    admin_url: str
    admin_key: str
    """The key that opens `/admin`; empty where the config has none, or only its digest."""
    is_without_admin: bool = False
    """There is a config, and nothing is said of a key in it: its gateway has no `/admin`."""


def local_gateway(options: argparse.Namespace, environ: Mapping[str, str]) -> LocalGateway:
    """Returns the gateway of `--config`, `GATEWAY_CONFIG` or `config.yaml`, by the defaults where there is no such file.

    The config is read and not checked: who asks a gateway that runs is no concern of a mistake that has come into its file
    since. Raises pydantic's ValidationError where a variable such as `GATEWAY_PORT` has no usable value.
    """
    settings = settings_of(options)
    found = read_document(settings.config, [])
    written = found or Document(str(settings.config), {}, {}, [])
    document = substitute(written, environ)
    server = check(ServerEntry, document, ("server",)) or ServerEntry()
    admin = check(AdminEntry, document, ("admin",)) or AdminEntry()
    url = _url(settings.host or server.host, server.port if settings.port is None else settings.port)
    key = document.at(("admin", "key"))
    return LocalGateway(
        url,
        url if admin.listen is None else _url(*admin.listen),
        key if isinstance(key, str) and not key.startswith("sha256:") else "",
        found is not None and found.at(("admin", "key")) is None,
    )


def _url(host: str, port: int) -> str:
    bare = host.strip("[]")
    reached = "127.0.0.1" if bare in EVERY_ADDRESS else bare
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
