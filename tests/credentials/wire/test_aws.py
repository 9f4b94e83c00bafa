"""AWS's credentials, from variables, files, and servers on loopback that speak as AWS's do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from gateway.credentials import aws
from gateway.credentials.auth import CloudAuth
from gateway.credentials.aws import AwsSource
from gateway.credentials.fetch import AwsKeys, BearerToken, CredentialClient, CredentialMissing, Minted
from tests.credentials.wire.servers import Asked, Said, serving

NOW = 1_795_423_200.0
ENDS = datetime.fromtimestamp(NOW + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
KEYS = AwsKeys("ASIAROLE", "role-secret", "session-token")
SAID = json.dumps(
    {
        "Code": "Success",
        "AccessKeyId": "ASIAROLE",
        "SecretAccessKey": "role-secret",
        "Token": "session-token",
        "Expiration": ENDS,
    }
).encode()
STS = f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey>
<SessionToken>session-token</SessionToken><Expiration>{ENDS}</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()
NO_IMDS = {"AWS_EC2_METADATA_DISABLED": "true"}
DEFAULT = CloudAuth("aws", "default", region="us-east-1")


async def minted(auth: CloudAuth, environ: dict[str, str]) -> Minted:
    client = CredentialClient()
    try:
        return await AwsSource(auth, environ, client, lambda: NOW).mint()
    finally:
        await client.aclose()


async def problem(auth: CloudAuth, environ: dict[str, str]) -> str:
    with pytest.raises(CredentialMissing) as told:
        await minted(auth, environ)
    assert "secret" not in str(told.value)
    return str(told.value)


def imds(asked: Asked) -> Said:
    """IMDSv2: a token first, then the role, then its credential."""
    if asked.path == "/latest/api/token":
        is_good = asked.method == "PUT" and asked.headers.get("x-aws-ec2-metadata-token-ttl-seconds") == "21600"
        return (200, b"imds-token") if is_good else (400, b"")
    if asked.headers.get("x-aws-ec2-metadata-token") != "imds-token":
        return 401, b""
    if asked.path == "/latest/meta-data/iam/security-credentials/":
        return 200, b"my-role"
    return (200, SAID) if asked.path == "/latest/meta-data/iam/security-credentials/my-role" else (404, b"")


async def test_the_machines_role() -> None:
    """With a session of IMDSv2; the credential ends when it says."""
    async with serving(imds) as server:
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
        found = await minted(CloudAuth("aws", "imds"), environ)
        last = await minted(DEFAULT, {**environ, "HOME": "/nowhere"})

    assert found == Minted(KEYS, 3600.0)
    assert last.credential == KEYS


async def test_a_web_identity(tmp_path: Path) -> None:
    """IRSA of EKS: the token in the file is exchanged at STS, and the file is watched."""
    token = tmp_path / "token"
    token.write_text("projected-token\n")
    async with serving(lambda _: (200, STS)) as server:
        environ = {
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/gw",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ENDPOINT_URL_STS": server.url,
        }
        found = await minted(DEFAULT, environ)

    assert found.credential == KEYS
    assert found.lasts_s == 3600.0
    assert list(found.files) == [str(token)]
    assert {name: values[0] for name, values in parse_qs(server.asked[0].body.decode()).items()} == {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": "arn:aws:iam::1:role/gw",
        "RoleSessionName": "llm-gateway",
        "WebIdentityToken": "projected-token",
    }


async def test_sts_says_why_not(tmp_path: Path) -> None:
    """Its code and message, without the token."""
    token = tmp_path / "token"
    token.write_text("projected-secret")
    refusal = (
        b"<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>Token projected-secret expired</Message>"
    )
    async with serving(lambda _: (400, refusal)) as server:
        environ = {
            "AWS_ROLE_ARN": "arn:r",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ENDPOINT_URL_STS": server.url,
        }
        told = await problem(CloudAuth("aws", "web_identity"), environ)
        # a wrong one is no reason to take another one's
        await problem(DEFAULT, {**environ, "AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url})

    assert "status 400 (ExpiredTokenException: Token *** expired)" in told
    assert len(server.asked) == 2


async def test_a_containers_agent(tmp_path: Path) -> None:
    """EKS's pod identities: an address, and a token in a file that changes."""
    token = tmp_path / "token"
    token.write_text("pod-token")
    async with serving(
        lambda asked: (200, SAID) if asked.headers.get("authorization") == "pod-token" else (401, b"")
    ) as server:
        environ = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
        found = await minted(CloudAuth("aws", "container"), environ)
    told = await problem(CloudAuth("aws", "container"), {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://10.0.0.9/steal"})

    assert found.credential == KEYS
    assert "neither https nor an address of this machine" in told


@pytest.mark.parametrize(
    ("auth", "environ", "expected"),
    [
        (DEFAULT, {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s"}, AwsKeys("AKIA", "s")),
        (
            CloudAuth("aws", "env"),
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"},
            AwsKeys("AKIA", "s", "t"),
        ),
        (CloudAuth("aws", "keys", access_key="AKIA", secret_key="s"), {}, AwsKeys("AKIA", "s")),
        (CloudAuth("aws", "bearer", token="bedrock-key"), {}, BearerToken("bedrock-key")),
        (
            DEFAULT,
            {"AWS_BEARER_TOKEN_BEDROCK": "from-env", "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s"},
            BearerToken("from-env"),
        ),
    ],
)
async def test_what_is_written_down(auth: CloudAuth, environ: dict[str, str], expected: object) -> None:
    """In variables or in the config: for ever."""
    found = await minted(auth, environ)

    assert found == Minted(expected, None)  # type: ignore[arg-type]  # either kind


async def test_profiles_of_both_files(tmp_path: Path) -> None:
    """`[NAME]` in one file, `[profile NAME]` in the other; the file of credentials goes first."""
    (tmp_path / ".aws").mkdir()
    credentials, config = tmp_path / ".aws" / "credentials", tmp_path / ".aws" / "config"
    credentials.write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = d%x\n\n[work]\naws_access_key_id=W\n"
    )
    config.write_text("[profile work]\naws_secret_access_key=w\nregion=eu-west-1\n[profile sso]\nsso_session = corp\n")
    environ = {"HOME": str(tmp_path), **NO_IMDS}

    assert (await minted(DEFAULT, environ)).credential == AwsKeys("D", "d%x")
    found = await minted(DEFAULT, {**environ, "AWS_PROFILE": "work"})
    assert found.credential == AwsKeys("W", "w")
    assert set(found.files) == {str(credentials), str(config)}
    assert "export-credentials --profile sso" in await problem(CloudAuth("aws", "profile", profile="sso"), environ)
    told = await problem(CloudAuth("aws", "profile", profile="typo"), environ)
    assert f"{credentials} has no [typo], {config} has no [profile typo]" in told


async def test_all_places_are_told(tmp_path: Path) -> None:
    """One error for the whole search."""
    told = await problem(DEFAULT, {"HOME": str(tmp_path), **NO_IMDS})

    for place in (
        "AWS_BEARER_TOKEN_BEDROCK is not set",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        f"{tmp_path}/.aws/credentials: no such file",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_EC2_METADATA_DISABLED is true",
    ):
        assert place in told


def test_keys_are_not_in_a_repr() -> None:
    """The name of a key is no secret."""
    assert repr(KEYS) == "AwsKeys(access_key='ASIAROLE')"


@pytest.mark.parametrize("damage", ["token\nx-injected: 1", "t\u00f6ken", "tok\udce9n", "two words"])
async def test_what_no_header_can_hold_is_no_credential(tmp_path: Path, damage: str) -> None:
    """Wrapped lines and strange letters are told of, and never sent."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "role-secret"}
    told = [
        await problem(CloudAuth("aws", "env"), {**keys, "AWS_SESSION_TOKEN": damage}),
        await problem(CloudAuth("aws", "env"), {**keys, "AWS_ACCESS_KEY_ID": damage}),
        await problem(CloudAuth("aws", "bearer"), {"AWS_BEARER_TOKEN_BEDROCK": damage}),
    ]

    assert [one for one in told if damage in one or "damaged" not in one] == []


async def test_what_servers_give_is_looked_at_before_it_is_sent() -> None:
    """A line break in it would begin another header; the agent's own token is no way to one either."""
    damage = "token\nx-injected: 1"
    async with serving(lambda _: (200, SAID.replace(b"session-token", json.dumps(damage)[1:-1].encode()))) as server:
        environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/k"}
        told = [await problem(CloudAuth("aws", "container"), environ)]
        environ |= {"AWS_CONTAINER_AUTHORIZATION_TOKEN": damage}
        told.append(await problem(CloudAuth("aws", "container"), environ))

    assert [one for one in told if "injected" in one or "damaged" not in one] == []
    assert len(server.asked) == 1


async def test_a_token_that_a_server_repeats_is_not_told(tmp_path: Path) -> None:
    """Also where it is longer than what is told of an answer."""
    file = tmp_path / "token"
    file.write_text("web-secret." * 60)
    said = f"<Error><Code>Denied</Code><Message>not {'web-secret.' * 60}</Message></Error>".encode()
    async with serving(lambda _: (403, said)) as server:
        environ = {"AWS_ROLE_ARN": "r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(file), "AWS_ENDPOINT_URL_STS": server.url}
        told = await problem(CloudAuth("aws", "web_identity"), environ)
    echo = json.dumps({"message": f"bad {'web-secret.' * 60}"}).encode()
    async with serving(lambda _: (403, echo)) as server:
        environ = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/k",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(file),
        }
        told += await problem(CloudAuth("aws", "container"), environ)

    assert "not ***" in told
    assert "bad ***" in told


async def test_files_that_are_no_files_are_told_and_hold_nothing(tmp_path: Path) -> None:
    """Nobody may write to a pipe for ever; a folder is a mount that failed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    environ = {"AWS_ROLE_ARN": "r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(pipe)}

    async with asyncio.timeout(5):
        assert "pipe: it is no file" in await problem(CloudAuth("aws", "web_identity"), environ)
    environ["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(tmp_path)
    assert "is a directory" in await problem(CloudAuth("aws", "web_identity"), environ)


async def test_a_file_of_windows_is_understood(tmp_path: Path) -> None:
    """It begins with a mark, and its lines end in two characters."""
    file = tmp_path / "credentials"
    file.write_bytes(b"\xef\xbb\xbf[default]\r\naws_access_key_id = ASIAROLE\r\naws_secret_access_key=role-secret\r\n")
    found = await minted(
        CloudAuth("aws", "profile"), {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_CONFIG_FILE": "/none"}
    )

    assert found.credential == AwsKeys("ASIAROLE", "role-secret")


async def test_half_a_profile_is_told(tmp_path: Path) -> None:
    """As half an environment is: the machine's role would be another account."""
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_secret_access_key = role-secret\n")
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_CONFIG_FILE": "/none"}

    assert "lacks aws_access_key_id" in await problem(DEFAULT, {**environ, **NO_IMDS})


async def test_a_profile_of_a_role_is_watched_with_its_token(tmp_path: Path) -> None:
    """A wrong role is mended in the profile; `[profile default]` is `[default]`."""
    file, token = tmp_path / "config", tmp_path / "token"
    token.write_text("web-token")
    file.write_text(f"[profile default]\nrole_arn = arn:r\nweb_identity_token_file = {token}\n")
    says = [(403, b"<Code>AccessDenied</Code>"), (200, STS)]
    async with serving(lambda _: says.pop(0)) as server:
        environ = {
            "AWS_CONFIG_FILE": str(file),
            "AWS_SHARED_CREDENTIALS_FILE": "/none",
            "AWS_ENDPOINT_URL_STS": server.url,
        }
        with pytest.raises(CredentialMissing) as missing:
            await minted(CloudAuth("aws", "profile"), environ)
        found = await minted(CloudAuth("aws", "profile"), environ)

    assert found.credential == KEYS
    assert {str(file), str(token)} <= missing.value.files.keys() & found.files.keys()


async def test_a_program_gives_a_credential(tmp_path: Path) -> None:
    """Without a shell: its arguments are what is written, quoted or not."""
    program = tmp_path / "a program"
    said = {"Version": 1, "AccessKeyId": "ASIAROLE", "SecretAccessKey": "role-secret", "SessionToken": "session-token"}
    program.write_text(f"#!{sys.executable}\nimport sys, json\nassert sys.argv[1:] == ['$HOME', 'a b']\n")
    with program.open("a") as file:
        file.write(f"print(json.dumps({said | {'Expiration': ENDS}}))\n")
    program.chmod(0o700)
    config = tmp_path / "config"
    config.write_text(f"[profile run]\ncredential_process = '{program}' $HOME \"a b\"\n")
    environ = {"AWS_CONFIG_FILE": str(config), "HOME": str(tmp_path)}

    found = await minted(CloudAuth("aws", "profile", profile="run"), environ)

    assert (found.credential, found.lasts_s) == (KEYS, 3600.0)
    assert str(config) in found.files


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("'unfinished", "is no command"),
        ("/nonexistent/program role-secret", "/nonexistent/program: no such file"),
        ("/bin/sh -c 'echo role-secret; exit 3'", "/bin/sh: it ends with status 3"),
        ("/bin/echo role-secret", "it says no JSON object of version 1"),
        ("/bin/echo '{\"Version\": 1}'", "gives no AccessKeyId and SecretAccessKey"),
    ],
)
async def test_a_program_that_gives_none_is_told_without_its_words(tmp_path: Path, command: str, words: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"[profile run]\ncredential_process = {command}\n")

    assert words in await problem(CloudAuth("aws", "profile", profile="run"), {"AWS_CONFIG_FILE": str(config)})


async def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it waits for."""
    monkeypatch.setattr(aws, "ANSWER_S", 0.05)
    config = tmp_path / "config"
    config.write_text("[profile run]\ncredential_process = /bin/sh -c 'sleep 100 & wait'\n")

    assert "no end in 0.05 s" in await problem(
        CloudAuth("aws", "profile", profile="run"), {"AWS_CONFIG_FILE": str(config)}
    )
