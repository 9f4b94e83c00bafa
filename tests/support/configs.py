"""What the config tests share: a config written to disk, loaded with an upstream that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gateway.core.config.load import load_snapshot
from gateway.core.errors import ConfigError
from gateway.core.snapshot import PolicySnapshot, Provider
from gateway.core.types import Upstream
from gateway.dialects.config import DialectLanguages
from gateway.sections import SECTIONS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config.example.yaml"
NOW = 1_790_000_000.0

GOOD = """\
providers:
  openai: {dialect: openai, base_url: "https://api.openai.com/v1", api_key: "${OPENAI_API_KEY}"}
models:
  gpt-4o: {targets: [openai/gpt-4o]}
"""
ENVIRON = {"OPENAI_API_KEY": "sk-test"}


class NoUpstream:
    """Stands where a transport would."""

    def __init__(self, provider: Provider, model: str | None) -> None:
        self.provider = provider
        self.model = model


def connect(provider: Provider, model: str | None) -> Upstream:
    """A stand-in that nobody sends to."""
    return cast("Upstream", NoUpstream(provider, model))


def load(path: Path, environ: Mapping[str, str] = ENVIRON, version: int = 1) -> PolicySnapshot:
    """The snapshot of the config at `path`."""
    return load_snapshot(
        path, environ, sections=SECTIONS, languages=DialectLanguages(), connect=connect, version=version, now_wall=NOW
    )


def load_text(folder: Path, text: str, environ: Mapping[str, str] = ENVIRON) -> PolicySnapshot:
    """The snapshot of this text, written to `config.yaml` first."""
    path = folder / "config.yaml"
    path.write_text(text)
    return load(path, environ)


def problems_of(folder: Path, text: str | bytes, environ: Mapping[str, str] = ENVIRON) -> list[str]:
    """The problems of this text, without the folder's name; none when it loads."""
    path = folder / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        load(path, environ)
    except ConfigError as error:
        return [line.replace(f"{folder}/", "") for line in error.problems]
    return []


def with_policies(folder: Path, **files: str) -> str:
    """A good config that reads a policy folder with these files, each named without `.yaml`."""
    rules = folder / "rules"
    rules.mkdir(exist_ok=True)
    for name, text in files.items():
        (rules / f"{name}.yaml").write_text(text)
    return f"policies: rules\n{GOOD}"


def leaves(value: Any) -> list[Any]:
    """Every scalar and every name in plain data."""
    if isinstance(value, dict):
        return [*value, *(leaf for item in value.values() for leaf in leaves(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]
