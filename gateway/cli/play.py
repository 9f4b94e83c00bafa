"""`gateway demo` and `gateway emulate`: emulated providers, to see the gateway work and to test applications with."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from gateway.cli.arguments import EMULATOR_FLAGS
from gateway.cli.exits import OK, UNUSABLE, fail
from gateway.demo.outage import Outage
from gateway.demo.show import Display, show, show_outage
from gateway.demo.storm import Storm
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.server import EmulatorServer


def demo(options: argparse.Namespace) -> int:
    """Runs the storm, or with `--outage` the outage, and shows what came of it."""
    display = Display(sys.stderr if options.json else sys.stdout, os.environ)
    if options.outage:
        outage = Outage(seconds=options.seconds, rate_per_s=options.rate)
        print(show_outage(outage, display, options.chart or Path("outage.svg"), as_json=options.json))
    else:
        storm = Storm(calls=options.calls, rpm=options.rpm, burst=options.burst)
        print(show(storm, display, options.chart or Path("demo.svg"), as_json=options.json))
    return OK


def emulate(options: argparse.Namespace) -> int:
    """Runs the emulator until it is told to stop."""
    names = [flag[2:].replace("-", "_") for flag in EMULATOR_FLAGS] + ["dialect", "fault", "limit_headers"]
    base = EmulatorConfig.demo() if options.demo else EmulatorConfig()
    try:
        config = EmulatorConfig.from_mapping({name: getattr(options, name) for name in names}, base)
    except ValueError as error:
        return fail(str(error), UNUSABLE)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_emulator(config, options.host, options.port))


async def _run_emulator(config: EmulatorConfig, host: str, port: int) -> int:
    server = EmulatorServer(config, host=host, port=port)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    print(f"emulator: base_url {server.base_url}, control {server.url}/__emulator/stats", file=sys.stderr, flush=True)
    await stopping.wait()
    await server.stop()
    return OK
