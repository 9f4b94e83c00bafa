"""Providers of clouds behind a real gateway: signatures that are verified where they arrive, and sources that come late."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.credentials import sources
from tests.credentials.wire.servers import Asked, Said, is_signed, serving
from tests.credentials.wire.test_aws import ENDS, imds
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Running, config_of, connect, get, until

QUESTION: Any = [{"role": "user", "content": "hello there"}]
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
SECRETS = ("role-secret", "session-token", "user-secret", "refresh-secret", "ya29.minted-token")


def machine(asked: Asked) -> Said:
    """The machine's metadata for a gateway that runs by today's clock."""
    status, said = imds(asked)
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return status, said.replace(ENDS.encode(), ends.encode())


def cloud_of(url: str, base_url: str, auth: object) -> dict[str, Any]:
    """A config with a provider of a cloud beside the emulator."""
    config = config_of(url, admin={"key": ADMIN_KEY})
    config["providers"]["cloud"] = {"dialect": "openai", "base_url": base_url, "kind": "bedrock", "auth": auth}
    config["models"]["cloudy"] = {"targets": ["cloud/vendor.model"]}
    return config


async def told(gateway: Running) -> str:
    """All that the gateway shows to anybody: admin, metrics, log."""
    said = ""
    async with connect(gateway.url) as peer:
        for path in ("/admin/config", "/admin/targets", "/admin/stats", "/metrics"):
            said += (await peer.exchange(get(path, f"authorization: Bearer {ADMIN_KEY}"))).body.decode()
    return said + gateway.log.getvalue()


async def test_a_call_is_signed_with_the_machines_role(start: StartGateway) -> None:
    """Whole calls with a model of another name; the credential outlives a reload, and is nowhere to be seen."""

    def provider(asked: Asked) -> Said:
        if not is_signed(asked, {"ASIAROLE": "role-secret"}, "eu-west-1", "bedrock"):
            return 403, b'{"message": "signature"}'
        return (200, COMPLETION) if orjson.loads(asked.body)["model"] == "vendor.model" else (400, b"{}")

    async with serving(machine) as metadata, serving(provider) as cloud:
        base = f"{cloud.url}/openai/v1"
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url}

        def make(url: str) -> dict[str, Any]:
            return cloud_of(url, base, {"aws": "imds", "region": "eu-west-1"})

        gateway = await start(make, environ=environ)
        async with gateway.sdk(api_key="callers-own-key") as sdk:
            first = await sdk.chat.completions.create(model="cloudy", messages=QUESTION)
            changed = make(gateway.emulator.base_url)
            changed["models"]["more"] = {"targets": ["cloud/vendor.model"]}
            gateway.write_config(changed)
            gateway.gateway.reload()
            await until(lambda: "more" in gateway.gateway.policy.models)
            second = await sdk.chat.completions.create(model="more", messages=QUESTION)
        said = await told(gateway)

    assert first.choices[0].message.content == second.choices[0].message.content == "hi"
    assert [one.path for one in cloud.asked] == ["/openai/v1/chat/completions"] * 2
    assert "callers-own-key" not in str(cloud.asked)
    assert len(metadata.asked) == 3
    assert "aws imds" in said
    assert [secret for secret in SECRETS if secret in said] == []


async def test_a_file_that_comes_late_heals(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then each call has one clear error, or its fallback; no breaker opens, and no restart or reload is needed."""
    caplog.set_level("INFO", "gateway.credentials")
    monkeypatch.setattr(sources, "WATCH_S", 0.01)
    token = b'{"access_token": "ya29.minted-token", "expires_in": 3600}'
    path = tmp_path / "late.json"

    def answers(asked: Asked) -> Said:
        if asked.path == "/token":
            return 200, token
        is_known = asked.headers.get("authorization") == "Bearer ya29.minted-token"
        return (200, COMPLETION) if is_known else (401, b"{}")

    async with serving(answers) as cloud:
        auth = {"google": "file", "file": str(path)}

        def make(url: str) -> dict[str, Any]:
            config = cloud_of(url, f"{cloud.url}/v1", auth)
            config["models"]["either"] = {"targets": ["cloud/vendor.model"], "fallbacks": ["gpt-4o"]}
            return config

        gateway = await start(make)
        async with gateway.sdk() as sdk:
            failed = []
            for _ in range(10):
                with pytest.raises(openai.InternalServerError) as raised:
                    await sdk.chat.completions.create(model="cloudy", messages=QUESTION)
                failed.append(raised.value)
            beside = [await sdk.chat.completions.create(model="either", messages=QUESTION) for _ in range(10)]
            assert cloud.asked == []
            said = {
                "type": "authorized_user",
                "client_id": "id",
                "client_secret": "user-secret",
                "refresh_token": "refresh-secret",
                "token_uri": f"{cloud.url}/token",
            }
            path.write_text(json.dumps(said))
            await until(lambda: "is there again" in caplog.text)
            healed = await sdk.chat.completions.create(model="cloudy", messages=QUESTION)
        shown = await told(gateway)

    for error in failed:
        assert error.status_code == 502
        assert "its credentials file cannot be read" in error.message
        assert str(path) not in error.message
    assert f"{path}: no such file or directory" in caplog.text
    assert all(one.choices[0].message.content for one in beside)
    assert " is open: " not in caplog.text
    assert caplog.text.count("no such file") == 1
    assert healed.choices[0].message.content == "hi"
    assert [secret for secret in SECRETS if secret in shown + caplog.text] == []
