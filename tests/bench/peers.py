"""Other gateways, for comparison: LiteLLM and Portkey, each installed in an environment of its own under bench-results/peers.

Only `make bench-peers` comes here. Every step that is impossible on this machine is told in one line and skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.load import MODEL
from tests.bench.systems import System

LITELLM = "1.106.2"  # never 1.82.7 or 1.82.8: those two releases were compromised
PORTKEY = "1.15.2"
INSTALL_TIMEOUT_S = 600


def find_peers(folder: Path, upstream_port: int) -> tuple[list[System], dict[str, str]]:
    """Install what is missing; returns the peers that can run here, and why the others cannot."""
    systems: list[System] = []
    skipped: dict[str, str] = {}
    for name, install in (("LiteLLM", _litellm), ("Portkey", _portkey)):
        found = install(folder, upstream_port)
        if isinstance(found, System):
            systems.append(found)
        else:
            skipped[name] = found
    return systems, skipped


def _litellm(folder: Path, _upstream_port: int) -> System | str:
    home = folder / f"litellm-{LITELLM}"
    program = home / "bin" / "litellm"
    if not program.exists():
        failed = _install([sys.executable, "-m", "venv", str(home)]) or _install(
            [str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", f"litellm[proxy]=={LITELLM}"]
        )
        if failed:
            return failed

    def command(files: Path, port: int, upstream_port: int) -> list[str]:
        config = files / "litellm.yaml"
        config.write_text(
            f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
            f"      api_base: http://127.0.0.1:{upstream_port}/v1\n      api_key: sk-bench\n"
        )
        arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        return [str(program), *arguments, "--telemetry", "False"]

    environ = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        # As the gateway here: no keys, on loopback. With a key of its own it would do work that the others do not.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    }
    return System("LiteLLM", LITELLM, command, environ=environ, start_timeout_s=180, is_peer=True)


def _portkey(folder: Path, upstream_port: int) -> System | str:
    home = folder / f"portkey-{PORTKEY}"
    server = home / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "needs node and npm, which are not on PATH"
    if not server.exists():
        failed = _install(
            [npm, "install", "--silent", "--ignore-scripts", "--prefix", str(home), f"@portkey-ai/gateway@{PORTKEY}"]
        )
        if failed:
            return failed

    def command(_files: Path, port: int, _upstream_port: int) -> list[str]:
        return [node, str(server), f"--port={port}", "--headless"]

    headers = {  # it is told with every call where to send it
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
        "authorization": "Bearer sk-bench",
    }
    return System("Portkey", PORTKEY, command, headers=headers, start_timeout_s=60, is_peer=True)


def _install(command: list[str]) -> str | None:
    """Run one step of an installation; returns why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{Path(command[0]).name} took longer than {INSTALL_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
    return f"{Path(command[0]).name} could not install it: {lines[-1][:200]}"
