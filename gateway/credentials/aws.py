"""AWS's credentials: from the config, the environment, shared files, a program, or servers; and signatures made with them.

Where the config names no source, they are looked for in the order of AWS's own SDKs: a bearer token of Bedrock, the
environment, a web identity, the shared files, the container, the machine. In this order: the shared files and their
profiles, the program that a profile may name (`credential_process`), the servers (`AwsServers`), the sources in their order
(`AwsSource`), signatures (`SigV4`).

Source: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import asyncio
import configparser
import hmac
import os
import re
import shlex
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from html import unescape
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, quote_from_bytes, urlencode, urlsplit

from gateway.core.types import Spliced
from gateway.credentials.auth import CloudAuth
from gateway.credentials.fetch import (
    AwsKeys,
    BearerToken,
    CredentialClient,
    CredentialMissing,
    Minted,
    Stamp,
    Unreached,
    object_of,
    read_text,
    stamp_of,
    why_unread,
    words_of,
)

# --- The shared files of credentials and config, and one profile in them ---


CANNOT: Final = ("sso_session", "sso_start_url", "login_session", "source_profile", "credential_source")
"""Fields of profiles whose credentials come from elsewhere, by means that the gateway does not have."""


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Where the two files are.

    Source: https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
    """

    credentials: str
    config: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of both files, of which that of credentials goes first."""

    name: str
    fields: Mapping[str, str]
    files: Mapping[str, Stamp]
    where: str
    """What was looked at, in words."""

    def __repr__(self) -> str:
        return f"Profile({self.name})"


def shared_files(environ: Mapping[str, str]) -> SharedFiles:
    """Returns where the files are for this environment."""
    home = f"{environ.get('HOME') or '~'}/.aws"
    return SharedFiles(
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials",
        environ.get("AWS_CONFIG_FILE") or f"{home}/config",
    )


def profile_name(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"


def read_profile(name: str, files: SharedFiles) -> Profile:
    """Returns the profile, without fields where no file has it."""
    in_config = ("default", "profile default") if name == "default" else (f"profile {name}",)
    stamps: dict[str, Stamp] = {}
    fields: dict[str, str] = {}
    where = []
    for path, sections in ((files.config, in_config), (files.credentials, (name,))):
        found, stamps[path], what = _section(path, sections)
        fields |= found
        where.append(what)
    return Profile(name, fields, stamps, ", ".join(reversed(where)))


def _section(path: str, sections: tuple[str, ...]) -> tuple[Mapping[str, str], Stamp, str]:
    parser = configparser.RawConfigParser(strict=False, default_section="\0")
    try:
        text, stamp = read_text(path)
        parser.read_string(text)
    except configparser.Error:
        return {}, stamp_of(path), f"{path} is no file of profiles"
    except (OSError, ValueError) as error:
        return {}, stamp_of(path), f"{path}: {why_unread(error)}"
    found = [section for section in sections if parser.has_section(section)]
    if not found:
        return {}, stamp, f"{path} has no [{sections[0]}]"
    return {name: value for one in found for name, value in parser.items(one)}, stamp, f"[{found[-1]}] in {path}"


# --- The program that a profile names ---


COMMAND: Final = "credential_process"
MOST_END_S: Final = 5.0
"""Seconds after which a killed program is gone, unless another one holds its pipe."""
ANSWER_S = 20.0
"""The most seconds that a program may take."""
MOST_OUTPUT_BYTES: Final = 65_536
_VERSION: Final = 1


async def run_credential_process(
    command: str, where: str, environ: Mapping[str, str], files: Mapping[str, Stamp]
) -> dict[str, Any]:
    """Runs the program without a shell, in the gateway's environment, and returns the JSON object that it writes.

    The object has the version of the contract. No message shows what the program writes, nor its arguments, which may be
    secret. Raises CredentialMissing. Source:
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise CredentialMissing("its program cannot be run", f"{where}: credential_process is no command", files)
    try:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,  # what it starts ends with it
        )
    except (OSError, ValueError) as error:
        problem = f"{where}: credential_process: {words[0]}: {why_unread(error)}"
        raise CredentialMissing("its program cannot be run", problem, files) from None
    try:
        async with asyncio.timeout(ANSWER_S):
            text = await _read(child)
            status = await child.wait()
    except TimeoutError:
        problem = f"{where}: credential_process: {words[0]}: no end in {ANSWER_S:g} s"
        raise CredentialMissing("its program gives no credential", problem, files) from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.shield(_end(child))
    parsed = object_of(text)
    if status != 0 or parsed.get("Version") != _VERSION:
        what = f"it ends with status {status}" if status else "it says no JSON object of version 1"
        problem = f"{where}: credential_process: {words[0]}: {what}"
        raise CredentialMissing("its program gives no credential", problem, files)
    return parsed


async def _end(child: asyncio.subprocess.Process) -> None:
    """Waits until a killed program and its pipe are gone: an event loop that has one of them cannot be closed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(MOST_END_S):
            await child.communicate()


async def _read(child: asyncio.subprocess.Process) -> bytes:
    """Returns what a program writes, or the beginning of too much."""
    made = bytearray()
    while child.stdout is not None and len(made) <= MOST_OUTPUT_BYTES and (more := await child.stdout.read(4096)):
        made += more
    return bytes(made)


# --- The servers ---


CONTAINER_HOST: Final = "http://169.254.170.2"
IMDS: Final = "http://169.254.169.254"
IMDS_V6: Final = "http://[fd00:ec2::254]"
NOT_FOUND: Final = "no AWS credential was found"
_CONTAINER_HOSTS: Final = frozenset(("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"))
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_XML: Final = re.compile(r"<(AccessKeyId|SecretAccessKey|SessionToken|Expiration|Code|Message)>([^<]*)<")


class AwsServers:
    """The servers that give AWS credentials. Every method raises CredentialMissing.

    They are a container's agent, the machine's metadata (IMDSv2), and STS for a web identity. Sources:
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html,
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html (IMDSv2),
    https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
    """

    def __init__(self, environ: Mapping[str, str], client: CredentialClient, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since the epoch."""
        self._environ = environ
        self._client = client
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
        if not _may_get_token(url):
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
        token_headers = {"x-aws-ec2-metadata-token-ttl-seconds": "21600", "content-length": "0"}
        token = await self._text(name, "PUT", f"{base}/latest/api/token", token_headers)
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
            status, body = await self._client.request("POST", f"{url.rstrip('/')}/", headers, urlencode(form).encode())
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
        status, body = await self._request(name, method, url, headers, {})
        if status != 200:
            what = "the machine has no role" if status == 404 and url.endswith(_ROLES) else words_of(status)
            raise CredentialMissing(NOT_FOUND, f"{name}: {what}")
        return body.decode(errors="replace")

    async def _keys(self, name: str, url: str, headers: Mapping[str, str], files: Mapping[str, Stamp]) -> Minted:
        status, body = await self._request(name, "GET", url, headers, files)
        parsed = object_of(body)
        if status != 200 or parsed.get("Code", "Success") != "Success":
            code, message = parsed.get("code") or parsed.get("Code"), parsed.get("message") or parsed.get("Message")
            why = words_of(status, code, message, hidden=headers.values())
            raise CredentialMissing(NOT_FOUND, f"{name}: {why}", files)
        return self.minted(name, parsed, files)

    async def _request(
        self, name: str, method: str, url: str, headers: Mapping[str, str], files: Mapping[str, Stamp]
    ) -> tuple[int, bytes]:
        try:
            return await self._client.request(method, url, headers, is_near=url[:5].lower() == "http:")
        except Unreached as error:
            raise CredentialMissing(NOT_FOUND, f"{name}: {error}", files) from None

    def minted(self, name: str, fields: Mapping[str, object], files: Mapping[str, Stamp]) -> Minted:
        """Returns the credential that a server, or a program, has given. Raises CredentialMissing."""
        access, secret, token = (str(fields.get(part) or "") for part in ("AccessKeyId", "SecretAccessKey", "Token"))
        if not access or not secret:
            raise CredentialMissing(NOT_FOUND, f"{name} gives no AccessKeyId and SecretAccessKey", files)
        ends = _instant(str(fields.get("Expiration") or ""))
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


def _may_get_token(url: str) -> bool:
    """Returns whether a container's token may be sent there: encrypted, or to an agent of this machine."""
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


# --- The sources, in the order of AWS's SDKs ---


BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"
SESSION: Final = "llm-gateway"
_IN_ORDER: Final = ("bearer", "env", "web_identity", "profile", "container", "imds")


class AwsSource:
    """Fetches credentials of AWS."""

    def __init__(
        self, auth: CloudAuth, environ: Mapping[str, str], client: CredentialClient, wall: Callable[[], float]
    ) -> None:
        """`wall` gives seconds since the epoch."""
        self._auth = auth
        self._environ = environ
        servers = self._servers = AwsServers(environ, client, wall)
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
        fields = profile.fields
        if fields.get("role_arn") and fields.get("web_identity_token_file"):
            try:
                minted = await self._assumed(fields["role_arn"], fields["web_identity_token_file"])
            except CredentialMissing as missing:  # what is wrong may be mended in the profile, too
                missing.files = {**profile.files, **missing.files}
                raise
            return replace(minted, files={**profile.files, **minted.files})
        access, secret = fields.get("aws_access_key_id"), fields.get("aws_secret_access_key")
        if access and secret:
            return Minted(AwsKeys(access, secret, fields.get("aws_session_token") or None), None, profile.files)
        if command := fields.get(COMMAND):
            where = f"profile {name}"
            output = await run_credential_process(command, where, self._environ, profile.files)
            return self._servers.minted(where, {**output, "Token": output.get("SessionToken")}, profile.files)
        if access or secret:
            lacks = "aws_secret_access_key" if access else "aws_access_key_id"
            raise CredentialMissing(
                "its credential is incomplete", f"profile {name} lacks {lacks}: {profile.where}", profile.files
            )
        raise _unusable(profile)


def _unusable(profile: Profile) -> CredentialMissing:
    means = next((name for name in CANNOT if name in profile.fields), None)
    if means is not None:
        return CredentialMissing(
            "its profile has no keys of its own",
            f"profile {profile.name} uses {means}, which the gateway does not do: name a profile with "
            f"`{COMMAND} = aws configure export-credentials --profile {profile.name}`, which does it",
            profile.files,
        )
    return CredentialMissing(NOT_FOUND, f"profile {profile.name}: {profile.where}", profile.files)


# --- Signatures, version 4 ---


_MOST_KEPT: Final = 256


class SigV4:
    """Signs requests to one service in one region: the request is hashed, and the hash signed with a key of the day.

    A pure function of the request, the keys and the time. What is signed has to be what is sent, byte for byte: host, path,
    query and the headers that are named. Of the path, which is encoded already, every step is encoded once more, as all
    services but S3 want it. Source:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """

    __slots__ = ("_added", "_date", "_heads", "_key", "_keys", "_places", "_scope", "_second", "_stamp", "_tail")

    def __init__(self, region: str, service: str) -> None:
        self._tail = f"/{region}/{service}/aws4_request".encode()
        self._second = -1
        self._stamp = self._date = self._scope = self._key = b""
        self._keys: AwsKeys | None = None
        self._added: list[tuple[bytes, bytes]] = []
        self._heads: dict[tuple[str, bytes, tuple[tuple[bytes, bytes], ...]], tuple[bytes, bytes]] = {}
        self._places: dict[bytes, bytes] = {}

    def headers(
        self,
        keys: AwsKeys,
        method: str,
        target: bytes,
        signed_headers: tuple[tuple[bytes, bytes], ...],
        body_hash: str,
        now: float,
    ) -> list[tuple[bytes, bytes]]:
        """Returns the headers that sign a request.

        `target` is the path and query of its first line, `signed_headers` are the headers to be signed, names in lower
        case, `host` among them; `now` is in seconds since the epoch.
        """
        second = int(now)
        if second != self._second or keys is not self._keys:
            self._begin(keys, second)
        signed_call = (method, target, signed_headers)
        head, credential = self._heads.get(signed_call) or self._head(signed_call)
        request = sha256(b"%b%b" % (head, body_hash.encode())).hexdigest().encode()
        to_sign = b"AWS4-HMAC-SHA256\n%b\n%b\n%b" % (self._stamp, self._scope, request)
        signature = hmac.digest(self._key, to_sign, "sha256").hex().encode()
        return [*self._added, (b"authorization", credential + signature)]

    def _head(self, signed_call: tuple[str, bytes, tuple[tuple[bytes, bytes], ...]]) -> tuple[bytes, bytes]:
        """Returns what is hashed before the body's hash, and the header before the signature; kept for this second."""
        method, target, headers = signed_call
        signed = sorted([*headers, *self._added])
        names = b";".join([name for name, _ in signed])
        lines = b"".join([b"%b:%b\n" % (name, b" ".join(value.split())) for name, value in signed])
        place = self._places.get(target) or self._place(target)
        access_key = b"" if self._keys is None else self._keys.access_key.encode()
        what = b"AWS4-HMAC-SHA256 Credential=%b/%b, SignedHeaders=%b, Signature="
        made = b"%b\n%b\n%b\n%b\n" % (method.encode(), place, lines, names), what % (access_key, self._scope, names)
        if len(self._heads) < _MOST_KEPT:
            self._heads[signed_call] = made
        return made

    def _begin(self, keys: AwsKeys, second: int) -> None:
        """Takes the time, and where the day or the keys are others, makes the key that signs."""
        self._stamp, self._second = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)).encode(), second
        self._heads.clear()
        self._added = [(b"x-amz-date", self._stamp)]
        if keys.session_token is not None:
            self._added.append((b"x-amz-security-token", keys.session_token.encode()))
        date = self._stamp[:8]
        if date == self._date and keys is self._keys:
            return
        self._date, self._keys, self._scope = date, keys, date + self._tail
        key = b"AWS4" + keys.secret_key.encode()
        for part in (date, *self._tail[1:].split(b"/")):
            key = hmac.digest(key, part, "sha256")
        self._key = key

    def _place(self, target: bytes) -> bytes:
        """Returns path and query in the form that is signed, on a line each; kept, as calls go to few places."""
        path, _, query = target.partition(b"?")
        place = quote_from_bytes(_tidy(path), safe="/~").encode() + b"\n" + _sorted(query)
        if len(self._places) >= _MOST_KEPT:
            self._places.clear()
        self._places[target] = place
        return place


def _tidy(path: bytes) -> bytes:
    """Takes out dots and empty steps (RFC 3986, 5.2.4), as AWS does before it looks at a signature."""
    steps: list[bytes] = []
    for step in path.split(b"/"):
        if step == b"..":
            del steps[-1:]
        elif step not in (b"", b"."):
            steps.append(step)
    end = b"/" if path.endswith(b"/") and steps else b""
    return b"/" + b"/".join(steps) + end


def _sorted(query: bytes) -> bytes:
    """Returns a query, which is encoded already, in the order of names and values."""
    pairs = sorted(part.partition(b"=")[::2] for part in query.split(b"&") if part) if query else ()
    return b"&".join([b"%b=%b" % pair for pair in pairs])


def hash_of(body: bytes | Spliced) -> str:
    """Returns the SHA-256 of a body in hexadecimal digits, without a copy of one that is in pieces."""
    if not isinstance(body, Spliced):
        return sha256(body).hexdigest()
    total = sha256()
    for piece in body.pieces(65_536):
        total.update(piece)
    return total.hexdigest()
