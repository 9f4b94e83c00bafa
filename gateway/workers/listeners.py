"""The place of each worker: who is in it, which listeners belong to it, and whether there can be workers at all.

Each has a listener of its own on every port, all on the same address (SO_REUSEPORT), because there the kernel deals
connections out evenly; of one listener for all, measured with four workers and 100 connections, one worker got 0 to 2. But
the listeners are the supervisor's, who keeps them open: a worker that dies takes no waiting connection with it, and another
can tend its listener. Where the kernel does not deal out (anything but Linux), all share one.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.app import listen_on
from gateway.errors import ConfigError
from gateway.policy.snapshot import PolicySnapshot
from gateway.settings import Settings
from gateway.workers.channel import Channel


@dataclass(eq=False, slots=True)
class ListenerPlace:
    """The place of one worker: who is in it, and since when; or from when on it is to be filled again."""

    number: int
    listeners: list[socket.socket]
    pid: int = 0
    """0: empty."""
    channel: Channel | None = None
    """None: empty, or whoever is in it will end soon."""
    is_ready: bool = False
    changed_at: float = 0.0
    """When it was filled, or is to be. Monotonic seconds, as all times here."""
    deaths: int = 0
    """In a row, without a steady time between two."""
    tended: list[int] = field(default_factory=list)
    """The other places whose listeners it has been asked to tend."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell whoever is in it."""
        if self.channel is not None:
            self.channel.send(message)

    @property
    def url(self) -> str:
        """Where it listens for calls."""
        host, port = self.listeners[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def require_shared(settings: Settings, policy: PolicySnapshot, workers: int) -> None:
    """Raises ConfigError unless so many workers can share what they have to."""
    if workers > 1 and policy.shared is None:
        kind = policy.state.partition(":")[0]
        raise ConfigError(
            [
                f"{settings.config}: state: {workers} workers need one that they can share, and {kind!r} is none: each of them"
                " would allow itself the whole of every limit. Set state: redis://HOST:PORT, or run with --workers 1"
            ]
        )


def require_fork() -> None:
    """Raises ConfigError where there is no way to have several workers."""
    if not hasattr(os, "fork"):
        raise ConfigError([f"--workers: {sys.platform} cannot fork processes; run with --workers 1"])


def places(settings: Settings, policy: PolicySnapshot) -> list[ListenerPlace]:
    """One for each worker, with its listener on each port of the policy. Raises OSError when a port cannot be had."""
    server = policy.server
    port = server.port if settings.port is None else settings.port
    addresses = [(settings.host or server.host, port), *([server.admin_listen] if server.admin_listen else [])]
    by_port = [_share(host, port, settings.workers) for host, port in addresses]
    return [ListenerPlace(number + 1, [ports[number] for ports in by_port]) for number in range(settings.workers)]


def is_one_for_all(places: Sequence[ListenerPlace]) -> bool:
    """Whether they have one listener: then nobody's has to be tended."""
    return len({id(place.listeners[0]) for place in places}) == 1


def deals_out() -> bool:
    """Whether the kernel deals connections out to the listeners of one port."""
    return sys.platform == "linux"


def _share(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listeners on one port, that was nobody's: asked for alone first, it is not shared with another gateway."""
    alone = listen_on(host, port)
    if not deals_out():
        return [alone] * count
    port = alone.getsockname()[1]
    alone.close()
    return [listen_on(host, port, reuse_port=True) for _ in range(count)]
