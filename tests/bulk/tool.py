"""The tools, and the environment of its own that each is installed into, once, under `.venv-bulk`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ROOT / "tests" / "bulk" / "tools"
ENVIRONMENTS = ROOT / ".venv-bulk"
_INSTALL_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Tool:
    """A program of somebody else; the program in its folder uses it as its users do."""

    name: str
    items: int = 300
    is_killed: bool = False
    """It is killed once a third of its items is paid, and then run again."""

    @property
    def folder(self) -> Path:
        return FOLDERS / self.name

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def pins(self) -> Path:
        """The file that pins all that is installed."""
        npm = self.folder / "package.json"
        return npm if npm.exists() else self.folder / "requirements.txt"

    @property
    def command(self) -> list[str]:
        """What runs the program."""
        python = self.environment / "bin" / "python"
        return [str(python) if python.exists() else sys.executable, str(self.folder / "run.py")]


TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            Tool("openai"),
            Tool("litellm"),
            Tool("instructor"),
            Tool("langchain"),
            Tool("dspy"),
            Tool("inspect_ai"),
            Tool("lm_eval", 200),
            Tool("promptfoo", 200),
            Tool("deepeval", 200),
            Tool("distilabel"),
            Tool("curator"),
            Tool("llama_index", 250),
            Tool("lightrag", 10),
            Tool("crewai", 200),
            Tool("langgraph", is_killed=True),
            Tool("prefect", is_killed=True),
        )
    }
)


def install(tool: Tool, *, is_fresh: bool = False) -> str | None:
    """Installs what the tool pins, unless that is there; returns why it failed."""
    mark, pins = tool.environment / ".installed", tool.pins.read_text()
    if not is_fresh and mark.exists() and mark.read_text() == pins:
        return None
    shutil.rmtree(tool.environment, ignore_errors=True)
    tool.environment.mkdir(parents=True)
    for command in _steps(tool):
        problem = problem_of(command)
        if problem is not None:
            return problem
    mark.write_text(pins)
    return None


def _steps(tool: Tool) -> list[list[str]]:
    home = str(tool.environment)
    if tool.pins.name == "package.json":
        shutil.copy(tool.pins, tool.environment)
        return [["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home]]
    python, pins = f"{home}/bin/python", str(tool.pins)
    if shutil.which("uv"):
        return [
            ["uv", "venv", "-q", "--clear", "-p", sys.executable, home],
            ["uv", "pip", "install", "-q", "-p", python, "-r", pins],
        ]
    return [
        [sys.executable, "-m", "venv", home],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", pins],
    ]


def problem_of(command: Sequence[str]) -> str | None:
    """Runs a step of an installation; returns why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return f"{Path(command[0]).name} took longer than {_INSTALL_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
    return f"{Path(command[0]).name} could not install it: {lines[-1][:200]}"
