"""Google's credentials, from files and a metadata server on loopback."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from gateway.credentials.auth import CloudAuth
from gateway.credentials.fetch import BearerToken, CredentialClient, CredentialMissing, Minted
from gateway.credentials.google import GoogleSource
from tests.credentials.wire.servers import Asked, Said, serving

NOW = 1_795_423_200.0
TOKEN = json.dumps({"access_token": "ya29.minted-token", "expires_in": 3599, "token_type": "Bearer"}).encode()
USER = {
    "type": "authorized_user",
    "client_id": "id",
    "client_secret": "user-secret",
    "refresh_token": "1//refresh-secret",
}


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def account(key: rsa.RSAPrivateKey, uri: str) -> dict[str, Any]:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "client_email": "gw@p.iam.gserviceaccount.com",
        "private_key_id": "k1",
        "private_key": pem,
        "token_uri": uri,
    }


async def minted(auth: CloudAuth, environ: dict[str, str]) -> Minted:
    client = CredentialClient()
    try:
        return await GoogleSource(auth, environ, client, lambda: NOW).mint()
    finally:
        await client.aclose()


def written(folder: Path, said: object) -> str:
    path = folder / "key.json"
    path.write_text(json.dumps(said))
    return str(path)


def part(token: str, number: int) -> bytes:
    text = token.split(".")[number]
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_a_service_account_signs_for_its_token(tmp_path: Path, key: rsa.RSAPrivateKey) -> None:
    """RFC 7523: the assertion verifies with the public key, and asks for the scope of Google Cloud."""
    async with serving(lambda _: (200, TOKEN)) as server:
        path = written(tmp_path, account(key, f"{server.url}/token"))
        found = await minted(CloudAuth("google", "default"), {"GOOGLE_APPLICATION_CREDENTIALS": path})
    form = {name: values[0] for name, values in parse_qs(server.asked[0].body.decode()).items()}
    signed = form["assertion"]
    key.public_key().verify(part(signed, 2), signed.rpartition(".")[0].encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(part(signed, 1))

    assert found.credential == BearerToken("ya29.minted-token")
    assert found.lasts_s == 3599
    assert list(found.files) == [path]
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert json.loads(part(signed, 0)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert claims["iss"] == "gw@p.iam.gserviceaccount.com"
    assert claims["aud"] == f"{server.url}/token"
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
    assert claims["iat"] <= NOW < claims["exp"] <= claims["iat"] + 3600


async def test_a_users_file_is_refreshed_with_its_token(tmp_path: Path) -> None:
    """What `gcloud auth application-default login` has written is found where it writes it."""
    async with serving(lambda _: (200, TOKEN)) as server:
        folder = tmp_path / ".config" / "gcloud"
        folder.mkdir(parents=True)
        said = {**USER, "token_uri": f"{server.url}/token"}
        (folder / "application_default_credentials.json").write_text(json.dumps(said))
        found = await minted(CloudAuth("google", "default"), {"HOME": str(tmp_path)})

    assert found.credential == BearerToken("ya29.minted-token")
    assert parse_qs(server.asked[0].body.decode()) == {
        "grant_type": ["refresh_token"],
        "client_id": ["id"],
        "client_secret": ["user-secret"],
        "refresh_token": ["1//refresh-secret"],
    }


async def test_the_metadata_server_is_asked_where_no_file_is(tmp_path: Path) -> None:
    """As on GCE, GKE and Cloud Run."""

    def answers(asked: Asked) -> Said:
        is_good = asked.headers.get("metadata-flavor") == "Google"
        is_good = is_good and asked.path == "/computeMetadata/v1/instance/service-accounts/default/token"
        return (200, TOKEN) if is_good else (403, b"")

    async with serving(answers) as server:
        environ = {"HOME": str(tmp_path), "GCE_METADATA_HOST": server.host}
        found = await minted(CloudAuth("google", "default"), environ)
        alone = await minted(CloudAuth("google", "metadata"), environ)

    assert found.credential == alone.credential == BearerToken("ya29.minted-token")
    assert len(found.files) == 1  # a file that appears goes first


async def problem(auth: CloudAuth, environ: dict[str, str]) -> str:
    with pytest.raises(CredentialMissing) as told:
        await minted(auth, environ)
    assert "secret" not in str(told.value)
    assert "PRIVATE KEY" not in str(told.value)
    return str(told.value)


async def test_what_is_missing_is_told_with_all_places(tmp_path: Path) -> None:
    """One error, for every place that was looked at."""
    async with serving(lambda _: (404, b"")) as server:
        environ = {"HOME": str(tmp_path), "GCE_METADATA_HOST": server.host}
        said = await problem(CloudAuth("google", "default"), environ)
    refused = await problem(CloudAuth("google", "metadata"), environ)

    assert "GOOGLE_APPLICATION_CREDENTIALS is not set" in said
    assert f"there is no {tmp_path}/.config/gcloud/application_default_credentials.json" in said
    assert f"the metadata server at {server.host}: the machine has no service account" in said
    assert "ConnectError" in refused


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"type": "external_account"}, "its type is 'external_account'; there are service_account"),
        ([], "no JSON object with a type"),
        ({**USER, "refresh_token": ""}, "lacks refresh_token"),
        ({"type": "service_account", "client_email": "e", "private_key": "PRIVATE KEY secret"}, "no RSA key in PEM"),
    ],
)
async def test_a_bad_file_is_told_apart(tmp_path: Path, said: object, words: str) -> None:
    """By its name, and without what is in it."""
    path = written(tmp_path, said)
    told = await problem(CloudAuth("google", "file", file=path), {})

    assert words in told
    assert path in told


async def test_a_refusal_is_told_in_googles_words(tmp_path: Path) -> None:
    """Error and description, and nothing of what was sent."""
    refusal = json.dumps({"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    async with serving(lambda _: (400, refusal.encode())) as server:
        path = written(tmp_path, {**USER, "token_uri": f"{server.url}/token"})
        told = await problem(CloudAuth("google", "file", file=path), {})

    assert "status 400 (invalid_grant: Token has been expired or revoked.)" in told


async def test_an_absent_package_is_named(
    tmp_path: Path, key: rsa.RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what installs it."""
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    path = written(tmp_path, account(key, "http://127.0.0.1:9/token"))

    assert "pip install '.[vertex]'" in await problem(CloudAuth("google", "file", file=path), {})


def test_servers_are_told_nothing_in_a_repr() -> None:
    """Tokens are not in the words of errors and logs."""
    assert "secret" not in repr(BearerToken("secret"))
    assert "secret" not in repr(Minted(BearerToken("secret"), 1.0))


async def test_what_is_exchanged_is_not_told_where_it_is_repeated(tmp_path: Path) -> None:
    """Some servers quote what they refuse."""
    account = {
        "type": "authorized_user",
        "client_id": "c",
        "client_secret": "hidden-a",
        "refresh_token": "hidden-b" * 50,
    }

    def answers(asked: Asked) -> Said:
        form = parse_qs(asked.body.decode())
        said = f"bad {form['client_secret'][0]} and {form['refresh_token'][0]}"
        return 400, orjson.dumps({"error": "invalid_grant", "error_description": said})

    async with serving(answers) as server:
        path = written(tmp_path, {**account, "token_uri": server.url})
        told = await problem(CloudAuth("google", "file", file=path), {})

    assert "bad *** and ***" in told
