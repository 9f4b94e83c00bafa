"""AWS's credentials: from the config, the environment, shared files, or servers (`aws_remote`).

Without a word about the source they are looked for in the order of AWS's own SDKs: a bearer token of Bedrock, the environment,
a web identity, the shared files, the container, the machine.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from gateway.credentials.auth import CloudAuth
from gateway.credentials.aws.aws_files import CANNOT, Profile, profile_name, read_profile, shared_files
from gateway.credentials.aws.aws_process import COMMAND, said_by
from gateway.credentials.aws.aws_remote import NOT_FOUND, AwsServers
from gateway.credentials.google.minted import AwsKeys, BearerToken, CredentialMissing, Minted, Stamp
from gateway.credentials.sources.asking import CredentialAsker

BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"
SESSION: Final = "llm-gateway"
_IN_ORDER: Final = ("bearer", "env", "web_identity", "profile", "container", "imds")


class AwsSource:
    """Fetches credentials of AWS."""

    def __init__(
        self, auth: CloudAuth, environ: Mapping[str, str], asker: CredentialAsker, wall: Callable[[], float]
    ) -> None:
        """`wall` gives seconds since the epoch."""
        self._auth = auth
        self._environ = environ
        servers = self._servers = AwsServers(environ, asker, wall)
        self._by_source: dict[str, Callable[[], Awaitable[Minted]]] = {
            "keys": self._keys,
            "bearer": self._bearer,
            "env": self._env,
            "web_identity": self._web_identity,
            "profile": self._profile,
            "container": servers.container,
            "imds": servers.imds,
        }

    async def mint(self) -> Minted:
        """Returns keys or a token. Raises CredentialMissing."""
        if self._auth.source != "default":
            return await self._sound(self._auth.source)
        looked: list[str] = []
        files: dict[str, Stamp] = {}
        for source in _IN_ORDER:
            try:
                minted = await self._sound(source)
            except CredentialMissing as missing:
                if missing.what != NOT_FOUND:
                    raise  # there is one, and it is a wrong one: another would be a surprise
                looked.append(str(missing).removeprefix(f"{NOT_FOUND}: "))
                files.update(missing.files)
            else:
                return minted
        raise CredentialMissing(NOT_FOUND, "; ".join(looked), files)

    async def _sound(self, source: str) -> Minted:
        """Returns what a source gives, if it can be sent. Raises CredentialMissing."""
        minted = await self._by_source[source]()
        damaged = minted.credential.damaged
        if damaged is not None:
            raise CredentialMissing(
                "its credential is damaged",
                f"aws {source}: {damaged} has a space, a line break or a letter that is not ASCII",
                minted.files,
            )
        return minted

    async def _keys(self) -> Minted:
        auth = self._auth
        return Minted(AwsKeys(auth.access_key or "", auth.secret_key or "", auth.session_token), None)

    async def _bearer(self) -> Minted:
        token = self._auth.token or (self._environ.get(BEARER) or "").strip()
        if not token:
            raise CredentialMissing(NOT_FOUND, f"{BEARER} is not set")
        return Minted(BearerToken(token), None)

    async def _env(self) -> Minted:
        access, secret = (
            (self._environ.get(name) or "").strip() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        )
        if not access and not secret:
            raise CredentialMissing(NOT_FOUND, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
        if not access or not secret:
            lacks = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
            raise CredentialMissing("its credential is incomplete", f"{lacks} is not set, and its other half is")
        return Minted(AwsKeys(access, secret, (self._environ.get("AWS_SESSION_TOKEN") or "").strip() or None), None)

    async def _web_identity(self) -> Minted:
        role, file = (self._environ.get(name) for name in ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"))
        if not role or not file:
            raise CredentialMissing(NOT_FOUND, "AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not both set")
        return await self._assumed(role, file)

    async def _assumed(self, role: str, file: str) -> Minted:
        environ = self._environ
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or self._auth.region
        return await self._servers.web_identity(role, file, environ.get("AWS_ROLE_SESSION_NAME") or SESSION, region)

    async def _profile(self) -> Minted:
        name = self._auth.profile or profile_name(self._environ)
        profile = await asyncio.to_thread(read_profile, name, shared_files(self._environ))
        said = profile.fields
        if said.get("role_arn") and said.get("web_identity_token_file"):
            try:
                minted = await self._assumed(said["role_arn"], said["web_identity_token_file"])
            except CredentialMissing as missing:  # what is wrong may be mended in the profile, too
                missing.files = {**profile.files, **missing.files}
                raise
            return replace(minted, files={**profile.files, **minted.files})
        access, secret = said.get("aws_access_key_id"), said.get("aws_secret_access_key")
        if access and secret:
            return Minted(AwsKeys(access, secret, said.get("aws_session_token") or None), None, profile.files)
        if command := said.get(COMMAND):
            where = f"profile {name}"
            told = await said_by(command, where, self._environ, profile.files)
            return self._servers.minted(where, {**told, "Token": told.get("SessionToken")}, profile.files)
        if access or secret:
            lacks = "aws_secret_access_key" if access else "aws_access_key_id"
            raise CredentialMissing(
                "its credential is incomplete", f"profile {name} lacks {lacks}: {profile.where}", profile.files
            )
        raise _unusable(profile)


def _unusable(profile: Profile) -> CredentialMissing:
    """Returns why a profile gives no credential."""
    means = next((name for name in CANNOT if name in profile.fields), None)
    if means is not None:
        return CredentialMissing(
            "its profile has no keys of its own",
            f"profile {profile.name} uses {means}, which the gateway does not do: name a profile with "
            f"`{COMMAND} = aws configure export-credentials --profile {profile.name}`, which does it",
            profile.files,
        )
    return CredentialMissing(NOT_FOUND, f"profile {profile.name}: {profile.where}", profile.files)
