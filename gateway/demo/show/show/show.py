"""Shows a demo from its first line to its table and its chart: the only place where scenario and presentation meet.

Progress is one line that renews itself on a terminal, plain lines everywhere else. Invariant: whenever `Display.close` returns,
the terminal is as it was and the cursor on a new line.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import uvloop

from gateway.demo.record.record import Run, Trial
from gateway.demo.show.show.chart import outage_chart, storm_chart
from gateway.demo.storm.clients.clients import choose_client
from gateway.demo.storm.storm.outage import Outage, run_outage
from gateway.demo.storm.storm.storm import Storm, run_storm

Result = TypeVar("Result")
_RENEW_S, _REPEAT_S = 0.1, 5.0
_NAME, _BAR = 24, 30
RED, GREEN, DIM, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[2K"

Line = Callable[[float, int, str, bool], str]
"""Returns the line at a time, in fewer than so many columns, with these marks, in colours or without."""


class Display:
    """Draws to `stream`; colours only on a terminal and without NO_COLOR."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._is_live = stream.isatty() and environ.get("TERM") != "dumb"
        self._has_colour = self._is_live and not environ.get("NO_COLOR")
        self._marks = "█▓░" if "utf" in (stream.encoding or "").lower() else "#x."
        self._line: Line | None = None

    def say(self, text: str) -> None:
        """Prints whole lines."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def watch(self, run: Run) -> None:
        """Shows this run from now on; the one before is finished."""
        self.follow(partial(run_line, run))

    def follow(self, line: Line) -> None:
        """Shows this line from now on; the one before is finished."""
        self.close()
        self._line = line
        self.draw()

    async def keep_drawing(self) -> None:
        """Renews the line until it is cancelled."""
        with suppress(OSError):  # the reader has gone: whoever writes next is told
            while True:
                await asyncio.sleep(_RENEW_S if self._is_live else _REPEAT_S)
                self.draw()

    def draw(self) -> None:
        """Shows the line as it stands."""
        if self._line is None:
            return
        columns = shutil.get_terminal_size().columns if self._is_live else 120
        line = self._line(self._now(), columns, self._marks, self._has_colour)
        self._stream.write(_CLEAR_LINE + line if self._is_live else line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Draws the last state and leaves the line."""
        if self._line is None:
            return
        self.draw()
        self._line = None
        if self._is_live:
            self.say("")


def run_line(run: Run, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns a run in one line shorter than `columns`; `marks` stand for an answered, a failed and an open call."""
    name = run.name.ljust(_NAME)
    if run.began_at is None:
        return f"{name} getting ready ..."[: columns - 1]
    time_s = run.duration_s if run.answered + run.failed == run.calls else run.time_s(now)
    text = f" {run.answered:>5,} answered {run.failed:>5,} failed {run.seen_429s:>5,} 429s {time_s:>6.1f} s"
    room = min(_BAR, columns - 2 - len(name) - len(text))
    if room < 1:
        return f"{name}{text}"[: columns - 1]
    return f"{name} {progress_bar(run.answered, run.failed, run.calls, room, marks, has_colour)}{text}"


def progress_bar(done: int, failed: int, of: int, room: int, marks: str, has_colour: bool) -> str:
    """Returns a bar of so many columns; `marks` stand for the parts that are done, failed and open."""
    whole = (done + failed) * room // of
    lost = min(whole, -(-failed * room // of))  # rounded up: one failed call is to be seen
    parts = zip(marks, (whole - lost, lost, room - whole), (GREEN, RED, DIM), strict=True)
    return "".join(f"{colour}{mark * width}{PLAIN}" if has_colour else mark * width for mark, width, colour in parts)


_RUN_LABELS = (
    "",
    "calls answered",
    "calls failed",
    "429s the app saw",
    "upstream calls",
    "  of these wasted",
    "tokens answered",
    "time",
    "  ideal: the limit alone",
    "wait for an answer, p50",
    "added by the gateway, p50",
)


def run_table(runs: Sequence[Run]) -> str:
    """Returns the table of the runs, without a trailing newline."""
    return lay_out([_RUN_LABELS, *map(_run_column, runs)])


def lay_out(columns: Sequence[Sequence[str]]) -> str:
    """Returns the columns side by side, the first one of labels, with a rule below their headings."""
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["   ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for label, *cells in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _run_column(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        f"{run.answered:,} of {run.calls:,}",
        f"{run.failed:,}",
        f"{run.seen_429s:,}",
        f"{run.upstream_calls:,}",
        f"{run.wasted_calls:,} ({run.wasted_calls / max(1, run.upstream_calls):.0%})",
        f"{run.tokens:,}",
        f"{run.duration_s:.1f} s",
        _ideal(run),
        or_dash(run.wait_p50_s, "{:.1f} s"),
        or_dash(run.added_p50_ms, "{:.2f} ms"),
    )


def _ideal(run: Run) -> str:
    """Returns the ideal time, with the ratio to it only where all calls were answered: giving up early is not fast."""
    ratio = f" ({run.duration_s / run.ideal_s:.2f}x)" if run.ideal_s and run.answered == run.calls else ""
    return or_dash(run.ideal_s, "{:.1f} s") + ratio


def or_dash(value: float | None, form: str) -> str:
    """Returns a formatted value; a dash where there was nothing to measure."""
    return "-" if value is None else form.format(value)


_TRIAL_LABELS = (
    "",
    "calls answered",
    "calls failed",
    "  with their answer half given",
    "answers in more than {late_s:g} s",
    "time to the whole answer, p50",
    "  p99",
    "tries at providers",
    "  per call",
    "  wasted",
    "  at a dead provider",
)


def trial_table(trials: Sequence[Trial]) -> str:
    """Returns the table of at least one trial, without a trailing newline."""
    labels = [label.format(late_s=trials[0].late_s) for label in _TRIAL_LABELS]
    return lay_out([labels, *map(_trial_column, trials)])


def _trial_column(trial: Trial) -> tuple[str, ...]:
    return (
        trial.name,
        f"{trial.answered:,} of {trial.calls:,} ({percent(trial.answered, trial.calls)})",
        f"{trial.failed:,}",
        f"{trial.broken:,}",
        f"{trial.late:,}",
        or_dash(trial.latency_p50_s, "{:.2f} s"),
        or_dash(trial.latency_p99_s, "{:.2f} s"),
        f"{trial.tries:,}",
        f"{trial.tries_per_call:.2f}",
        f"{trial.wasted_tries:,} ({trial.wasted_tries / max(1, trial.tries):.0%})",
        f"{trial.tries_at_dead:,}",
    )


def percent(part: int, whole: int) -> str:
    """Returns a percentage, rounded down so that only all of them are 100 %."""
    return f"{part * 1000 // whole / 10:g} %"


def times(count: int) -> str:
    """Returns how often, in words where they are usual."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def trial_line(outage: Outage, trials: Sequence[Trial], now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns the progress of the outage in a line shorter than `columns`; `marks` are as for a run."""
    if any(trial.began_at is None for trial in trials):
        return "getting ready ..."[: columns - 1]
    time_s = min(trials[0].time_s(now), outage.seconds)
    moment = f"{time_s:>5.1f} s {outage.act_at(time_s).label:<12}"
    counts = [f"  {_short(trial)}: {trial.answered:>5,} answered {trial.failed:>4,} failed" for trial in trials]
    plain = moment + "".join(counts)
    if len(plain) >= columns:
        return plain[: columns - 1]
    if not has_colour:
        return plain
    hues = [RED if trial.failed else GREEN for trial in trials]
    return f"{DIM}{moment}{PLAIN}" + "".join(f"{hue}{text}{PLAIN}" for hue, text in zip(hues, counts, strict=True))


def _short(trial: Trial) -> str:
    return trial.name.partition(" ")[0]


def show(storm: Storm, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Runs the storm in a loop of its own and saves its chart; returns the table, or the figures as JSON.

    Raises OSError when the chart cannot be written, before anything runs if its folder is missing, and KeyboardInterrupt
    once everything that Ctrl-C ended has ended in order.
    """
    check_folder(chart)
    client, connect = choose_client()
    limit = f"{storm.rpm:,} requests/min ({storm.rate_per_s:g} a second), {storm.burst:,} of them at once"
    display.say(f"{storm.calls:,} calls in one moment. The provider's limit: {limit}.")
    display.say(f"The app's client: {client}. The provider: an emulator.\n")
    runs = perform(run_storm(storm, connect, display.watch), display)
    save_chart(chart, storm_chart(runs), display)
    if as_json:
        return json.dumps({"client": client, "rpm": storm.rpm, "runs": [run.to_mapping() for run in runs]}, indent=2)
    return run_table(runs)


def show_outage(outage: Outage, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Runs the outage and saves its chart; returns and raises as `show` does."""
    check_folder(chart)
    client, connect = choose_client()
    trouble = ", ".join(act.label for act in outage.acts)
    display.say(f"{outage.rate_per_s:g} calls a second for {outage.seconds:g} s, every other one streamed.")
    display.say(f"The provider's troubles: {trouble}. The gateway knows a second provider.")
    display.say(f"The app's client: {client}. The providers: emulators.\n")

    def begin(trials: list[Trial]) -> None:
        display.follow(partial(trial_line, outage, trials))

    trials = perform(run_outage(outage, connect, begin), display)
    save_chart(chart, outage_chart(outage, trials), display)
    if as_json:
        figures = [trial.to_mapping() for trial in trials]
        return json.dumps({"client": client, "seconds": outage.seconds, "runs": figures}, indent=2)
    return trial_table(trials)


def check_folder(chart: Path) -> None:
    """Raises FileNotFoundError where the folder of the chart is missing."""
    if not chart.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(chart.parent))


def save_chart(chart: Path, picture: str, display: Display) -> None:
    """Writes the chart, and says where it is."""
    chart.write_text(picture, encoding="utf-8")
    display.say(f"\nchart: {chart}\n")


def perform(scenario: Coroutine[Any, Any, Result], display: Display) -> Result:
    """Runs a scenario in a loop of its own. Raises KeyboardInterrupt once all has ended that a signal has told to end."""
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
    """Has Ctrl-C, and all else that tells a process to end, end the task; told again, it must not interrupt the cleanup."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt() -> None:
        for number in signals:
            loop.add_signal_handler(number, lambda: None)
        if task is not None:
            task.cancel()

    for number in signals:
        loop.add_signal_handler(number, interrupt)
