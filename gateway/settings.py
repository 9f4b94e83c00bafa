"""Facts of the process, from flags and `GATEWAY_*` environment variables; everything else is in the config file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MOST_WORKERS = 64


class Settings(BaseSettings):
    """Flags win over the environment, the environment over these defaults; host and port over the config file's."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", extra="ignore")

    config: Path = Path("config.yaml")
    host: str | None = None
    port: int | None = Field(default=None, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
