"""A gateway in this process, for a command that finds none: by the same config, with the same jobs file.

It listens on a free port of loopback and lives as long as the command; what it has taken is in its jobs file, and goes on with
whatever gateway starts on that next.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import uvloop

from gateway.cli.config import compile_config, local_gateway, settings_of
from gateway.cli.operate import AdminRefused, safe
from gateway.cli.serve import log_to_stderr
from gateway.core.errors import ConfigError
from gateway.products.jobs.cli.caller import CallerClient, ProgressLine, caller_of
from gateway.products.jobs.rules import JobSettings
from gateway.workers.worker import running, serve

LOOK_S = 1.0


@contextmanager
def caller_for(options: argparse.Namespace, progress: ProgressLine) -> Iterator[tuple[CallerClient, bool]]:
    """Yields a client of the gateway to ask, and whether that is this process's own, which is told.

    It is the one that `--url` names; without one, whoever listens where the config says, else one that is started for this
    and stops behind it. Raises AdminRefused, ConfigError, StoreUnusable or OSError where that cannot be.
    """
    usual = local_gateway(options, os.environ).url
    if options.url is not None or _is_taken(usual):
        yield caller_of(options, options.url or usual), False
        return
    settings = settings_of(options)
    if not settings.config.exists():
        message = f"no gateway answers at {usual}, and there is no {settings.config} to run one by; "
        raise AdminRefused(f"{message}name a gateway by --url, or a config by --config", is_misuse=True)
    if not compile_config(settings).jobs.settings.works:
        message = "a gateway by this config runs no jobs (jobs.work: false); name a gateway by --url"
        raise AdminRefused(message, is_misuse=True)
    with running(settings, os.environ) as url:
        client = caller_of(options, url)
        progress.tell(f"no gateway at {usual}: this process is one, by {safe(settings.config)}")
        yield client, True


def _is_taken(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port), LOOK_S).close()
    except OSError:
        return False
    return True


# `gateway work`: runs the jobs that gateways take into a Redis, and takes no calls itself.


def run_worker(options: argparse.Namespace) -> int:
    """Runs jobs until it is told to stop. Raises ConfigError where there can be none for it."""
    settings = settings_of(options)
    refusal = why_no_work(compile_config(settings).jobs.settings)
    if refusal:
        raise ConfigError([f"{settings.config}: {refusal}"])
    log_to_stderr(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, os.environ, only_works=True))


def why_no_work(jobs: JobSettings) -> str:
    """Returns why a worker of its own has nothing to do with these settings; empty: it has."""
    if jobs.redis is not None:
        return ""
    if not jobs.is_on:
        return "jobs are off: there is nothing to work on"
    return (
        "jobs.store: an SQLite file is one process's alone, the gateway's that takes the jobs, and that runs them, too. For "
        "workers of their own keep jobs in a Redis: store: redis://HOST:PORT, or `state: redis://HOST:PORT`"
    )
