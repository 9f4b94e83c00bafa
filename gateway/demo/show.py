"""A demo from its first line to its table and its picture: the only place where scenario and presentation meet."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from gateway.demo import outage_chart, outage_text
from gateway.demo.chart import chart_of
from gateway.demo.clients import choose_client
from gateway.demo.display import Display
from gateway.demo.outage import Outage, run_outage
from gateway.demo.storm import Storm, run_storm
from gateway.demo.table import table_of
from gateway.demo.trial import Trial

Result = TypeVar("Result")


def show(storm: Storm, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Run the storm in a loop of its own and save its chart; returns the table, or the figures as JSON.

    Raises OSError when the chart cannot be written, before anything runs if its folder is missing, and KeyboardInterrupt
    once everything that Ctrl-C ended has ended in order.
    """
    _check_folder(chart)
    client, connect = choose_client()
    limit = f"{storm.rpm:,} requests/min ({storm.rate_per_s:g} a second), {storm.burst:,} of them at once"
    display.say(f"{storm.calls:,} calls in one moment. The provider's limit: {limit}.")
    display.say(f"The app's client: {client}. The provider: an emulator.\n")
    runs = _perform(run_storm(storm, connect, display.watch), display)
    _save(chart, chart_of(runs), display)
    if as_json:
        return json.dumps({"client": client, "rpm": storm.rpm, "runs": [run.to_mapping() for run in runs]}, indent=2)
    return table_of(runs)


def show_outage(outage: Outage, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Run the outage and save its chart; returns and raises as `show` does."""
    _check_folder(chart)
    client, connect = choose_client()
    trouble = ", ".join(act.label for act in outage.acts)
    display.say(f"{outage.rate_per_s:g} calls a second for {outage.seconds:g} s, every other one streamed.")
    display.say(f"The provider's troubles: {trouble}. The gateway knows a second provider.")
    display.say(f"The app's client: {client}. The providers: emulators.\n")

    def begin(trials: list[Trial]) -> None:
        display.follow(partial(outage_text.line_of, outage, trials))

    trials = _perform(run_outage(outage, connect, begin), display)
    _save(chart, outage_chart.chart_of(outage, trials), display)
    if as_json:
        figures = [trial.to_mapping() for trial in trials]
        return json.dumps({"client": client, "seconds": outage.seconds, "runs": figures}, indent=2)
    return outage_text.table_of(trials)


def _check_folder(chart: Path) -> None:
    if not chart.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(chart.parent))


def _save(chart: Path, picture: str, display: Display) -> None:
    chart.write_text(picture, encoding="utf-8")
    display.say(f"\nchart: {chart}\n")


def _perform(scenario: Coroutine[Any, Any, Result], display: Display) -> Result:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(scenario, display))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        display.close()


async def _run(scenario: Coroutine[Any, Any, Result], display: Display) -> Result:
    _end_on_interrupt(asyncio.get_running_loop(), asyncio.current_task())
    drawing = asyncio.create_task(display.keep_drawing())
    try:
        return await scenario
    finally:
        drawing.cancel()


def _end_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> None:
    """Ctrl-C ends the task; pressed again, it must not break into the tidying up."""

    def interrupt() -> None:
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
