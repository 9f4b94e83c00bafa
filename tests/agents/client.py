"""The clients that are tried, and the folder of its own that each is installed into, once, below `.venv-agents`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.bulk.tool import ROOT, problem_of

CLIENTS_FOLDER = ROOT / "tests" / "agents" / "clients"
ENVIRONMENTS = ROOT / ".venv-agents"
TRIALS = ("tool", "stream", "error")


@dataclass(frozen=True, slots=True)
class Client:
    """A client of somebody else; the program in its folder uses it as its users do."""

    name: str
    package: str
    speaks: str

    @property
    def folder(self) -> Path:
        return CLIENTS_FOLDER / self.name

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def pins(self) -> Path:
        """The file that pins what is installed."""
        npm = self.folder / "package.json"
        return npm if npm.exists() else self.folder / "requirements.txt"

    @property
    def version(self) -> str:
        """The pinned version of `package`."""
        pinned = re.search(
            rf'(?:^|"){re.escape(self.package)}(?:==|": ")([^"\s]+)', self.pins.read_text(), re.MULTILINE
        )
        return pinned[1] if pinned else "unknown"

    @property
    def command(self) -> list[str]:
        """What runs the program."""
        script = self.environment / "run.mjs"
        if script.exists():
            return ["node", str(script)]
        python = self.environment / "bin" / "python"
        return [str(python) if python.exists() else sys.executable, str(self.folder / "run.py")]


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        client.name: client
        for client in (
            Client("openai", "openai", "chat, Responses"),
            Client("openai-node", "openai", "chat, Responses"),
            Client("anthropic", "anthropic", "Messages"),
            Client("google-genai", "google-genai", "Gemini's"),
            Client("codex", "@openai/codex", "Responses"),
            Client("claude-code", "@anthropic-ai/claude-code", "Messages"),
            Client("gemini-cli", "@google/gemini-cli", "Gemini's"),
            Client("pydantic-ai", "pydantic-ai-slim", "all four"),
            Client("openai-agents", "openai-agents", "Responses, chat"),
            Client("langgraph", "langgraph", "chat, Responses, Messages"),
            Client("vercel-ai", "ai", "Responses, chat, Messages"),
        )
    }
)


def install(client: Client, *, is_fresh: bool = False) -> str | None:
    """Installs what the client pins, unless that is there; returns why it failed."""
    mark, pins = client.environment / ".installed", client.pins.read_text()
    if is_fresh or not mark.exists() or mark.read_text() != pins:
        shutil.rmtree(client.environment, ignore_errors=True)
        client.environment.mkdir(parents=True)
        for command in _steps(client):
            problem = problem_of(command)
            if problem is not None:
                return problem
        mark.write_text(pins)
    if (script := client.folder / "run.mjs").exists():  # Node looks for what it imports beside the file itself
        shutil.copy(script, client.environment)
        shutil.copy(CLIENTS_FOLDER / "trials.mjs", client.environment)
    return None


def _steps(client: Client) -> list[list[str]]:
    home = str(client.environment)
    if client.pins.name == "package.json":
        shutil.copy(client.pins, client.environment)
        return [["nice", "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home]]
    pip = [f"{home}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", home], ["nice", *pip, "-r", str(client.pins)]]
