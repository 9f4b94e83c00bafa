"""`gateway demo` and `gateway emulate`: emulated providers, to see the gateway work and to test applications with."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import sys
from pathlib import Path

import uvloop

from gateway.cli.arguments import EMULATOR_FLAGS
from gateway.cli.main import FAILED, OK, UNUSABLE, fail
from gateway.core.http.server import owner_of
from gateway.demo.batch import LINES_PER_KILL, BatchDemo, batch_table, show_batch
from gateway.demo.processes import ProcessFailedError, RequestFailedError
from gateway.demo.record import broken_promises
from gateway.demo.show import Display, show, show_outage
from gateway.demo.storm import Outage, Storm
from gateway.demo.workflow import RUNS_PER_KILL, WorkflowDemo, show_workflow, workflow_table
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig


def demo(options: argparse.Namespace) -> int:
    """Runs the storm, or the outage, the batch or the workflows, as asked, and shows what came of it."""
    display = Display(sys.stderr if options.json else sys.stdout, os.environ)
    if options.batch:
        return _batch_demo(options, display)
    if options.workflow:
        return _workflow_demo(options, display)
    if options.outage:
        outage = Outage(seconds=options.seconds, rate_per_s=options.rate)
        print(show_outage(outage, display, options.chart or Path("outage.svg"), as_json=options.json))
    else:
        plain = Storm()
        rpm, burst = options.rpm or plain.rpm, options.burst or plain.burst
        storm = Storm(calls=options.calls, rpm=rpm, burst=burst)
        print(show(storm, display, options.chart or Path("demo.svg"), as_json=options.json))
    return OK


def _batch_demo(options: argparse.Namespace, display: Display) -> int:
    """Runs the batch; a promise that was broken is a failure."""
    plain = BatchDemo()
    rpm, burst = options.rpm or plain.rpm, options.burst or plain.burst
    batch = BatchDemo(lines=options.lines, rpm=rpm, burst=burst, kills=options.kills, seed=options.seed)
    if batch.lines < batch.kills * LINES_PER_KILL:
        return fail(f"{batch.kills} kills want at least {batch.kills * LINES_PER_KILL} lines", UNUSABLE)
    try:
        run = show_batch(batch, display, options.chart or Path("batch.svg"))
    except (RequestFailedError, ProcessFailedError) as error:
        return fail(str(error), FAILED)
    print(json.dumps(run.to_mapping(), indent=2) if options.json else batch_table(run))
    return _judge(run.broken_promises())


def _workflow_demo(options: argparse.Namespace, display: Display) -> int:
    """Runs the workflows; a promise that was broken is a failure."""
    demo = WorkflowDemo(runs=options.runs, kills=options.kills, seed=options.seed)
    if demo.runs < demo.kills * RUNS_PER_KILL:
        return fail(f"{demo.kills} kills want at least {demo.kills * RUNS_PER_KILL} runs", UNUSABLE)
    try:
        straight, through = arms = show_workflow(demo, display, options.chart or Path("workflow.svg"))
    except (RequestFailedError, ProcessFailedError) as error:
        return fail(str(error), FAILED)
    broken = broken_promises(straight, through)
    figures = {"steps": demo.steps, "ways": [arm.to_mapping() for arm in arms], "broken_promises": broken}
    print(json.dumps(figures, indent=2) if options.json else workflow_table(arms))
    return _judge(broken)


def _judge(broken: list[str]) -> int:
    return fail("\n".join(f"a promise is broken: {sentence}" for sentence in broken), FAILED) if broken else OK


def emulate(options: argparse.Namespace) -> int:
    """Runs the emulator until a signal ends it."""
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
    try:
        await server.start()
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        owner = owner_of(host, port)
        used = f"address already in use by {owner}" if owner else "address already in use"
        return fail(f"cannot listen on {host}:{port}: {used}; choose another port: --port", FAILED)
    print(f"emulator: base_url {server.base_url}, control {server.url}/__emulator/stats", file=sys.stderr, flush=True)
    await stopping.wait()
    await server.stop()
    return OK
