"""`gateway serve`: the gateway in this process, or in several workers."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

import uvloop

from gateway.cli.config import compile_config, settings_of
from gateway.cli.main import fail
from gateway.settings import Settings
from gateway.workers.worker import serve


def run_gateway(options: argparse.Namespace) -> int:
    """Runs the gateway until a signal ends it."""
    settings = settings_of(options)
    log_to_stderr(settings)
    if settings.workers > 1:
        from gateway.workers.supervisor import Supervisor, WorkerFailed  # one process needs none

        try:
            return Supervisor(settings, os.environ, compile_config(settings)).run()
        except WorkerFailed as error:
            return fail(str(error), error.code)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, os.environ))


def log_to_stderr(settings: Settings) -> None:
    """Sends the log of the process to standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", force=True
    )
