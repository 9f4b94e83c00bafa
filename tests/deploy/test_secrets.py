"""What is shipped starts with secrets of its user or not at all: no invented answers, no secret that everybody knows."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import pytest

from gateway.cli.config import local_gateway
from gateway.core.errors import ConfigError
from gateway.core.snapshot import PolicySnapshot
from tests.deploy.support import ADMIN_SECRET, DEPLOY, SECRET, compiled, instructions
from tests.deploy.test_kubernetes import WORKLOADS, found, mounted, policy_of

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
    assert "admin.key: is a placeholder" in str(as_it_is.value)
    assert "providers.openai.api_key: is a placeholder" in str(as_it_is.value)
    assert "set ${OPENAI_API_KEY}" in str(empty.value)


def configs(folder: Path) -> dict[Path, PolicySnapshot]:
    """Every shipped config, with a key of operators in the environment."""
    (folder / "kubernetes").mkdir()
    manifest = mounted("deployment.yaml", folder / "kubernetes")
    systemd = DEPLOY / "systemd/config.yaml"
    return {
        COMPOSE: compiled(COMPOSE, WEB_KEY=SECRET),
        manifest: compiled(manifest, APP_KEY=SECRET),
        systemd: compiled(systemd, STATE_DIRECTORY=str(folder)),
    }


def test_operators_have_a_key_in_every_shipped_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, where the other secrets are; with it a command beside the gateway reaches `/admin`."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN_SECRET)
    for path, policy in configs(tmp_path).items():
        found = local_gateway(argparse.Namespace(config=path), os.environ)

        assert policy.server.admin_digest == hashlib.sha256(ADMIN_SECRET.encode()).digest(), path
        assert found.admin_key == ADMIN_SECRET
        assert found.admin_url == f"http://127.0.0.1:{(policy.server.admin_listen or ('', policy.server.port))[1]}"


def test_a_unit_without_an_admin_key_has_no_admin() -> None:
    """The unit starts on the example of its environment, where every value is empty."""
    policy = compiled(DEPLOY / "systemd/config.yaml", GATEWAY_ADMIN_KEY="", OPENAI_API_KEY="")

    assert policy.server.admin_digest is None


def test_commands_in_a_container_find_the_config() -> None:
    """It is where the image's own command reads it."""
    environ = next(value for name, value in instructions() if name == "ENV" and "GATEWAY_CONFIG=" in value)
    path = next(word for word in environ.split() if word.startswith("GATEWAY_CONFIG=")).partition("=")[2]

    assert f'"--config", "{path}"' in dict(instructions())["CMD"]
