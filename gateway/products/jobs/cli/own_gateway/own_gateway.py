"""A gateway in this process, for a command that finds none: by the same config, with the same jobs file.

It listens on a free port of loopback and lives as long as the command; what it has taken is in its jobs file, and goes on with
whatever gateway starts on that next.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from gateway.cli.arguments.values import DEFAULT_URL
from gateway.cli.check.config import compile_config, settings_of
from gateway.cli.operate.client import AdminRefused
from gateway.cli.operate.showing import safe
from gateway.products.jobs.cli.caller.caller import CallerClient, caller_of
from gateway.products.jobs.cli.caller.progress import ProgressLine
from gateway.workers.worker.worker.beside import running

LOOK_S = 1.0


@contextmanager
def caller_for(options: argparse.Namespace, progress: ProgressLine) -> Iterator[tuple[CallerClient, bool]]:
    """Yields a client of the gateway to ask, and whether that is this process's own, which is told.

    It is the one that `--url` names; without one, whoever listens at the default address, else one that is started for this
    and stops behind it. Raises AdminRefused, ConfigError, StoreUnusable or OSError where that cannot be.
    """
    if options.url is not None or _is_taken(DEFAULT_URL):
        yield caller_of(options, options.url or DEFAULT_URL), False
        return
    settings = settings_of(options)
    if not settings.config.exists():
        message = f"no gateway answers at {DEFAULT_URL}, and there is no {settings.config} to run one by; "
        raise AdminRefused(f"{message}name a gateway by --url, or a config by --config", is_misuse=True)
    if not compile_config(settings).jobs.settings.works:
        message = "a gateway by this config runs no jobs (jobs.work: false); name a gateway by --url"
        raise AdminRefused(message, is_misuse=True)
    with running(settings, os.environ) as url:
        client = caller_of(options, url)
        progress.tell(f"no gateway at {DEFAULT_URL}: this process is one, by {safe(settings.config)}")
        yield client, True


def _is_taken(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port), LOOK_S).close()
    except OSError:
        return False
    return True
