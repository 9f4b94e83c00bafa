"""One tool, one way: its providers and its gateway in processes of their own, and what became of its items."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bulk.provider import Script, paid_twice
from tests.bulk.tool import ROOT, Tool

WAYS = ("straight", "alone", "fallback")
MODELS = ("gpt-4o-mini", "text-embedding-3-small")
_LONGEST_MINUTES = 15
"""Of the provider's; a program that takes longer is ended."""
_START_S = 120
_POLL_S = 0.1


@dataclass(slots=True)
class Outcome:
    """What became of a tool's items; `calls` and the rest are counted at the providers, `refusals` where the tool calls."""

    tool: str
    way: str
    items: int
    done: int = 0
    took_s: float = 0.0
    last_begun_s: float = 0.0
    ideal_s: float | None = None
    """When the last call could have begun by the provider's limit and outage; None: with a fallback."""
    calls: list[int] = field(default_factory=list)
    limited: int = 0
    paid: int = 0
    paid_twice: int = 0
    abandoned: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    gateway_cpu_s: float = 0.0
    trouble: str = ""


def run(tool: Tool, way: str, items: int, minute_s: float, seed: int, folder: Path) -> Outcome:
    """Runs a tool's program, twice if it is to be killed; `folder` gets all logs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = Outcome(tool.name, way, items)
    with _providers(tool, minute_s, seed, folder) as ports:
        if way == "straight":
            _use(tool, outcome, f"http://127.0.0.1:{ports[0]}/v1", ports, minute_s, folder)
        else:
            with _gateway(ports[: 1 + (way == "fallback")], minute_s, folder) as (base_url, pid):
                _use(tool, outcome, base_url, ports, minute_s, folder)
                outcome.gateway_cpu_s = _cpu_s(pid)
        tallies = [_tally(port) for port in ports]
    (folder / "tallies.json").write_text(json.dumps(tallies))
    _count(outcome, tallies, Script.first(minute_s))
    if way != "straight":
        outcome.refusals = refusals_of((folder / "gateway.log").read_text().splitlines())
    return outcome


def _count(outcome: Outcome, tallies: Sequence[Mapping[str, Any]], script: Script) -> None:
    called = [tally for tally in tallies if tally["calls"]]
    accepted = sorted(tuple(each) for tally in called for each in tally["accepted"])
    outcome.calls = [tally["calls"] for tally in called]
    outcome.last_begun_s = accepted[-1][0] if accepted else 0.0
    outcome.ideal_s = None if outcome.way == "fallback" else round(script.ideal_s(call[1:] for call in accepted), 1)
    statuses: Counter[str] = Counter()
    for tally in called:
        statuses.update(tally["statuses"])
        outcome.abandoned += tally["abandoned"]
    outcome.limited, outcome.paid = statuses["429"], statuses["200"]
    outcome.paid_twice = paid_twice(tally["paid"] for tally in called)
    outcome.refusals = {("reset" if status == "0" else status): n for status, n in statuses.items() if status != "200"}


def refusals_of(log: Iterable[str]) -> dict[str, int]:
    """Returns how often each status but 2xx was given, and why, by the lines of a gateway's call log."""
    calls = [json.loads(line) for line in log if line.startswith("{")]
    refused = (call for call in calls if call.get("event") == "call" and not 200 <= call["status"] < 300)
    return dict(Counter(f"{call['status']} {call['outcome']}" for call in refused))


def _use(tool: Tool, outcome: Outcome, base_url: str, ports: Sequence[int], minute_s: float, folder: Path) -> None:
    """Runs the program to its end; one that is to be killed is killed and run again before that."""
    home = folder.resolve() / "home"
    home.mkdir()
    environ = environ_of(tool, home, base_url, outcome.items)
    began_at = time.monotonic()
    if tool.is_killed:
        with _started(tool.command, folder / "tool-killed", environ, home) as killed:
            while killed.poll() is None and _paid(ports) < outcome.items / 3:
                time.sleep(_POLL_S)
    with _started(tool.command, folder / "tool", environ, home) as program:
        try:
            program.wait(_LONGEST_MINUTES * minute_s + _START_S)
        except subprocess.TimeoutExpired:
            outcome.trouble = "was ended, it took too long"
    outcome.took_s = time.monotonic() - began_at
    result = result_of((folder / "tool.out").read_text())
    if result is None:
        why = reason_of((folder / "tool.err").read_text())
        outcome.trouble = outcome.trouble or f"ended with {program.returncode}: {why}"
    else:
        outcome.done = result["done"]


def result_of(output: str) -> dict[str, int] | None:
    """Returns the last line of a program's output that is its result."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"done":'):
            found: dict[str, int] = json.loads(line)
            return found
    return None


def reason_of(errors: str) -> str:
    """Returns the last exception that a program wrote to its standard error, else its last line."""
    lines = errors.strip().splitlines() or ["no reason given"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Timeout)\b", line)]
    return (raised or lines)[-1][:150].replace("|", "/")


def environ_of(tool: Tool, home: Path, base_url: str, items: int) -> dict[str, str]:
    """Returns all that a program knows: where to call, what to do, and that there is no network."""
    paths = [str(tool.environment / "bin"), str(tool.environment / "node_modules" / ".bin")]
    return {
        "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": "unused",
        "ITEMS": str(items),
        "HTTPS_PROXY": "http://127.0.0.1:9",  # nothing leaves this machine: no port of loopback is less likely to be open
        "NO_PROXY": "127.0.0.1,localhost",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def _providers(tool: Tool, minute_s: float, seed: int, folder: Path) -> Iterator[list[int]]:
    """Runs the scripted providers; yields their ports."""
    text = tool.folder / "answer.txt"
    told = ["--text", str(text)] if text.exists() else []
    command = [sys.executable, "-m", "tests.bulk.provider", "--minute", str(minute_s), "--seed", str(seed), *told]
    with _started(command, folder / "provider", dict(os.environ), ROOT) as process:
        ports: list[int] = json.loads(_found(process, folder / "provider.out", r"\[.*\]"))
        yield ports


@contextmanager
def _gateway(ports: Sequence[int], minute_s: float, folder: Path) -> Iterator[tuple[str, int]]:
    """Runs a new gateway with new state before these providers; yields its base URL and its process id."""
    config = folder / "gateway.yaml"
    config.write_text(json.dumps(config_of(ports, minute_s, folder)))  # JSON is YAML
    config.chmod(0o600)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config.resolve()), "--port", "0"]
    with _started(command, folder / "gateway", dict(os.environ), ROOT) as process:
        url = _found(process, folder / "gateway.err", r"listens on (http://[^\s,]+)")
        yield f"{url}/v1", process.pid
        process.send_signal(signal.SIGTERM)  # so that its log is whole
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
    (folder / "gateway.out").rename(folder / "gateway.log")


def config_of(ports: Sequence[int], minute_s: float, folder: Path) -> dict[str, Any]:
    """Returns a gateway's config: the first provider's limits written down, the second one a fallback, state in the folder."""
    script = Script.first(minute_s)
    limits = {"rpm": round(script.requests * 60 / minute_s), "tpm": round(script.tokens * 60 / minute_s)}
    models: dict[str, Any] = {model: {"targets": [{"provider": "p0", "model": model, **limits}]} for model in MODELS}
    if len(ports) > 1:
        for model in MODELS:
            models[model]["fallbacks"] = [f"spare/{model}"]
            models[f"spare/{model}"] = {"targets": [{"provider": "p1", "model": model}]}
    providers = {
        f"p{index}": {"dialect": "openai", "kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "x"}
        for index, port in enumerate(ports)
    }
    return {"jobs": {"store": f"sqlite:///{folder.resolve()}/jobs.db"}, "providers": providers, "models": models}


@contextmanager
def _started(
    command: Sequence[str], logs: Path, environ: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command as a session of its own; whatever is left of it is killed at the end."""
    with logs.with_suffix(".out").open("wb") as out, logs.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_children() -> None:
    """Kills whatever runs have started (Linux)."""
    for thread in Path("/proc/self/task").iterdir():
        for pid in (thread / "children").read_text().split():
            with suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


def _found(process: subprocess.Popen[bytes], file: Path, pattern: str) -> str:
    """Waits until a process writes what matches; returns the first group, else all of it. Raises RuntimeError if it ends."""
    while True:
        is_over = process.poll() is not None
        if match := re.search(pattern, file.read_text()):
            return match[match.re.groups]
        if is_over:
            raise RuntimeError(f"{file.stem} did not start: {file.with_suffix('.err').read_text()[-300:]}")
        time.sleep(_POLL_S)


def _tally(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/tally", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _paid(ports: Sequence[int]) -> int:
    return sum(sum(_tally(port)["paid"].values()) for port in ports)


def _cpu_s(pid: int) -> float:
    """Returns the CPU time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
