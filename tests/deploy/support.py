"""Reads what is in `deploy/` as the tools that use it would: instructions, services, manifests, settings of a unit."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gateway.admin.http import LIVE_PATHS, READY_PATHS
from gateway.core.config.load import load_snapshot
from gateway.core.snapshot import PolicySnapshot
from gateway.dialects.config import DialectLanguages
from gateway.sections import SECTIONS
from tests.support.configs import NOW, connect

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
HEALTH_PATHS = {*LIVE_PATHS, *READY_PATHS}
SECRET = "long-enough-for-a-test"
ADMIN_SECRET = "an-operators-secret-in-a-test"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def document(path: Path) -> dict[str, Any]:
    """The only document of a YAML file."""
    (only,) = documents(path)
    return only


def compiled(path: Path, host: str | None = None, **environ: str) -> PolicySnapshot:
    """What `gateway check` makes of a config, with keys of the provider and of operators unless `environ` has others.

    Raises ConfigError.
    """
    environ = {"OPENAI_API_KEY": "sk-of-the-provider", "GATEWAY_ADMIN_KEY": ADMIN_SECRET, **environ}
    return load_snapshot(
        path,
        environ,
        sections=SECTIONS,
        languages=DialectLanguages(),
        connect=connect,
        version=1,
        now_wall=NOW,
        host=host,
    )


def seconds(text: str) -> float:
    """`45s`, `500ms`."""
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    assert found, text
    return int(found[1]) * _UNITS[found[2]]


def instructions(path: Path = DOCKERFILE) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments; comments left out, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, rest in pairs]


def has_pinned_tag(image: str) -> bool:
    """It names a version, at least its first two numbers, or a digest."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@sha256:" in image or re.match(r"v?\d+\.\d+", tag) is not None


def variables(text: str) -> tuple[set[str], set[str]]:
    """The environment variables a text names: those it cannot do without, and those with a default."""
    found = re.findall(r"\$\{([A-Z0-9_]+)(:-)?", text)
    return {name for name, default in found if not default}, {name for name, default in found if default}


def tool(name: str) -> str | None:
    """Where a program is, if it is here."""
    return shutil.which(name, path="/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin:/bin")


def run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """The standard output of a command that must not fail."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout
