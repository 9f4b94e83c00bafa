"""Providers that are called with a credential of a cloud."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.describe import describe
from gateway.core.snapshot import PolicySnapshot
from gateway.credentials import config as clouds
from gateway.credentials.auth import CloudAuth
from tests.rows import rows
from tests.support.configs import load_text, problems_of

VERTEX = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/endpoints/openapi"
BEDROCK = "https://bedrock-runtime.eu-west-3.amazonaws.com/openai/v1"
MANTLE = "https://bedrock-mantle.us-west-2.api.aws/v1"


def config(auth: object, url: str = BEDROCK, **fields: Any) -> str:
    provider = {"dialect": "openai", "base_url": url, "auth": auth, **fields}
    return json.dumps({"providers": {"cloud": provider}, "models": {"m": {"targets": ["cloud/m"]}}})


def loaded(folder: Path, auth: object, url: str = BEDROCK, environ: dict[str, str] | None = None) -> PolicySnapshot:
    return load_text(folder, config(auth, url), environ or {})


@rows(
    ("auth", "url", "environ", "expected"),
    [
        ("google", VERTEX, {}, CloudAuth("google", "default")),
        ({"google": "metadata"}, VERTEX, {}, CloudAuth("google", "metadata")),
        ("aws", BEDROCK, {"AWS_REGION": "us-east-1"}, CloudAuth("aws", "default", region="eu-west-3")),
        ({"aws": "imds", "region": "us-gov-west-1"}, "https://proxy.internal/openai/v1", {},
         CloudAuth("aws", "imds", region="us-gov-west-1")),
        (
            "aws",
            "https://proxy.internal/openai/v1",
            {"AWS_DEFAULT_REGION": "ap-south-1"},
            CloudAuth("aws", "default", region="ap-south-1"),
        ),
        ({"aws": "env"}, MANTLE, {}, CloudAuth("aws", "env", region="us-west-2", service="bedrock-mantle")),
        ({"aws": "bearer", "token": "${KEY}"}, MANTLE, {"KEY": "bedrock-api-key"},
         CloudAuth("aws", "bearer", region="us-west-2", service="bedrock-mantle", token="bedrock-api-key")),
        ({"aws": "profile", "profile": "work"}, BEDROCK, {}, CloudAuth("aws", "profile", profile="work", region="eu-west-3")),
    ],
)  # fmt: skip
def test_what_is_written_is_understood(
    tmp_path: Path, auth: object, url: str, environ: dict[str, str], expected: CloudAuth
) -> None:
    """The region is that which is written, of the host, or of the environment; the account is the provider's own."""
    snapshot = loaded(tmp_path, auth, url, environ)
    target = snapshot.models["m"].plan[0]

    assert snapshot.providers["cloud"].auth == expected
    assert not snapshot.providers["cloud"].is_callers
    assert target.account == "cloud"
    assert not any("caller's credential" in notice for notice in snapshot.notices)


@rows(
    ("auth", "fields", "words"),
    [
        ("gogle", {}, 'auth: "gogle" is not one of google, aws; did you mean "google"?'),
        (7, {}, "auth: expected a mapping, not a number"),
        ({"gogle": "file"}, {}, "auth.gogle: unknown field; did you mean \"google\"?"),
        ({"aws": "imdsv2"}, {}, 'auth.aws: "imdsv2" is not one of default, env, profile, keys, bearer, web_identity, '
         'container, imds; did you mean "imds"?'),
        ({"aws": "env", "google": "file"}, {}, "auth: needs one of google and aws"),
        ({"profile": "x"}, {}, "auth: needs one of google and aws"),
        ({"google": "file"}, {}, "auth.file: is missing: {google: file} needs it"),
        ({"aws": "keys", "access_key": "AKIA"}, {}, "auth.secret_key: is missing: {aws: keys} needs it"),
        ({"aws": "env", "profile": "x"}, {}, "auth.profile: is for {aws: profile} only"),
        ({"google": "metadata", "region": "x"}, {}, "auth.region: is for aws only"),
        ("aws", {"base_url": "https://proxy.internal/v1"}, "auth.region: is missing: neither the host of base_url"),
        ({"aws": "env", "region": "us-east-1"}, {}, 'auth.region: is "us-east-1", and the host of base_url is in "eu-west-3"'),
        ("aws", {"api_key": "sk-a-real-key"}, "auth: and api_key exclude each other"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(tmp_path: Path, auth: object, fields: dict[str, Any], words: str) -> None:
    """Each with what helps; one for each mistake."""
    found = problems_of(tmp_path, config(auth, **{"url": fields.pop("base_url", BEDROCK), **fields}), {})

    assert len(found) == 1, found
    assert found[0].startswith(f"config.yaml:1: providers.cloud.{words}")


@rows(
    ("auth", "environ", "words"),
    [
        ({"google": "file", "file": "key.json"}, {}, ("there is no file ", "key.json (providers.cloud.auth.file)")),
        ("google", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/file"}, ("/no/file (GOOGLE_APPLICATION_CREDENTIALS)",)),
        ({"aws": "env"}, {"AWS_ACCESS_KEY_ID": "A"}, ("{aws: env} needs AWS_SECRET_ACCESS_KEY: set it",)),
        ({"aws": "bearer"}, {}, ("{aws: bearer} needs AWS_BEARER_TOKEN_BEDROCK",)),
        ({"aws": "profile"}, {"HOME": "/nobody"}, ("neither /nobody/.aws/credentials nor /nobody/.aws/config",)),
    ],
)
def test_what_is_not_there_is_noted(
    tmp_path: Path, auth: object, environ: dict[str, str], words: tuple[str, ...]
) -> None:
    """It may come later: no mistake."""
    url = VERTEX if auth == "google" or "google" in str(auth) else BEDROCK
    notices = "\n".join(loaded(tmp_path, auth, url, environ).notices)

    assert [one for one in words if one not in notices] == []


def test_a_service_account_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing that no file mends."""
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    auth = {"google": "file", "file": "key.json"}
    assert problems_of(tmp_path, config(auth, VERTEX), {}) == []
    monkeypatch.setattr(clouds, "find_spec", lambda _: None)

    assert "pip install '.[vertex]'" in problems_of(tmp_path, config(auth, VERTEX), {})[0]


def test_headers_of_signatures_are_the_gateways_own(tmp_path: Path) -> None:
    """One of the config would go in their place, and no signature would be good."""
    found = problems_of(tmp_path, config("aws", headers={"X-Amz-Security-Token": "x", "X-Team": "a"}), {})

    assert len(found) == 1
    assert 'providers.cloud.headers: "X-Amz-Security-Token" is a part of each signature' in found[0]


def test_a_pipe_does_not_hold_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what comes out of it, or of a device, waited for."""
    os.mkfifo(tmp_path / "key.json")
    monkeypatch.setattr(clouds, "find_spec", lambda _: None)
    release = threading.Timer(3, lambda: (tmp_path / "key.json").open("w").close())
    release.start()

    found = problems_of(tmp_path, config({"google": "file", "file": "key.json"}, VERTEX), {})
    is_prompt = release.is_alive()
    release.cancel()

    assert (found, is_prompt) == ([], True)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """Neither in the description of the config, nor in a repr, nor in a problem."""
    auth = {"aws": "keys", "access_key": "AKIA", "secret_key": "hidden-secret", "session_token": "hidden-token"}
    snapshot = loaded(tmp_path, auth)
    shown = json.dumps(describe(snapshot), default=str) + repr(snapshot.providers)
    shown += str(problems_of(tmp_path, config({**auth, "aws": "kees"}), {}))
    shown += str(problems_of(tmp_path, config({**auth, "secret_key": "hidden secret"}), {}))

    assert '"auth": "aws keys"' in shown
    assert "hidden" not in shown
