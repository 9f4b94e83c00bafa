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
_PINS = ("requirements.txt", "package.json", "go.mod", "pom.xml")
_PROGRAMS = ("run.py", "run.mjs", "main.go", "Main.java")
_BEFORE, _AFTER = r"(?:^|[\"\s>])", r"(?:==|\": \"| v|</artifactId>\s*<version>)"


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
        return next(file for file in map(self.folder.joinpath, _PINS) if file.exists())

    @property
    def version(self) -> str:
        """The pinned version of `package`."""
        found = re.search(rf"{_BEFORE}{re.escape(self.package)}{_AFTER}([\w.]+)", self.pins.read_text(), re.MULTILINE)
        return found[1] if found else "unknown"

    @property
    def program(self) -> Path:
        """The program that uses the client."""
        return next(file for file in map(self.folder.joinpath, _PROGRAMS) if file.exists())

    @property
    def command(self) -> list[str]:
        """What runs the program."""
        match self.program.suffix:
            case ".mjs":
                return ["node", str(self.environment / "run.mjs")]
            case ".go":
                return [str(self.environment / "client")]
            case ".java":
                return ["java", "-cp", f"{self.environment / 'classes'}:{self.environment / 'jars'}/*", "Main"]
        python = self.environment / "bin" / "python"
        return [str(python) if python.exists() else sys.executable, str(self.program)]


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        client.name: client
        for client in (
            Client("openai", "openai", "chat, Responses"),
            Client("openai-node", "openai", "chat, Responses"),
            Client("openai-go", "github.com/openai/openai-go/v3", "chat, Responses"),
            Client("openai-java", "openai-java", "chat, Responses"),
            Client("anthropic", "anthropic", "Messages"),
            Client("anthropic-node", "@anthropic-ai/sdk", "Messages"),
            Client("google-genai", "google-genai", "Gemini's"),
            Client("google-genai-node", "@google/genai", "Gemini's"),
            Client("codex", "@openai/codex", "Responses"),
            Client("claude-code", "@anthropic-ai/claude-code", "Messages"),
            Client("gemini-cli", "@google/gemini-cli", "Gemini's"),
            Client("opencode", "opencode-ai", "chat, Responses, Messages"),
            Client("aider", "aider-chat", "chat, Messages"),
            Client("pydantic-ai", "pydantic-ai-slim", "all four"),
            Client("openai-agents", "openai-agents", "Responses, chat"),
            Client("langgraph", "langgraph", "chat, Responses, Messages"),
            Client("vercel-ai", "ai", "Responses, chat, Messages"),
        )
    }
)


def install(client: Client, *, is_fresh: bool = False) -> str | None:
    """Installs what the client pins, and builds its program, unless that is there; returns why it failed."""
    home, program = client.environment, client.program
    mark, made_of = home / ".installed", client.pins.read_text() + program.read_text()
    is_installed = mark.exists() and mark.read_text().startswith(client.pins.read_text())
    if is_fresh or not is_installed:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
    elif mark.read_text() == made_of:
        return None
    for file in (*client.folder.iterdir(), CLIENTS_FOLDER / "trials.mjs"):
        if file.is_file():  # a run of the tests may have left a folder of compiled modules
            shutil.copy(file, home)  # Node looks for what it imports beside the file itself
    for command in [*([] if is_installed and not is_fresh else _install_steps(client)), *_build_steps(client)]:
        problem = problem_of(command)
        if problem is not None:
            return problem
    mark.write_text(made_of)
    return None


def _install_steps(client: Client) -> list[list[str]]:
    home = str(client.environment)
    match client.pins.name:
        case "package.json":
            return [["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home]]
        case "pom.xml":
            return [
                ["mvn", "-q", "-B", "-f", f"{home}/pom.xml", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
            ]
        case "requirements.txt":
            pip = [f"{home}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            return [[sys.executable, "-m", "venv", home], [*pip, "-r", str(client.pins)]]
    return []


def _build_steps(client: Client) -> list[list[str]]:
    home = str(client.environment)
    match client.program.suffix:
        case ".go":
            return [["go", "build", "-C", home, "-o", "client", "."]]
        case ".java":
            return [["javac", "-d", f"{home}/classes", "-cp", f"{home}/jars/*", f"{home}/Main.java"]]
    return []
