"""The scenario "batch": a file of lines at a tight provider with faults, and a gateway that is killed on the way.

Provider and gateway are processes of their own; the provider outlives every gateway, and its ledger is what counts. `run_batch`
runs it, `show_batch` shows it. Invariant: nothing is left of it, neither processes nor files, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.core.http.client.transport import Http1Transport
from gateway.demo.clients import API_KEY, MODEL
from gateway.demo.processes import (
    Caller,
    RecordingProvider,
    RequestFailedError,
    connections,
    process,
    recording_provider,
)
from gateway.demo.record import BatchRun, KillNote, LedgerEntry
from gateway.demo.show import Display, batch_chart, check_folder, lay_out, perform, progress_bar, save_chart, times
from gateway.demo.sqlite import lines_with_results

LINES_PER_KILL = 20
"""A kill wants so many lines, so that there is something to kill."""
_LOOK_S = 0.05
_PATIENCE_S, _PATIENCE = 120.0, 3.0
"""The batch may take so long, and so many times its ideal time."""
_ENDS = frozenset({"completed", "failed", "cancelled", "expired"})
_PACE = {"ttft": 0.15, "tokens_per_second": 200, "jitter": 0.3, "output_tokens": 40}
_FAULTS = ("e500=0.02", "e503=0.02", "reset=0.01")
FAULTS = "2 % of the calls meet a 500, 2 % a 503, 1 % a connection that is reset"
"""What goes wrong at the provider; none of it is paid for."""

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class BatchDemo:
    """The scenario: a batch of `lines` at a limit of `rpm` requests per minute, `burst` of them at once."""

    lines: int = 2000
    rpm: int = 3600
    burst: int = 60
    kills: int = 2
    seed: int = 1
    """The seed of the moments of the kills, and of the provider's faults and pace."""

    def kill_points(self) -> list[int]:
        """Returns after how many of the provider's answers the gateway is killed."""
        draw = random.Random(self.seed).uniform  # noqa: S311 - a moment is no secret
        return [round(self.lines * (number + 1 + draw(-0.3, 0.3)) / (self.kills + 1)) for number in range(self.kills)]


async def run_batch(demo: BatchDemo, begin: Callable[[BatchRun], None], now: Now = time.monotonic) -> BatchRun:
    """Runs the batch to its end; `begin` gets its record before anything runs, to show its progress.

    Raises RequestFailedError and ProcessFailedError where it comes to no end.
    """
    run = BatchRun(demo.lines, demo.rpm / 60.0, demo.burst)
    begin(run)
    longest_s = _PATIENCE_S + _PATIENCE * run.ideal_s
    try:
        async with asyncio.timeout(longest_s):
            await _run(demo, run, now)
    except TimeoutError:
        raise RequestFailedError(f"the batch was not over after {longest_s:.0f} s") from None
    return run


async def _run(demo: BatchDemo, run: BatchRun, now: Now) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="gateway-demo-")))
        sender = await stack.enter_async_context(connections())
        pace = {**_PACE, "rpm": demo.rpm, "burst": demo.burst}
        provider = await stack.enter_async_context(recording_provider(folder, sender, demo.seed, _FAULTS, pace))
        _write_config(demo, folder, provider.url)
        watching = asyncio.create_task(_keep_counting(run, provider, now))
        stack.callback(watching.cancel)
        await _run_lives(demo, run, folder, sender, provider, now)
        run.ledger = await _ledger(provider)


async def _run_lives(
    demo: BatchDemo, run: BatchRun, folder: Path, sender: Http1Transport, provider: RecordingProvider, now: Now
) -> None:
    """Has one gateway after the other work at the batch, the last to its end."""
    batch_id, killed_at = "", 0.0
    for point in [*demo.kill_points(), None]:
        async with process(folder, "serve", "--config", "config.yaml", "--port", "0") as one:
            gateway = Caller(sender, await one.address("listens on "))
            if run.began_at is None:
                run.began_at = now()
                batch_id = await _make_batch(gateway, demo.lines)
            else:
                run.away_s.append(now() - killed_at)
            if point is None:
                await _finish(gateway, batch_id, run, now)
            else:
                await _until_answered(run, point, gateway, batch_id)
                one.kill()
                killed_at = now()
                run.kills.append(await _note(run, folder, provider, killed_at))


def _write_config(demo: BatchDemo, folder: Path, url: str) -> None:
    entry = {"dialect": "openai", "kind": "openai", "base_url": url, "api_key": API_KEY}
    target = {"provider": "provider", "model": MODEL, "rpm": demo.rpm, "burst": demo.burst}
    config = {
        "policies": "policies",
        "providers": {"provider": entry},
        "models": {MODEL: {"targets": [target]}},
        "jobs": {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/files", "min_free": "1MiB"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    (folder / "policies").mkdir()
    backoff = {"base": "1s", "max": "4s"}  # what failed four times in a call waits up to 30 s, were it not a demo
    (folder / "policies" / "jobs.yaml").write_text(json.dumps({"default": {"backoff": backoff}}))


async def _make_batch(gateway: Caller, lines: int) -> str:
    """Uploads the lines, makes a batch of them, and returns its id."""
    content = b"".join(json.dumps(_line(number)).encode() + b"\n" for number in range(lines))
    file_id = await gateway.upload("night.jsonl", content)
    request = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str((await gateway.post("/v1/batches", request))["id"])


def _line(number: int) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{number}: tell me about this number."}]}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


async def _until_answered(run: BatchRun, point: int, gateway: Caller, batch_id: str) -> None:
    """Waits until the provider has given so many answers. Raises RequestFailedError where the batch has ended before."""
    while not run.seen or run.seen[-1][1] < point:
        await asyncio.sleep(_LOOK_S)
        batch = await gateway.get(f"/v1/batches/{batch_id}")
        if batch["status"] in _ENDS:
            raise RequestFailedError(f"the batch is {batch['status']} too early: {json.dumps(batch)}")


async def _note(run: BatchRun, folder: Path, provider: RecordingProvider, killed_at: float) -> KillNote:
    """Returns what was kept, and what the provider has seen, once it has noticed that the gateway is gone."""
    await provider.until_left()
    calls = len(await _ledger(provider))
    return KillNote(run.time_s(killed_at), calls, lines_with_results(str(folder / "jobs.db")))


async def _finish(gateway: Caller, batch_id: str, run: BatchRun, now: Now) -> None:
    """Waits for the end of the batch, and reads its files."""
    while (batch := await gateway.get(f"/v1/batches/{batch_id}"))["status"] not in _ENDS:  # noqa: ASYNC110 - a poll
        await asyncio.sleep(_LOOK_S)
    run.duration_s = run.time_s(now())
    run.status = batch["status"]
    run.answered = await _custom_ids(gateway, batch["output_file_id"])
    run.failed = await _custom_ids(gateway, batch["error_file_id"])


async def _custom_ids(gateway: Caller, file_id: str | None) -> list[int]:
    if file_id is None:
        return []
    return [
        int(json.loads(line)["custom_id"])
        for line in (await gateway.fetch(f"/v1/files/{file_id}/content")).splitlines()
    ]


async def _keep_counting(run: BatchRun, provider: RecordingProvider, now: Now) -> None:
    """Notes the provider's answers as they grow."""
    while True:
        with suppress(RequestFailedError):
            answered = await provider.answers()
            if run.began_at is not None and (not run.seen or run.seen[-1][1] != answered):
                run.seen.append((run.time_s(now()), answered))
        await asyncio.sleep(_LOOK_S)


async def _ledger(provider: RecordingProvider) -> list[LedgerEntry]:
    """Returns the calls that the provider recorded."""
    return [_entry(one) for one in await provider.calls() if one["path"] == "/v1/chat/completions"]


def _entry(recorded: dict[str, Any]) -> LedgerEntry:
    prompt = json.loads(recorded["body"])["messages"][0]["content"]
    return LedgerEntry(int(prompt.partition(":")[0]), recorded["status"], recorded["left"])


def show_batch(demo: BatchDemo, display: Display, chart: Path) -> BatchRun:
    """Runs the batch in a loop of its own, saves its chart, and returns its record.

    Raises as `show` does, and RequestFailedError or ProcessFailedError where the batch came to no end.
    """
    check_folder(chart)
    display.print_line(
        f"A batch of {demo.lines:,} lines. The limit: {demo.rpm:,} requests/min, {demo.burst:,} of them at once."
    )
    display.print_line(f"{FAULTS}.")
    display.print_line(f"The gateway is killed with -9 {times(demo.kills)} on the way, and started again.")
    display.print_line("Provider (an emulator) and gateway are processes of their own.\n")

    def begin(run: BatchRun) -> None:
        display.follow(partial(batch_line, demo, run))

    run = perform(run_batch(demo, begin), display)
    save_chart(chart, batch_chart(run), display)
    return run


def batch_line(demo: BatchDemo, run: BatchRun, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns the progress of the batch in a line shorter than `columns`; `marks` are as for a run."""
    if run.began_at is None:
        return "getting ready ..."[: columns - 1]
    answered = run.seen[-1][1] if run.seen else 0
    time_s = run.duration_s or run.time_s(now)
    text = f" {answered:>6,} answers by the provider  {len(run.kills)} of {demo.kills} kills {time_s:>6.1f} s"
    room = min(30, columns - 2 - len(text))
    if room < 1:
        return text[: columns - 1]
    return progress_bar(min(answered, demo.lines), 0, demo.lines, room, marks, has_colour) + text


def batch_table(run: BatchRun) -> str:
    """Returns the table of a batch, without a trailing newline: what its files say, and what the provider recorded."""
    statuses = run.statuses
    faults = sum(count for status, count in statuses.items() if status not in (200, 429))
    kept = ", ".join(f"{len(kill.kept):,}" for kill in run.kills)
    away = ", ".join(f"{away_s:.1f} s" for away_s in run.away_s)
    rows = (
        ("", "the batch", "the provider's ledger"),
        ("lines with a result", f"{run.lines - run.lost:,} of {run.lines:,}", f"{len(run.paid):,} of {run.lines:,}"),
        ("  failed", f"{len(run.failed):,}", ""),
        ("  results twice", f"{run.results_twice:,}", ""),
        ("calls", "", f"{len(run.ledger):,}"),
        ("  refused with a 429", "", f"{statuses[429]:,}"),
        ("  met a fault", "", f"{faults:,}"),
        ("  paid for", "", f"{run.paid.total():,}"),
        ("killed with -9", f"{len(run.kills)}", ""),
        ("  results kept by then", kept or "-", ""),
        ("  back after", away or "-", ""),
        ("in flight at the kills", "", f"{run.in_flight:,}"),
        ("paid twice", "", f"{run.paid_twice:,}"),
        ("  though its result was kept", "", f"{run.paid_though_kept:,}"),
        ("time", f"{run.duration_s:.1f} s", ""),
        ("  ideal: the limit alone", f"{run.ideal_s:.1f} s{_ratio(run)}", ""),
    )
    return "\n".join(map(str.rstrip, lay_out(list(zip(*rows, strict=True))).splitlines()))


def _ratio(run: BatchRun) -> str:
    return f" ({run.duration_s / run.ideal_s:.2f}x)" if run.ideal_s else ""
