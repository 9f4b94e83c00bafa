"""What is shipped starts with secrets of its user or not at all: no invented answers, no secret that everybody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from tests.deploy.support import DEPLOY, SECRET, compiled
from tests.deploy.test_kubernetes import WORKLOADS, found, policy_of

COMPOSE = DEPLOY / "compose/gateway/config.yaml"


def test_no_shipped_config_lets_the_emulator_stand_in() -> None:
    """Only the tour in `config.example.yaml` does, which listens on loopback."""
    assert [path for path in DEPLOY.rglob("*") if path.is_file() and "emulate_without_key" in path.read_text()] == []


def test_compose_does_not_start_without_the_providers_key() -> None:
    """The problem names the variable that is empty."""
    with pytest.raises(ConfigError) as raised:
        compiled(COMPOSE, WEB_KEY=SECRET, OPENAI_API_KEY="")

    assert "providers.openai.api_key: is empty" in str(raised.value)
    assert "set ${OPENAI_API_KEY}" in str(raised.value)


@pytest.mark.parametrize("file", WORKLOADS)
def test_pods_do_not_start_on_the_example_of_a_secret(file: str, tmp_path: Path) -> None:
    """Neither as it is nor with an empty key of the provider: both are said at once."""
    (secret,) = found("Secret")

    with pytest.raises(ConfigError) as as_it_is:
        policy_of(file, tmp_path, **secret["stringData"])
    with pytest.raises(ConfigError) as empty:
        policy_of(file, tmp_path, APP_KEY=SECRET, OPENAI_API_KEY="")

    assert "keys[0].key: is a placeholder" in str(as_it_is.value)
    assert "providers.openai.api_key: is a placeholder" in str(as_it_is.value)
    assert "set ${OPENAI_API_KEY}" in str(empty.value)
