"""`gateway work`: runs the jobs that gateways take into a Redis, and takes no calls itself."""

from __future__ import annotations

import argparse
import asyncio
import os

import uvloop

from gateway.cli.check.config import compile_config, settings_of
from gateway.cli.serve import log_to_stderr
from gateway.core.errors import ConfigError
from gateway.products.jobs.rules import JobSettings
from gateway.workers.worker.single import serve


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
