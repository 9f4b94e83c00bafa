"""Commands that name no address ask the gateway of the folder's config, with its admin key."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.config import LocalGateway, local_gateway
from gateway.cli.main import main
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, WEB_KEY, config_of, to_yaml
from tests.rows import rows

KEY = "an-admin-key-of-the-config"
DEFAULT = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and nothing of the machine's own environment."""
    for name in ("GATEWAY_CONFIG", "GATEWAY_PORT", "GATEWAY_HOST", "GATEWAY_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@rows(
    ("written", "environ", "found"),
    [
        ("", {}, (DEFAULT, DEFAULT, "")),
        ("server: {port: 8090}", {}, ("http://127.0.0.1:8090", "http://127.0.0.1:8090", "")),
        ("server: {port: '${P}'}", {"P": "8091"}, ("http://127.0.0.1:8091", "http://127.0.0.1:8091", "")),
        ("server: {host: '::', port: 8092}", {}, ("http://127.0.0.1:8092", "http://127.0.0.1:8092", "")),
        ("server: {host: '::1'}", {}, ("http://[::1]:8080", "http://[::1]:8080", "")),
        ("server: {port: 8090}", {"GATEWAY_PORT": "8093"}, ("http://127.0.0.1:8093", "http://127.0.0.1:8093", "")),
        (f"admin: {{listen: '[::]:9090', key: {KEY}}}", {}, (DEFAULT, "http://127.0.0.1:9090", KEY)),
        ("admin: {key: '${K}'}", {"K": KEY}, (DEFAULT, DEFAULT, KEY)),
        ("admin: {key: '${NOT_SET}', listen: 'localhost:9090'}", {}, (DEFAULT, "http://localhost:9090", "")),
        (f"admin: {{key: 'sha256:{'0' * 64}'}}", {}, (DEFAULT, DEFAULT, "")),
        (
            f"server: {{port: 8090, prot: 1}}\nadmin: {{key: {KEY}}}\nmodels: 3",
            {},
            ("http://127.0.0.1:8090",) * 2 + (KEY,),
        ),
        ("server: [", {}, (DEFAULT, DEFAULT, "")),
        ("- server", {}, (DEFAULT, DEFAULT, "")),
    ],
)
def test_the_config_says_where_its_gateway_is(
    monkeypatch: pytest.MonkeyPatch, written: str, environ: dict[str, str], found: tuple[str, str, str]
) -> None:
    """Whatever else is wrong with it: the gateway that runs has an earlier state of the file."""
    Path("config.yaml").write_text(written)
    with monkeypatch.context() as patched:
        for name, value in environ.items():
            patched.setenv(name, value)
        assert local_gateway(argparse.Namespace(), os.environ)[:3] == found


def test_without_a_config_it_is_the_default() -> None:
    assert local_gateway(argparse.Namespace(), os.environ) == LocalGateway(DEFAULT, DEFAULT, "")


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_operators_and_callers_name_neither_address_nor_admin_key(
    start: StartGateway, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the config in this folder, or the one that is named."""

    def written(url: str, **server: Any) -> dict[str, Any]:
        return config_of(
            url, keys=KEYS, admin={"key": ADMIN_KEY}, server=server or None, jobs={"store": "sqlite:///j.db"}
        )

    gateway = await start(written)
    port = int(gateway.url.rpartition(":")[2])
    (tmp_path / "config.yaml").write_text(to_yaml(written("http://x/v1", port=port)))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "other.yaml").write_text(to_yaml(written("http://x/v1", port=1)))

    codes = [
        await run("targets"),
        await run("targets", "--url", gateway.url),
        await run("jobs", "ls", "--api-key", WEB_KEY),
        await run("targets", "--config", "there/other.yaml"),
    ]
    output, errors = capsys.readouterr()

    assert codes == [0, 0, 0, 1]
    assert output.count("main/gpt-4o  ") == 2
    assert output.endswith("no jobs\n")
    assert "no gateway answers at http://127.0.0.1:1: " in errors


async def test_a_config_without_an_admin_key_is_named_as_what_lacks_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No key would open what is off; a variable that is not set here may be set there."""
    (tmp_path / "config.yaml").write_text("providers: {}")
    assert await run("targets") == 2
    assert "no admin key: the config has no admin.key" in capsys.readouterr().err

    (tmp_path / "config.yaml").write_text("admin: {key: '${GATEWAY_ADMIN_KEY:-}'}")
    assert await run("targets") == 2
    assert "no admin key: set GATEWAY_ADMIN_KEY or give --key" in capsys.readouterr().err


async def test_the_admin_key_of_a_config_goes_to_no_other_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever names one has to give the key, too."""
    (tmp_path / "config.yaml").write_text(f"admin: {{key: {KEY}}}")

    assert await run("targets", "--url", "http://gateway.example.com:8080") == 2
    assert "no admin key: set GATEWAY_ADMIN_KEY or give --key" in capsys.readouterr().err
