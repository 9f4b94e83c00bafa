"""The demo from its first line to its table and its chart: the only place where scenario and presentation meet."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import uvloop

from gateway.demo.chart import chart_of
from gateway.demo.clients import Connect, choose_client
from gateway.demo.display import Display
from gateway.demo.run import Run
from gateway.demo.storm import Storm, run_storm
from gateway.demo.table import table_of


def show(storm: Storm, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Run the storm in a loop of its own and save its chart; returns the table, or the figures as JSON.

    Raises OSError when the chart cannot be written, before anything runs if its folder is missing, and KeyboardInterrupt
    once everything that Ctrl-C ended has ended in order.
    """
    if not chart.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(chart.parent))
    client, connect = choose_client()
    limit = f"{storm.rpm:,} requests/min ({storm.rate_per_s:g} a second), {storm.burst:,} of them at once"
    display.say(f"{storm.calls:,} calls in one moment. The provider's limit: {limit}.")
    display.say(f"The app's client: {client}. The provider: an emulator.\n")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runs = runner.run(_run(storm, connect, display))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        display.close()
    chart.write_text(chart_of(runs), encoding="utf-8")
    display.say(f"\nchart: {chart}\n")
    if as_json:
        return json.dumps({"client": client, "rpm": storm.rpm, "runs": [run.to_mapping() for run in runs]}, indent=2)
    return table_of(runs)


async def _run(storm: Storm, connect: Connect, display: Display) -> list[Run]:
    _end_on_interrupt(asyncio.get_running_loop(), asyncio.current_task())
    drawing = asyncio.create_task(display.keep_drawing())
    try:
        return await run_storm(storm, connect, display.watch)
    finally:
        drawing.cancel()


def _end_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> None:
    """Ctrl-C ends the task; pressed again, it must not break into the tidying up."""

    def interrupt() -> None:
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
