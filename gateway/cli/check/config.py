"""What a command was told of the process, and what the config compiles to."""

from __future__ import annotations

import argparse
import os

from gateway.core.clock import SystemClock
from gateway.core.config.load import load_snapshot
from gateway.core.http.client.pools.pools import Pools
from gateway.core.http.client.wire.wire import Wire
from gateway.core.snapshot.snapshot import PolicySnapshot, Provider
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
        settings.config, os.environ, connect=connect, version=1, now_wall=SystemClock().wall(), host=settings.host
    )
