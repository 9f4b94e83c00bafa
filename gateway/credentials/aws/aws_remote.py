"""AWS's credentials from servers: a container's agent, the machine's metadata (IMDSv2), and STS for a web identity.

Sources: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html (IMDSv2),
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import unescape
from ipaddress import ip_address
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from gateway.credentials.google.minted import AwsKeys, CredentialMissing, Minted, Stamp, read_text, why_unread
from gateway.credentials.sources.asking import CredentialAsker, Unreached, object_of, words_of

CONTAINER_HOST: Final = "http://169.254.170.2"
IMDS: Final = "http://169.254.169.254"
IMDS_V6: Final = "http://[fd00:ec2::254]"
NOT_FOUND: Final = "no AWS credential was found"
_CONTAINER_HOSTS: Final = frozenset(("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"))
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_XML: Final = re.compile(r"<(AccessKeyId|SecretAccessKey|SessionToken|Expiration|Code|Message)>([^<]*)<")


class AwsServers:
    """Asks the servers that give AWS credentials. Every method raises CredentialMissing."""

    def __init__(self, environ: Mapping[str, str], asker: CredentialAsker, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since the epoch."""
        self._environ = environ
        self._asker = asker
        self._wall = wall

    async def container(self) -> Minted:
        """Returns the credential of a container: ECS, or EKS with pod identities."""
        relative = self._environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        full = self._environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if not relative and not full:
            raise CredentialMissing(
                NOT_FOUND, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and AWS_CONTAINER_CREDENTIALS_FULL_URI are not set"
            )
        url = CONTAINER_HOST + relative if relative else str(full)
        if not _may_be_told(url):
            raise CredentialMissing(
                NOT_FOUND, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine"
            )
        token, files = (self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") or "").strip(), dict[str, Stamp]()
        path = self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        if path:
            token, stamp = await _token_in(path)
            files[path] = stamp
        if not token.isascii() or not token.isprintable():
            raise CredentialMissing("its token is damaged", "AWS_CONTAINER_AUTHORIZATION_TOKEN is no header's value")
        return await self._keys("the container's agent", url, {"authorization": token} if token else {}, files)

    async def imds(self) -> Minted:
        """Returns the credential of the machine's role."""
        environ = self._environ
        if (environ.get("AWS_EC2_METADATA_DISABLED") or "").lower() == "true":
            raise CredentialMissing(NOT_FOUND, "AWS_EC2_METADATA_DISABLED is true")
        is_v6 = (environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE") or "").lower() == "ipv6"
        base = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or (IMDS_V6 if is_v6 else IMDS)
        base, name = base.rstrip("/"), "the machine's metadata (IMDSv2)"
        asked = {"x-aws-ec2-metadata-token-ttl-seconds": "21600", "content-length": "0"}
        token = await self._text(name, "PUT", f"{base}/latest/api/token", asked)
        headers = {"x-aws-ec2-metadata-token": token}
        role = (await self._text(name, "GET", base + _ROLES, headers)).split("\n")[0].strip()
        if not role:
            raise CredentialMissing(NOT_FOUND, f"{name}: the machine has no role")
        return await self._keys(name, base + _ROLES + quote(role, safe=""), headers, {})

    async def web_identity(self, role: str, token_file: str, session: str, region: str) -> Minted:
        """Returns the credential of a role that a token in a file stands for (IRSA of EKS)."""
        token, stamp = await _token_in(token_file)
        files = {token_file: stamp}
        environ = self._environ
        url = environ.get("AWS_ENDPOINT_URL_STS") or environ.get("AWS_ENDPOINT_URL") or _sts(region)
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role,
            "RoleSessionName": session,
            "WebIdentityToken": token,
        }
        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            status, body = await self._asker.ask("POST", f"{url.rstrip('/')}/", headers, urlencode(form).encode())
        except Unreached as error:
            raise CredentialMissing("its credential cannot be fetched", f"STS at {url}: {error}", files) from None
        found = {name: unescape(text) for name, text in _XML.findall(body.decode(errors="replace"))}
        if status != 200:
            why = words_of(status, found.get("Code"), found.get("Message"), hidden=(token,))
            raise CredentialMissing(
                "its credential is not accepted",
                f"STS at {url} refuses {role} with the token in {token_file}: {why}",
                files,
            )
        return self.minted("STS", {**found, "Token": found.get("SessionToken")}, files)

    async def _text(self, name: str, method: str, url: str, headers: Mapping[str, str]) -> str:
        status, body = await self._ask(name, method, url, headers, {})
        if status != 200:
            what = "the machine has no role" if status == 404 and url.endswith(_ROLES) else words_of(status)
            raise CredentialMissing(NOT_FOUND, f"{name}: {what}")
        return body.decode(errors="replace")

    async def _keys(self, name: str, url: str, headers: Mapping[str, str], files: Mapping[str, Stamp]) -> Minted:
        status, body = await self._ask(name, "GET", url, headers, files)
        said = object_of(body)
        if status != 200 or said.get("Code", "Success") != "Success":
            code, message = said.get("code") or said.get("Code"), said.get("message") or said.get("Message")
            why = words_of(status, code, message, hidden=headers.values())
            raise CredentialMissing(NOT_FOUND, f"{name}: {why}", files)
        return self.minted(name, said, files)

    async def _ask(
        self, name: str, method: str, url: str, headers: Mapping[str, str], files: Mapping[str, Stamp]
    ) -> tuple[int, bytes]:
        try:
            return await self._asker.ask(method, url, headers, is_near=url[:5].lower() == "http:")
        except Unreached as error:
            raise CredentialMissing(NOT_FOUND, f"{name}: {error}", files) from None

    def minted(self, name: str, said: Mapping[str, object], files: Mapping[str, Stamp]) -> Minted:
        """Returns the credential that a server, or a program, has told. Raises CredentialMissing."""
        access, secret, token = (str(said.get(part) or "") for part in ("AccessKeyId", "SecretAccessKey", "Token"))
        if not access or not secret:
            raise CredentialMissing(NOT_FOUND, f"{name} gives no AccessKeyId and SecretAccessKey", files)
        ends = _instant(str(said.get("Expiration") or ""))
        return Minted(AwsKeys(access, secret, token or None), None if ends is None else ends - self._wall(), files)


async def _token_in(path: str) -> tuple[str, Stamp]:
    try:
        text, stamp = await asyncio.to_thread(read_text, path)
    except (OSError, ValueError) as error:
        raise CredentialMissing("its token file cannot be read", f"{path}: {why_unread(error)}", {path: None}) from None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise CredentialMissing("its token file cannot be read", f"{path} holds no token", {path: stamp})
    return token, stamp


def _may_be_told(url: str) -> bool:
    """Tells whether a container's token may be sent there: encrypted, or to an agent of this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return True
    try:
        return parts.scheme == "http" and (host in _CONTAINER_HOSTS or ip_address(host).is_loopback)
    except ValueError:
        return False


def _sts(region: str) -> str:
    if not region:
        return "https://sts.amazonaws.com"
    return f"https://sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def _instant(text: str) -> float | None:
    """Returns seconds since the epoch of an instant in RFC 3339; None: there is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
