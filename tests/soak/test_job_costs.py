"""What durable work costs: a line of a batch beside a plain call, the taking of a job, and one that nobody asks for.

CPU is that of the gateway's process, by the kernel; the provider and the load have processes of their own. Bars that are times
are for a quiet machine: run it with nothing else on it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import orjson
import pytest
import yaml

from gateway import process as interpreter
from gateway.products.jobs.model import ClaimRequest
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.bench import load
from tests.bench.measure import tree_cpu_s
from tests.bench.systems import free_port
from tests.e2e.durable import ask
from tests.e2e.harness import get, post
from tests.e2e.lives import life
from tests.products.jobs import crowd
from tests.soak.conftest import Report
from tests.soak.load import Load
from tests.soak.support import Served, rss_kib, serve
from tests.support.job_stores import Jobs

pytestmark = pytest.mark.soak

CONNECTIONS, SECONDS = 32, 5.0
LINES = 10_000
LINE_RATIO = 1.2
"""CPU of a line to CPU of a plain call."""
PER_S, TAKE_P99_S, TAKE_CPU_S, TAKE_PEAK_PER_S = 500.0, 0.015, 250e-6, 2000.0
SLOWER = 1.0 if interpreter.doubt() is None else 1.33
"""An interpreter without optimisations takes a third more."""
IDLE_S, IDLE_SHARE, IDLE_KIB, START_S = 20.0, 0.002, 8 * 1024, 0.1
STARTS = 5
JOBS, MORE_START_S = 1_000_000, 0.3
LATER = {
    "endpoint": "/v1/chat/completions",
    "body": {"model": load.MODEL, "messages": [{"role": "user", "content": "hello"}]},
    "delay": "1h",
}
ASYNC = {"prefer": "respond-async"}


@asynccontextmanager
async def canned() -> AsyncIterator[int]:
    """The port of a provider that costs next to nothing."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.bench.canned", str(port))
    try:
        await asyncio.sleep(1.0)
        yield port
    finally:
        process.kill()
        await process.wait()


def write(folder: Path, provider: int, jobs: object) -> Path:
    """A config in a folder of its own."""
    folder.mkdir(exist_ok=True)
    main = {"dialect": "openai", "base_url": f"http://127.0.0.1:{provider}/v1", "api_key": "k"}
    config = {"providers": {"main": main}, "models": {load.MODEL: {"targets": [f"main/{load.MODEL}"]}}, "jobs": jobs}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def kept(folder: Path, **more: object) -> dict[str, object]:
    """Jobs in a folder."""
    return {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/blobs", **more}


async def plain(served: Served, headers: dict[str, str] | None = None) -> tuple[load.PlainResult, float]:
    """Calls in a closed loop: what the client saw, and CPU seconds of each."""
    port, before = int(served.url.rpartition(":")[2]), tree_cpu_s(served.pid)
    seen = await asyncio.to_thread(load.run_plain, port, headers or {}, connections=CONNECTIONS, seconds=SECONDS)
    return seen, (tree_cpu_s(served.pid) - before) / seen.calls


async def upload(url: str) -> str:
    """The id of a file with this many lines of the same call."""
    body = load.chat_body()
    text = b'{"custom_id":"line %d","method":"POST","url":"/v1/chat/completions","body":%b}\n'
    form = b'--X\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    form += b'--X\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form += b"".join(text % (number, body) for number in range(LINES)) + b"\r\n--X--\r\n"
    answer = await ask(url, post("/v1/files", form, "content-type: multipart/form-data; boundary=X"))
    assert answer.status == 200, answer.raw
    found: str = orjson.loads(answer.body)["id"]
    return found


async def run_batch(served: Served, file_id: str) -> tuple[float, float]:
    """A batch from its making to its end: seconds, and CPU seconds of each line."""
    began, before = time.monotonic(), tree_cpu_s(served.pid)
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = orjson.loads((await ask(served.url, post("/v1/batches", asked))).body)
    while batch["status"] not in ("completed", "failed"):
        await asyncio.sleep(0.1)
        batch = orjson.loads((await ask(served.url, get(f"/v1/batches/{batch['id']}"))).body)
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}, batch
    return time.monotonic() - began, (tree_cpu_s(served.pid) - before) / LINES


async def test_a_line_costs_what_a_call_costs(tmp_path: Path, report: Report) -> None:
    """From the check of the input to the output file, against plain calls before and after in the same process."""
    async with canned() as provider, serve(write(tmp_path / "gateway", provider, kept(tmp_path))) as served:
        await plain(served)
        file_id = await upload(served.url)
        calls, lines, rates = list[float](), list[float](), list[tuple[float, float]]()
        for _ in range(3):
            seen, call_s = await plain(served)
            seconds, line_s = await run_batch(served, file_id)
            calls.append(call_s)
            lines.append(line_s)
            rates.append((seen.calls / seen.seconds, LINES / seconds))

    ratio = median(lines) / median(calls)
    report(
        f"a line {median(lines) * 1e6:.0f} us of CPU, a plain call {median(calls) * 1e6:.0f} us: {ratio:.2f}x; "
        f"plain calls and lines a second, by round: {', '.join(f'{one:.0f} and {other:.0f}' for one, other in rates)}"
    )
    assert ratio <= LINE_RATIO


async def test_taking_a_job_is_quick(tmp_path: Path, report: Report) -> None:
    """At 500 a second, each on the disk before it is acknowledged, and as fast as they come; nobody runs them here."""
    config = write(tmp_path / "gateway", 1, kept(tmp_path, work=False))
    async with serve(config) as served:
        call = post("/v1/chat/completions", load.chat_body(), "prefer: respond-async")

        def check(_number: int, answer: object) -> str:
            assert getattr(answer, "status", None) == 202
            return "taken"

        await plain(served, ASYNC)
        before = tree_cpu_s(served.pid)
        taking = Load(served.url, PER_S, lambda _number: call, check)
        await taking.during(asyncio.sleep(10))
        paced_cpu_s = (tree_cpu_s(served.pid) - before) / taking.calls
        peak, peak_cpu_s = await plain(served, ASYNC)

    waits = sorted(taking.latencies_s["taken"])
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    report(
        f"{len(waits)} jobs at {PER_S:.0f}/s: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, {paced_cpu_s * 1e6:.0f} us of "
        f"CPU each; at full speed {peak.calls / peak.seconds:.0f}/s, p99 {peak.p99_ms:.1f} ms, {peak_cpu_s * 1e6:.0f} us"
    )
    assert taking.faults == []
    assert p99 <= TAKE_P99_S
    assert peak_cpu_s <= TAKE_CPU_S * SLOWER
    assert peak.calls / peak.seconds >= TAKE_PEAK_PER_S


async def test_jobs_that_nobody_asks_for_cost_nothing(tmp_path: Path, report: Report) -> None:
    """CPU and memory of an idle gateway, and CPU of its start: with jobs off, on, and on with a file that was used once."""
    found: dict[str, tuple[float, float, float]] = {}
    for name in ("off", "on", "used"):
        folder = tmp_path / name
        config = write(folder, 1, "off" if name == "off" else kept(folder))
        starts = []
        for _ in range(STARTS):
            async with serve(config) as served:
                starts.append(tree_cpu_s(served.pid))
                if name == "used":
                    await ask(served.url, post("/v1/jobs", LATER))
        async with serve(config) as served:
            await asyncio.sleep(3.0)
            before = tree_cpu_s(served.pid)
            await asyncio.sleep(IDLE_S)
            share = (tree_cpu_s(served.pid) - before) / IDLE_S
            found[name] = share, rss_kib(served.pid), median(starts)

    report(
        "; ".join(
            f"jobs {name}: {share:.2%} of a core, {kib / 1024:.1f} MiB, start {start_s:.2f} s of CPU"
            for name, (share, kib, start_s) in found.items()
        )
    )
    for name in ("on", "used"):
        more = [one - other for one, other in zip(found[name], found["off"], strict=True)]
        assert more[0] <= IDLE_SHARE
        assert more[1] <= IDLE_KIB
        assert more[2] <= START_S


async def test_a_start_with_a_million_jobs(tmp_path: Path, report: Report) -> None:
    """From the start of the process, after a kill, to the first answer of `/v1/jobs`: no slower than without any."""
    found: dict[int, list[float]] = {0: [], JOBS: []}
    for number in found:
        folder = tmp_path / str(number)
        folder.mkdir()
        await _fill(folder / "jobs.db", number)
        config = write(folder, 1, kept(folder, work=False))
        for _ in range(3):
            began = time.monotonic()
            async with life(config) as served:
                answer = await ask(served.url, get("/v1/jobs?limit=1"))
                found[number].append(time.monotonic() - began)
                assert answer.status == 200
                served.kill()
                await served.ends()

    report("; ".join(f"{number} jobs: {', '.join(f'{one:.2f}' for one in times)} s" for number, times in found.items()))
    assert min(found[JOBS]) - min(found[0]) <= MORE_START_S


async def _fill(path: Path, number: int) -> None:
    """Jobs that wait, and a few that ran when their worker died."""
    jobs = Jobs(SqliteJobStore(str(path), time.time, OpenBounds(2 * number + 1, 2 * number + 1)), time.time)  # type: ignore[arg-type]  # its clock
    for first in range(0, number, crowd.AT_ONCE):
        await jobs.store.accept([crowd.new(jobs, first + one) for one in range(crowd.AT_ONCE)])
    await jobs.store.claim([ClaimRequest("fast", 400)])
    await jobs.store.aclose()
