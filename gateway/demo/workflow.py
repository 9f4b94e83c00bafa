"""Runs the demo of workflows: the same program, twice, straight at a provider with faults and through a gateway.

Provider, gateway and program are processes of their own; the provider outlives all others, and its ledger is what counts.
`run_workflows` runs them, `show_workflow` shows them. Invariant: nothing is left of it, neither processes nor files, however it
ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.core.http.client.transport import Http1Transport
from gateway.demo import program
from gateway.demo.clients import API_KEY, MODEL
from gateway.demo.processes import (
    Caller,
    DemoProcess,
    RecordingProvider,
    RequestFailedError,
    connections,
    process,
    recording_provider,
)
from gateway.demo.program import RUN, STEP, read_journal
from gateway.demo.record import (
    INPUT_USD,
    OUTPUT_USD,
    ProcessKill,
    RunsReported,
    Step,
    StepCall,
    WorkflowArm,
    step_call,
)
from gateway.demo.show import (
    Display,
    check_folder,
    lay_out,
    percent,
    perform,
    progress_bar,
    save_chart,
    times,
    workflow_chart,
)
from gateway.demo.sqlite import kept_steps
from gateway.demo.storm import DIRECT, THROUGH

RUNS_PER_KILL = 10
"""The runs that a kill wants at least, so that there is something to kill."""
_LOOK_S = 0.05
_PATIENCE_S, _PATIENCE_PER_STEP_S, _PATIENCE_PER_KILL_S = 60.0, 0.02, 10.0
"""The most seconds that one way may take: a basis, and more for each step and each kill."""
_PAGE = 100
_PACE = {"ttft": 0.06, "tokens_per_second": 4000, "jitter": 0.3, "output_tokens": 200}
_FAULTS = ("e500=0.004", "e503=0.004", "reset=0.002")
FAULTS = "1 % of the calls meet a fault: a 500, a 503, a connection that is reset"
"""What goes wrong at the provider; none of it is paid for."""

Now = Callable[[], float]
Start = Callable[[], Awaitable[DemoProcess]]


@dataclass(frozen=True, slots=True)
class WorkflowDemo:
    """The scenario: `runs` runs of `steps` steps; the program is killed `kills` times each way, and the gateway, too."""

    runs: int = 400
    steps: int = 10
    kills: int = 2
    seed: int = 1
    """The seed of the moments of the kills, and of the provider's faults and pace."""

    def kill_points(self) -> list[tuple[str, int]]:
        """Returns who is killed after how many of the provider's answers, of `program` and `gateway` in turns."""
        draw, count = random.Random(self.seed).uniform, 2 * self.kills  # noqa: S311 - a moment is no secret
        answers = self.runs * self.steps
        points = [round(answers * (number + 1 + draw(-0.3, 0.3)) / (count + 1)) for number in range(count)]
        return [(("program", "gateway")[number % 2], point) for number, point in enumerate(points)]

    @property
    def longest_s(self) -> float:
        """Returns the seconds after which one way is given up."""
        return _PATIENCE_S + self.runs * self.steps * _PATIENCE_PER_STEP_S + 2 * self.kills * _PATIENCE_PER_KILL_S


async def run_workflows(
    demo: WorkflowDemo, begin: Callable[[WorkflowArm], None], now: Now = time.monotonic
) -> list[WorkflowArm]:
    """Runs both ways, one after the other; `begin` gets the record of each before it runs, to show its progress.

    Raises RequestFailedError and ProcessFailedError where one comes to no end.
    """
    arms = [WorkflowArm(name, demo.runs, demo.steps, has_gateway=name == THROUGH) for name in (DIRECT, THROUGH)]
    for arm in arms:
        begin(arm)
        try:
            async with asyncio.timeout(demo.longest_s):
                await _run(demo, arm, now)
        except TimeoutError:
            raise RequestFailedError(f"{arm.name}, the runs were not over after {demo.longest_s:.0f} s") from None
    return arms


async def _run(demo: WorkflowDemo, arm: WorkflowArm, now: Now) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="gateway-demo-")))
        sender = await stack.enter_async_context(connections())
        provider = await stack.enter_async_context(recording_provider(folder, sender, demo.seed, _FAULTS, _PACE))
        way = _Way(demo, arm, folder, sender, provider, now)
        way.write_address(provider.url)
        starts = {"program": partial(way.start_program, stack)}
        if arm.has_gateway:
            _write_config(folder, provider.url)
            starts = {"gateway": partial(way.start_gateway, stack), **starts}
        watching = asyncio.create_task(_keep_counting(arm, folder))
        stack.callback(watching.cancel)
        await way.play(starts)
        arm.journal = read_journal(folder / "journal")
        arm.ledger = await way.ledger()
        if arm.has_gateway:
            arm.reported = await _fetch_runs(Caller(sender, way.address()))


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to the provider, and who is on it."""

    demo: WorkflowDemo
    arm: WorkflowArm
    folder: Path
    sender: Http1Transport
    provider: RecordingProvider
    now: Now

    async def play(self, starts: Mapping[str, Start]) -> None:
        """Has the program work to its end; who is on the way is killed on the way, and started again."""
        running = {whom: await start() for whom, start in starts.items()}
        self.arm.began_at = self.now()
        for whom, point in self.demo.kill_points():
            if whom not in running:
                continue
            await self._until_answered(point, running["program"])
            at = self.now()
            running[whom].kill()
            calls, kept = await self._seen_and_kept() if whom == "gateway" else (0, frozenset[Step]())
            running[whom] = await starts[whom]()
            self.arm.kills.append(ProcessKill(whom, at, self.now(), calls, kept))
        while not running["program"].has_done_its_work:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(_LOOK_S)
        self.arm.ended_at = self.now()

    async def start_program(self, stack: AsyncExitStack) -> DemoProcess:
        """Starts the application, which goes on where its journal ends."""
        sizes = str(self.demo.runs), str(self.demo.steps)
        arguments = "address", "journal", *sizes, "yes" if self.arm.has_gateway else "no"
        return await stack.enter_async_context(process(self.folder, *arguments, module=program.__name__))

    async def start_gateway(self, stack: AsyncExitStack) -> DemoProcess:
        """Starts a gateway, and returns it once the program knows where it is."""
        arguments = "serve", "--config", "config.yaml", "--port", "0"
        one = await stack.enter_async_context(process(self.folder, *arguments))
        self.write_address(f"{await one.address('listens on ')}/v1")
        return one

    def write_address(self, url: str) -> None:
        """Gives the program the address of who answers it."""
        place = self.folder / "address.new"
        place.write_text(url)
        place.replace(self.folder / "address")

    def address(self) -> str:
        """Returns who answers the program."""
        return (self.folder / "address").read_text()

    async def ledger(self) -> list[StepCall]:
        """Returns the calls that the provider recorded."""
        return list(map(step_call, await self.provider.calls()))

    async def _until_answered(self, point: int, one: DemoProcess) -> None:
        """Waits until the provider has given so many answers. Raises RequestFailedError where the program has ended before."""
        while await self.provider.answers() < point:
            if one.has_done_its_work:
                raise RequestFailedError(f"{self.arm.name}, the runs were over before {point} answers")
            await asyncio.sleep(_LOOK_S)

    async def _seen_and_kept(self) -> tuple[int, frozenset[Step]]:
        """Returns how many calls have reached the provider, once it has noticed that no gateway is there, and what is kept."""
        await self.provider.until_left()
        found = kept_steps(str(self.folder / "jobs.db"))
        kept = frozenset((int(run.removeprefix(RUN)), int(step.removeprefix(STEP)) - 1) for run, step in found)
        return len(await self.ledger()), kept


def _write_config(folder: Path, url: str) -> None:
    entry = {"dialect": "openai", "kind": "openai", "base_url": url, "api_key": API_KEY}
    price = {"input_usd_per_million": INPUT_USD * 1e6, "output_usd_per_million": OUTPUT_USD * 1e6}
    config = {
        "providers": {"provider": entry},
        "models": {MODEL: {"targets": [{"provider": "provider", "model": MODEL, "price": price}]}},
        "jobs": {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/files", "min_free": "1MiB"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML


async def _fetch_runs(gateway: Caller) -> RunsReported:
    """Returns the gateway's list of the runs, page by page."""
    page = await gateway.get(f"/runs?limit={_PAGE}")
    runs: list[dict[str, Any]] = page["data"]
    while page["has_more"]:
        page = await gateway.get(f"/runs?limit={_PAGE}&after={runs[-1]['id']}")
        runs += page["data"]
    return RunsReported(sum(run["outcome"] == "succeeded" for run in runs), sum(run["cost_usd"] for run in runs))


async def _keep_counting(arm: WorkflowArm, folder: Path) -> None:
    """Notes how many runs are finished as they grow."""
    while True:
        arm.finished_so_far = sum(entry.what == "done" for entry in read_journal(folder / "journal"))
        await asyncio.sleep(10 * _LOOK_S)


_NAME = 24


def show_workflow(demo: WorkflowDemo, display: Display, chart: Path) -> list[WorkflowArm]:
    """Runs both ways in a loop of their own, saves their chart, and returns their records.

    Raises as `show` does, and RequestFailedError or ProcessFailedError where one came to no end.
    """
    check_folder(chart)
    display.print_line(f"{demo.runs:,} runs of {demo.steps} steps, each step quoting the answer of the one before.")
    display.print_line(f"{FAULTS}.")
    display.print_line("The program repeats no call: a run whose step failed it begins again from the first step.")
    display.print_line(f"It is killed with -9 {times(demo.kills)} on the way, and started again; so is the gateway.")
    display.print_line("Provider (an emulator), gateway and program are processes of their own.\n")

    def begin(arm: WorkflowArm) -> None:
        display.follow(partial(workflow_line, demo, arm))

    arms = perform(run_workflows(demo, begin), display)
    save_chart(chart, workflow_chart(arms), display)
    return arms


def workflow_line(demo: WorkflowDemo, arm: WorkflowArm, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns the progress of one way in a line shorter than `columns`; `marks` are as for a storm."""
    name = arm.name.ljust(_NAME)
    if not arm.began_at:
        return f"{name} getting ready ..."[: columns - 1]
    kills = demo.kills * (1 + arm.has_gateway)
    time_s = arm.duration_s or now - arm.began_at
    text = f" {arm.finished_so_far:>5,} of {arm.runs:,} runs  {len(arm.kills)} of {kills} kills {time_s:>6.1f} s"
    room = min(30, columns - 2 - len(name) - len(text))
    if room < 1:
        return f"{name}{text}"[: columns - 1]
    return f"{name} {progress_bar(arm.finished_so_far, 0, arm.runs, room, marks, has_colour)}{text}"


_LABELS = (
    "",
    "runs finished",
    "  no step of theirs failed",
    "begun again: a step had failed",
    "  killed on the way",
    "killed with -9: the program",
    "  the gateway",
    "the provider's ledger: calls",
    "  met a fault",
    "  steps paid",
    "  paid again",
    "    in flight at the gateway's kills",
    "    though they were kept",
    "steps replayed by the gateway",
    "$ a run, by the provider's ledger",
    "  each step paid once",
    "  by GET /v1/runs",
    "time",
)


def workflow_table(arms: Sequence[WorkflowArm]) -> str:
    """Returns the table of the ways, without a trailing newline."""
    return "\n".join(map(str.rstrip, lay_out([_LABELS, *map(_column, arms)]).splitlines()))


def _column(arm: WorkflowArm) -> tuple[str, ...]:
    return (
        arm.name,
        f"{arm.finished:,} of {arm.runs:,}",
        f"{arm.whole:,} ({percent(arm.whole, arm.runs)})",
        f"{len(arm.failures):,}",
        f"{arm.cut:,}",
        f"{arm.killed('program')}",
        _gateways(arm, f"{arm.killed('gateway')}"),
        f"{len(arm.ledger):,}",
        f"{arm.faults:,}",
        f"{arm.paid.total():,} of {arm.runs * arm.steps:,}",
        f"{arm.repaid:,}",
        _gateways(arm, f"{arm.in_flight:,}"),
        _gateways(arm, f"{arm.paid_though_kept:,}"),
        _gateways(arm, f"{arm.replayed:,}"),
        f"{arm.usd_per_run:.4f}",
        f"{arm.usd_once / arm.runs:.4f}",
        "-" if arm.reported is None else f"{arm.reported.usd / arm.runs:.4f}",
        f"{arm.duration_s:.1f} s",
    )


def _gateways(arm: WorkflowArm, figure: str) -> str:
    return figure if arm.has_gateway else "-"
