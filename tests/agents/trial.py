"""A gateway with keys of two tenants before a strict emulator, and what becomes of a client's trials there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

from gateway.emulator.config import EmulatorConfig, parse_rule
from tests.agents.client import CLIENTS_FOLDER, TRIALS, Client
from tests.e2e.harness import Running, start_gateway

_KEYS: Final = MappingProxyType({"acme": "sk-acme-0123456789abcdef", "globex": "sk-globex-0123456789abcdef"})
TENANTS: Final = tuple(_KEYS)
_LONGEST_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Target:
    """A provider that has one language alone, and two of its models; the second one refuses each prompt as too long."""

    provider: Mapping[str, Any]
    model: str
    long_model: str


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "chat": Target({"dialect": "openai", "speaks": ["chat"]}, "gpt-5.1", "gpt-5-mini"),
        "responses": Target({"dialect": "openai", "speaks": ["responses"]}, "gpt-5.1", "gpt-5-mini"),
        # Claude Code sends turns with `role: system`, which older models refuse.
        "messages": Target({"dialect": "anthropic"}, "claude-opus-5", "claude-opus-4-8"),
        "generate": Target({"dialect": "gemini"}, "gemini-2.5-flash", "gemini-2.5-flash-lite"),
        "converse": Target(
            {"dialect": "bedrock", "region": "us-east-1"},
            "anthropic.claude-sonnet-4-5-20250929-v1:0",
            "anthropic.claude-haiku-4-5-20251001-v1:0",
        ),
    }
)
"""By the language of the provider."""


@dataclass(slots=True)
class Outcome:
    """What became of a client's trials at one target with one key: by trial None, or what was wrong."""

    client: str
    target: str
    tenant: str
    trials: dict[str, str | None]
    refused: list[str] = field(default_factory=list)
    """What the emulator refused of calls that were not to fail."""
    lossy: list[str] = field(default_factory=list)
    """What did not reach the target as the client said it."""

    @property
    def is_good(self) -> bool:
        return not self.refused and not any(self.trials.values())


def config_of(base_url: str) -> dict[str, Any]:
    """Returns a gateway's config: keys of two tenants, and for each target models that are named after it.

    `NAME-long` refuses each prompt; `gpt-5.5-NAME` and its like are the same as `NAME` for agents that know models by names.
    """
    config: dict[str, Any] = {
        "keys": [{"name": f"{tenant}-key", "key": key, "tenant": tenant} for tenant, key in _KEYS.items()],
        "providers": {},
        "models": {},
    }
    for name, target in TARGETS.items():
        url = base_url if target.provider["dialect"] == "openai" else base_url.removesuffix("/v1")
        config["providers"][name] = {**target.provider, "base_url": url, "api_key": "sk-of-the-provider"}
        config["models"][name] = {"targets": [f"{name}/{target.model}"]}
        for family in ("gpt-5.5", "claude-sonnet-4-5", "gemini-2.5-pro"):
            config["models"][f"{family}-{name}"] = config["models"][name]
        config["models"][f"{name}-long"] = {"targets": [f"{name}/{target.long_model}"]}
    return config


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Running]:
    """Runs a strict emulator and a gateway before it; the folder gets its config."""
    rules = tuple(parse_rule(f"context_length=1;model={target.long_model}") for target in TARGETS.values())
    emulator = EmulatorConfig(strict=True, faults=rules, recorded_requests=10_000, recorded_bytes=2**30)
    running = await start_gateway(folder, config_of, emulator=emulator)
    try:
        yield running
    finally:
        await running.stop()


async def run(client: Client, target: str, tenant: str, running: Running, folder: Path) -> Outcome:
    """Runs the client's program; `folder` gets what it wrote, and what reached the emulator."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "home").mkdir(parents=True)
    running.emulator.emulator.recorder.clear()
    logged = len(running.log.getvalue())
    environ = environ_of(client, target, tenant, running.url, folder / "home")
    output = await _output(client.command, environ, folder)
    (folder / "output.txt").write_text(output)
    received = running.received()
    (folder / "received.json").write_text(json.dumps(received, indent=1))
    lines = [json.loads(line) for line in running.log.getvalue()[logged:].split("\n") if line]
    (folder / "calls.json").write_text(json.dumps(lines, indent=1))
    lossy = sorted({field for line in lines for field in line.get("lossy", ())})
    return Outcome(client.name, target, tenant, outcomes_of(output), refusals_of(received), lossy)


def environ_of(client: Client, target: str, tenant: str, url: str, home: Path) -> dict[str, str]:
    """Returns all that a program knows: where to call and with which key, and that there is no network."""
    paths = [str(client.environment / "bin"), str(client.environment / "node_modules" / ".bin")]
    return {
        "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
        "PYTHONPATH": str(CLIENTS_FOLDER),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "GATEWAY_URL": url,
        "GATEWAY_KEY": _KEYS[tenant],
        "MODEL": target,
        "LONG_MODEL": f"{target}-long",
        "HTTPS_PROXY": "http://127.0.0.1:9",  # nothing leaves this machine: no port of loopback is less likely to be open
        "NO_PROXY": "127.0.0.1,localhost",
        "DO_NOT_TRACK": "1",
    }


async def _output(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """Runs a command below everything else on the machine, as a session of its own; returns what it wrote."""
    process = await asyncio.create_subprocess_exec(
        "nice",
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
        cwd=folder / "home",
        start_new_session=True,
    )
    try:
        written, _ = await asyncio.wait_for(process.communicate(), _LONGEST_S)
    except TimeoutError:
        return f"took longer than {_LONGEST_S:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()
    return written.decode("utf-8", "replace")


def outcomes_of(output: str) -> dict[str, str | None]:
    """Returns what a program printed of its trials; of one that ended before, its last line for each."""
    lines = output.strip().splitlines() or ["no output"]
    for line in reversed(lines):
        if line.startswith('{"outcomes":'):
            found: dict[str, str | None] = json.loads(line)["outcomes"]
            return found
    return dict.fromkeys(TRIALS, lines[-1][:400])


def refusals_of(received: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns what the emulator refused, by its records, of calls to the models that refuse nothing by themselves."""
    long_models = [target.long_model for target in TARGETS.values()]
    failed = (each for each in received if (each["status"] or 0) >= 400)
    kept = (each for each in failed if not any(model in unquote(each["path"]) + each["body"] for model in long_models))
    return [f"{each['status']} at {each['path']}" for each in kept]
