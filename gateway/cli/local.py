"""The gateway of this folder, as its config has it: where commands find it, and the key that opens its `/admin`.

The config is read and not checked: who asks a gateway that runs is no concern of a mistake that has come into its file since.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from gateway.cli.check.config import settings_of
from gateway.core.config.fields import substitute
from gateway.core.config.schema import AdminEntry, ServerEntry, check
from gateway.core.config.source import Document, read_document

EVERY_ADDRESS = ("0.0.0.0", "::")


class LocalGateway(NamedTuple):
    """Where the gateway of a config listens, and its admin key."""

    url: str
    """For calls, jobs and batches."""
    admin_url: str
    admin_key: str
    """Empty where the config has none, or only its digest."""
    is_without_admin: bool = False
    """There is a config, and nothing is said of a key in it: its gateway has no `/admin`."""


def local_gateway(options: argparse.Namespace, environ: Mapping[str, str]) -> LocalGateway:
    """Returns the gateway of `--config`, `GATEWAY_CONFIG` or `config.yaml`, by the defaults where there is no such file.

    Raises pydantic's ValidationError where a variable such as `GATEWAY_PORT` has no usable value.
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
