"""The systems under test: how each is configured, started on its core, and stopped again.

A `System` is a name and a way to build a command line; it knows nothing of what is measured. Invariant: leaving `run`
leaves no process behind, however it is left, because every system is a session of its own and its whole group is killed.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tests.bench.canned import answer_body
from tests.bench.load import CLAUDE, MODEL, PATH, chat_body

ROOT = Path(__file__).resolve().parents[2]
SHARING = "redis state"
OPERATIONS = "gateway_state_operations_total"
STOP_S = 5.0
POLL_S = 0.002

Command = Callable[[Path, int, int], list[str]]
"""(folder for its files, its port, the provider's port) -> command line."""


class StartError(Exception):
    """A system did not come up, or answered something else than the provider did."""


@dataclass(frozen=True, slots=True)
class System:
    """One system under test."""

    name: str
    version: str
    command: Command
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent along with every call."""
    environ: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 20.0
    is_plain_only: bool = False
    """Measured for plain calls only."""
    is_paced: bool = False
    """Measured at a steady rate, too."""
    is_peer: bool = False
    """Measured for plain calls only; its answer may differ in form from the provider's."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started system: where it listens, its process, and how long it took from spawn to its first answer."""

    port: int
    pid: int
    start_s: float


@contextmanager
def run(system: System, folder: Path, upstream_port: int, core: int) -> Iterator[Running]:
    """Start the system on a core; it has answered one call by the time this yields. Raises StartError."""
    port = free_port()
    home = folder / system.name.replace(" ", "-")
    home.mkdir(exist_ok=True)
    command = system.command(home, port, upstream_port)
    started_at = time.perf_counter()
    with spawn(command, core, home / "stderr.log", system.environ) as process:
        while not _answers(system, port):
            if process.poll() is not None or time.perf_counter() - started_at > system.start_timeout_s:
                raise StartError(f"{system.name} did not start: {_last_lines(home / 'stderr.log')}")
            time.sleep(POLL_S)
        yield Running(port, process.pid, time.perf_counter() - started_at)


@contextmanager
def spawn(
    command: list[str], core: int, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on one core; on leaving, its whole process group is stopped."""
    with log.open("wb") as errors:
        own_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # children inherit it, from their first instruction on
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, own_cores)
    try:
        yield process
    finally:
        _stop(process)


@contextmanager
def canned_provider(folder: Path, core: int) -> Iterator[int]:
    """Run the canned provider; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.canned", str(port)]
    with spawn(command, core, folder / "canned.log") as process:
        ends_at = time.perf_counter() + 10
        while _call(port, {}) is None:
            if process.poll() is not None or time.perf_counter() > ends_at:
                raise StartError(f"the canned provider did not start: {_last_lines(folder / 'canned.log')}")
            time.sleep(POLL_S)
        yield port


@contextmanager
def shared_redis(folder: Path, core: int) -> Iterator[int | None]:
    """Run a Redis that keeps nothing on disk; yields its port, or None where none is installed."""
    server = shutil.which("redis-server")
    if server is None:
        yield None
        return
    port = free_port()
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with spawn([server, *where, "--save", "", "--appendonly", "no"], core, folder / "redis.log") as process:
        ends_at = time.perf_counter() + 10
        while not _listens(port):
            if process.poll() is not None or time.perf_counter() > ends_at:
                raise StartError(f"redis-server did not start: {_last_lines(folder / 'redis.log')}")
            time.sleep(POLL_S)
        yield port


def store_operations(port: int) -> float:
    """What a gateway has asked its shared store so far, by its own count; 0 where it has none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(OPERATIONS))


def find_systems(only: set[str], redis_port: int | None) -> tuple[list[System], dict[str, str]]:
    """The systems that can run here, and why the others cannot; `redis_port`: of the Redis that a gateway may share."""
    uvicorn = f"uvicorn {version('uvicorn')}, httptools {version('httptools')}"
    systems = [
        System("gateway", _gateway_version(), _gateway, is_paced=True),
        System("cache hit", _gateway_version(), _caching_gateway, is_plain_only=True),
        System("floor", uvicorn, _floor),
    ]
    skipped: dict[str, str] = {}
    if redis_port is not None:
        sharing = partial(_gateway, more=f"state: redis://127.0.0.1:{redis_port}/0\n")
        systems.insert(1, System(SHARING, _gateway_version(), sharing, is_plain_only=True, is_paced=True))
    elif SHARING in only:
        skipped[SHARING] = "redis-server not found on PATH; install it (apt-get install redis-server) to compare"
    nginx = find_nginx()
    if nginx is not None:
        systems.append(System("nginx", _nginx_version(nginx), _nginx))
    elif "nginx" in only:
        skipped["nginx"] = "not found on PATH or in /usr/sbin; install it (apt-get install nginx-light) to compare"
    return [system for system in systems if system.name in only], skipped


def find_nginx() -> str | None:
    """Where nginx is."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _caching_gateway(folder: Path, port: int, upstream_port: int) -> list[str]:
    """The gateway with the exact cache on: all calls but the first are hits."""
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies" / "cache.yaml").write_text("default: {exact: {requests: always, ttl: 1d}}\n")
    return _gateway(folder, port, upstream_port, more="policies: policies\n")


def _gateway(folder: Path, port: int, upstream_port: int, more: str = "") -> list[str]:
    config = write_gateway_config(folder, port, upstream_port, more)
    return [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-format", "json"]


def write_gateway_config(folder: Path, port: int, upstream_port: int, more: str = "", of_model: str = "") -> Path:
    """All default policies in force; the targets' limits are there to be checked, and too high to be felt.

    `more` goes below `models`, with all that follows there; `of_model` are lines of the model that plain calls ask for."""
    config = folder / "gateway.yaml"
    canned = f"base_url: 'http://127.0.0.1:{upstream_port}/v1', api_key: sk-bench"
    limits = "rpm: 1000000000, tpm: 1000000000000"
    config.write_text(
        f"server: {{host: 127.0.0.1, port: {port}, grace: 1s}}\n"
        f"providers:\n  canned: {{dialect: openai, {canned}}}\n  claude: {{dialect: anthropic, {canned}}}\n"
        f"models:\n  {MODEL}:\n    targets: [{{provider: canned, model: {MODEL}, {limits}}}]\n{of_model}"
        f"  {CLAUDE}:\n    targets: [{{provider: claude, model: {CLAUDE}, {limits}}}]\n{more}"
    )
    return config


def _floor(_folder: Path, port: int, upstream_port: int) -> list[str]:
    return [sys.executable, "-m", "tests.bench.floor", str(port), str(upstream_port)]


def _nginx(folder: Path, port: int, upstream_port: int) -> list[str]:
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(f"""
{user} worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; {temporary}
  keepalive_requests 1000000000;
  upstream provider {{
    server 127.0.0.1:{upstream_port};
    keepalive 512; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://provider; proxy_buffering off;
      proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Authorization "Bearer sk-bench";
    }}
  }}
}}
""")
    return [find_nginx() or "nginx", "-p", str(folder), "-c", str(config), "-e", "stderr"]


def _gateway_version() -> str:
    source = (ROOT / "gateway" / "__init__.py").read_text()
    return source.partition('__version__ = "')[2].partition('"')[0]


def _nginx_version(nginx: str) -> str:
    told = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=False).stderr
    return told.strip().rpartition("/")[2] or "unknown"


def _answers(system: System, port: int) -> bool:
    """Whether the first call succeeds. Raises StartError when it does with something wrong."""
    answered = _call(port, system.headers)
    if answered is None:
        return False
    status, body = answered
    if status != 200:
        if system.is_peer:  # some refuse calls while they are still starting
            return False
        raise StartError(f"{system.name} answered its first call with {status}: {body[:200].decode('latin-1')}")
    if not _is_right(system, body):
        raise StartError(f"{system.name} changed the answer: {body[:200].decode('latin-1')}")
    return True


def _is_right(system: System, body: bytes) -> bool:
    expected = answer_body()
    if not system.is_peer:
        return body == expected
    content = json.loads(expected)["choices"][0]["message"]["content"]
    return bool(json.loads(body)["choices"][0]["message"]["content"] == content)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


def _call(port: int, headers: Mapping[str, str]) -> tuple[int, bytes] | None:
    """One chat call; None when nobody listens yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", PATH, chat_body(), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, a moment of patience, SIGKILL; each to the whole group."""
    _signal(process, signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _last_lines(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:] or "it said nothing"
