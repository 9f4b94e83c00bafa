"""Shows a demo from its first line to its table and its chart: the only place where scenario and presentation meet.

In this order: charts, progress on a terminal (`Display`), tables, the demos (`show`). Progress is one line that renews
itself on a terminal, plain lines everywhere else. Invariant: whenever `Display.close` returns, the terminal is as it was
and the cursor on a new line.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from math import ceil, inf
from pathlib import Path
from typing import Any, TextIO, TypeVar

import uvloop

from gateway.demo.clients import choose_client
from gateway.demo.record import BatchRun, Fate, Run, Trial, WorkflowArm, fates_by_second, per_second
from gateway.demo.storm import Outage, Storm, run_outage, run_storm

# --- Charts as SVG, a panel per run and a bar per second ---


WIDTH, MARGIN, LEFT, PANEL, HEADING, BOTTOM, LABEL = 860, 24, 60, 130, 52, 64, 22
PLOT = WIDTH - LEFT - MARGIN

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a } .axis { stroke: #afb8c1 }
  .ground { fill: #ffffff; stroke: #d0d7de } .cut { fill: #ffffff } .heading { font-weight: 600; fill: #1f2328 }
  .answered { fill: #2f6fde } .late { fill: #e0a100 } .refused, .failed { fill: #d9480f } .act { fill: #eaeef2 }
  .limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 } .end { text-anchor: end } .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .heading { fill: #f0f6fc } .ground { fill: #0d1117; stroke: #3d444d } .cut { fill: #0d1117 }
    .answered { fill: #58a6ff } .late { fill: #d9a514 } .refused, .failed { fill: #ff7b54 }
    .limit { stroke: #f0f6fc } .act { fill: #21262d } .axis { stroke: #3d444d } }
"""


def storm_chart(runs: Sequence[Run]) -> str:
    """Returns calls per second at the provider against its limit, refused ones on top; there is at least one run."""
    seconds = max(1, ceil(max(run.duration_s for run in runs)))
    bars = [per_second(run.ticks, seconds) for run in runs]
    limit = max(run.rate_per_s for run in runs)
    top = min(max(1.05 * max(sum(both) for counts in bars for both in counts), 1.5 * limit), 2.5 * limit)
    headings = [_heading(run, f"{run.seen_429s:,} 429s, over after {run.duration_s:.1f} s") for run in runs]
    panels = [[*_bars(("answered", "refused"), counts, PANEL / top, PANEL), *_cut(counts, top)] for counts in bars]
    for run, panel in zip(runs, panels, strict=True):
        y = PANEL - run.rate_per_s * PANEL / top
        panel.append(_line("limit", LEFT, WIDTH - MARGIN, y))
        panel += [_text(LEFT - 8, y + 4, f"{run.rate_per_s:g}/s", "end"), _text(LEFT - 8, PANEL + 4, "0", "end")]
    legend = _legend(("answered", 0, "answered by the provider"), ("refused", 215, "refused with a 429"))
    legend += [_line("limit", LEFT + 375, LEFT + 405, -4), _text(LEFT + 411, 0, "its limit; one bar is one second")]
    return _page("Calls per second against the limit: " + "; ".join(headings), headings, panels, seconds, legend)


def outage_chart(outage: Outage, trials: Sequence[Trial]) -> str:
    """Returns the outcomes of the calls of each second, with the provider's faults; there is at least one trial."""
    seconds = max(1, ceil(outage.seconds))
    fates = [fates_by_second(trial, seconds) for trial in trials]
    scale = (PANEL - LABEL) / max(1, *(sum(fate) for panel in fates for fate in panel))
    headings = [_heading(trial, f"{trial.late:,} of them late, {trial.failed:,} failed") for trial in trials]
    panels = [[*_acts(outage, seconds), *_bars(Fate._fields, panel, scale, inf)] for panel in fates]
    late, note = f"in more than {outage.late_s:g} s", "of the calls made in each second; shaded: trouble"
    legend = _legend(("answered", 0, "answered"), ("late", 110, late), ("failed", 260, "failed"))
    legend.append(_text(LEFT + 340, 0, note))
    return _page("What became of the calls of every second. " + ". ".join(headings), headings, panels, seconds, legend)


def batch_chart(run: BatchRun) -> str:
    """Returns the provider's answers of each second against its limit, and the times without a gateway."""
    seconds = max(1, ceil(run.duration_s))
    counts = [0] * seconds
    before = 0
    for at_s, answered in run.seen:
        counts[min(int(at_s), seconds - 1)] += answered - before
        before = answered
    top = max(1.5 * run.rate_per_s, 1.05 * max(counts))
    y = PANEL - run.rate_per_s * PANEL / top
    panel = [*_away(run, seconds), *_bars(("answered",), [(count,) for count in counts], PANEL / top, PANEL)]
    panel += [_line("limit", LEFT, WIDTH - MARGIN, y), _text(LEFT - 8, y + 4, f"{run.rate_per_s:g}/s", "end")]
    panel.append(_text(LEFT - 8, PANEL + 4, "0", "end"))
    head = f"A batch of {run.lines:,} lines: {len(run.answered):,} answered, {run.results_twice} twice"
    head += f", {run.paid_twice} paid twice, over after {run.duration_s:.1f} s"
    legend = _legend(("answered", 0, "answered by the provider"), ("act", 215, "no gateway"))
    legend += [_line("limit", LEFT + 330, LEFT + 360, -4), _text(LEFT + 366, 0, "its limit; one bar is one second")]
    return _page(head, [head], [panel], seconds, legend)


def _away(run: BatchRun, seconds: int) -> Iterator[str]:
    for kill, away_s in zip(run.kills, run.away_s, strict=False):
        x, width = LEFT + kill.at_s * PLOT / seconds, away_s * PLOT / seconds
        yield f'<rect class="act" x="{x:.1f}" y="0" width="{width:.1f}" height="{PANEL}"/>'
        yield _text(x + width / 2, 15, "kill -9", "middle")


def workflow_chart(arms: Sequence[WorkflowArm]) -> str:
    """Returns the steps that were paid in each second, those paid again on top, and the kills; there is at least one way."""
    seconds = max(1, ceil(max(arm.duration_s for arm in arms)))
    paid = [arm.paid_by_second(seconds) for arm in arms]
    most = max(1, *(sum(both) for counts in paid for both in counts))
    panels = [
        [*_kills(arm, seconds), *_bars(("answered", "failed"), counts, (PANEL - LABEL) / most, inf)]
        for arm, counts in zip(arms, paid, strict=True)
    ]
    heads = [
        f"{arm.name[:1].upper()}{arm.name[1:]}: {arm.whole:,} of {arm.runs:,} runs met no failure, {arm.repaid:,} steps paid"
        f" again, ${arm.usd_per_run:.4f} a run"
        for arm in arms
    ]
    legend = _legend(("answered", 0, "steps paid"), ("failed", 130, "paid again"), ("act", 250, "no gateway"))
    legend.append(_text(LEFT + 390, 0, "one bar is one second; marks: kill -9 of the program"))
    return _page("Steps paid in every second. " + ". ".join(heads), heads, panels, seconds, legend)


def _kills(arm: WorkflowArm, seconds: int) -> Iterator[str]:
    for kill in arm.kills:
        x, end = (LEFT + (at - arm.began_at) * PLOT / seconds for at in (kill.at, kill.back_at))
        if kill.whom == "gateway":
            yield f'<rect class="act" x="{x:.1f}" y="0" width="{end - x:.1f}" height="{PANEL}"/>'
        else:
            yield f'<line class="limit" x1="{x:.1f}" y1="{LABEL}" x2="{x:.1f}" y2="{PANEL}"/>'
        yield _text((x + end) / 2, 15, "kill -9", "middle")


def _heading(run: Run | Trial, rest: str) -> str:
    return f"{run.name[:1].upper()}{run.name[1:]}: {run.answered:,} of {run.calls:,} calls answered, {rest}"


def _page(title: str, heads: list[str], panels: list[list[str]], seconds: int, legend: list[str]) -> str:
    """Returns a whole chart; its title is for screen readers.

    It has a background of its own for light and dark pages. All panels have the same scales; a bar that is higher than its
    panel is cut off and labelled with its number.
    """
    total, group = len(panels) * (HEADING + PANEL) + BOTTOM, '<g transform="translate(0 {})">\n{}\n</g>'
    parts = [f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>"]
    parts.append(f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{total - 1}" rx="8"/>')
    for index, (head, panel) in enumerate(zip(heads, panels, strict=True)):
        panel = [_text(LEFT, -14, head, "heading"), *panel, _line("axis", LEFT, WIDTH - MARGIN, PANEL)]
        parts.append(group.format(index * (HEADING + PANEL) + HEADING, "\n".join(panel)))
    step = next((step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if seconds / step <= 10), 3600)
    marks = [_text(LEFT + at * PLOT / seconds, 20, f"{at} s", "middle") for at in range(0, seconds + 1, step)]
    parts += [group.format(total - BOTTOM, "\n".join(marks)), group.format(total - 16, "\n".join(legend))]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _bars(kinds: Sequence[str], counts: Sequence[Sequence[int]], scale: float, most: float) -> Iterator[str]:
    """Yields bars stacked from the first kind up to `most`, without parts of height 0."""
    slot, gap = PLOT / len(counts), min(1.0, PLOT / len(counts) / 4)
    for second, parts in enumerate(counts):
        lower = 0.0
        for kind, count in zip(kinds, parts, strict=True):
            upper = min(lower + count * scale, most)
            if upper > lower:
                at = f'x="{LEFT + second * slot + gap:.1f}" y="{PANEL - upper:.1f}"'
                yield f'<rect class="{kind}" {at} width="{slot - 2 * gap:.1f}" height="{upper - lower:.1f}"/>'
            lower = upper


def _cut(counts: Sequence[Sequence[int]], top: float) -> Iterator[str]:
    slot = PLOT / len(counts)
    cut = [second for second, both in enumerate(counts) if sum(both) > top]
    for second in cut:
        yield f'<rect class="cut" x="{LEFT + second * slot:.1f}" y="10" width="{slot:.1f}" height="3"/>'
    if cut:
        x, side = ((cut[-1] + 1) * slot + 6, "start") if cut[-1] < len(counts) / 2 else (cut[0] * slot - 6, "end")
        yield _text(LEFT + x, 16, f"up to {max(map(sum, counts)):,} calls a second", side)


def _acts(outage: Outage, seconds: int) -> Iterator[str]:
    for act in outage.acts:
        x, end = (LEFT + share * outage.seconds / seconds * PLOT for share in (act.start, act.end))
        yield f'<rect class="act" x="{x:.1f}" y="0" width="{end - x:.1f}" height="{PANEL}"/>'
        yield _text((x + end) / 2, 15, act.label, "middle")


def _legend(*entries: tuple[str, int, str]) -> list[str]:
    square = '<rect class="{}" x="{}" y="-10" width="12" height="12"/>'
    return [square.format(kind, LEFT + x) + _text(LEFT + x + 18, 0, text) for kind, x, text in entries]


def _line(kind: str, x1: float, x2: float, y: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y:.1f}" x2="{x2}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


Result = TypeVar("Result")


# --- Progress on a terminal ---


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

    def print_line(self, text: str) -> None:
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
            self.print_line("")


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


# --- Tables, and lines of progress ---


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


# --- The demos ---


def show(storm: Storm, display: Display, chart: Path, *, as_json: bool = False) -> str:
    """Runs the storm in a loop of its own and saves its chart; returns the table, or the figures as JSON.

    Raises OSError when the chart cannot be written, before anything runs if its folder is missing, and KeyboardInterrupt
    once everything that Ctrl-C ended has ended in order.
    """
    check_folder(chart)
    client, connect = choose_client()
    limit = f"{storm.rpm:,} requests/min ({storm.rate_per_s:g} a second), {storm.burst:,} of them at once"
    display.print_line(f"{storm.calls:,} calls in one moment. The provider's limit: {limit}.")
    display.print_line(f"The app's client: {client}. The provider: an emulator.\n")
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
    display.print_line(f"{outage.rate_per_s:g} calls a second for {outage.seconds:g} s, every other one streamed.")
    display.print_line(f"The provider's troubles: {trouble}. The gateway knows a second provider.")
    display.print_line(f"The app's client: {client}. The providers: emulators.\n")

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
    """Writes the chart, and prints where it is."""
    chart.write_text(picture, encoding="utf-8")
    display.print_line(f"\nchart: {chart}\n")


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
