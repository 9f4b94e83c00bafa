"""Google's credentials: a file of a service account or of a user, or the metadata server of the machine.

Application Default Credentials, in their order: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth
application-default login` writes, the metadata server. First the assertion of a service account, then the sources
(`GoogleSource`).

Sources: https://cloud.google.com/docs/authentication/application-default-credentials;
https://developers.google.com/identity/protocols/oauth2/service-account (JWT), RFC 6749 section 6 (refresh tokens);
https://cloud.google.com/compute/docs/access/authenticate-workloads (metadata server).
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gateway.credentials.auth import CloudAuth
from gateway.credentials.fetch import (
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

# --- The assertion of a service account ---


LIFE_S: Final = 3600
SKEW_S: Final = 10
"""Seconds before now from which an assertion counts, for clocks that go ahead of Google's."""


def assertion(email: str, key_pem: str, key_id: str, audience: str, scope: str, now: float) -> str:
    """Returns the assertion of a service account: a JWT signed with its key (RFC 7523; RS256 of RFC 7518).

    The package cryptography is imported with the first one. Raises ImportError without it, ValueError or TypeError for what
    is no RSA key.
    """
    from cryptography.hazmat.primitives import hashes  # it takes 50 ms, and few configs need it
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # few configs need it
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # few configs need it

    key = load_pem_private_key(key_pem.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise TypeError("it is no RSA key")
    begins = int(now) - SKEW_S
    head = {"alg": "RS256", "typ": "JWT", **({"kid": key_id} if key_id else {})}
    claims = {"iss": email, "scope": scope, "aud": audience, "iat": begins, "exp": begins + LIFE_S}
    signed = f"{_encoded(orjson.dumps(head))}.{_encoded(orjson.dumps(claims))}"
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()


# --- The sources, in the order of Application Default Credentials ---


SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_URI: Final = "https://oauth2.googleapis.com/token"  # noqa: S105  # a public address
METADATA_HOST: Final = "metadata.google.internal"
VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
EXTRA: Final = "pip install '.[vertex]'"
_NEEDED: Final = {
    "service_account": ("client_email", "private_key"),
    "authorized_user": ("client_id", "client_secret", "refresh_token"),
}
_SECRET: Final = ("client_secret", "refresh_token", "assertion")
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


class GoogleSource:
    """Fetches access tokens of Google Cloud."""

    def __init__(
        self, auth: CloudAuth, environ: Mapping[str, str], client: CredentialClient, wall: Callable[[], float]
    ) -> None:
        """`wall` gives seconds since the epoch."""
        self._auth = auth
        self._environ = environ
        self._client = client
        self._wall = wall

    async def mint(self) -> Minted:
        """Returns an access token. Raises CredentialMissing."""
        if self._auth.source == "metadata":
            return await self._from_metadata("", {})
        if self._auth.source == "file" and self._auth.file is not None:
            return await self._from_file(self._auth.file)
        named = self._environ.get(VARIABLE)
        if named:
            return await self._from_file(named)
        well_known = user_file(self._environ)
        stamp = await asyncio.to_thread(stamp_of, well_known)
        if stamp is not None:
            return await self._from_file(well_known)
        return await self._from_metadata(f"{VARIABLE} is not set, there is no {well_known}, ", {well_known: None})

    async def _from_file(self, path: str) -> Minted:
        try:
            text, stamp = await asyncio.to_thread(read_text, path)
        except (OSError, ValueError) as error:
            raise CredentialMissing(
                "its credentials file cannot be read", f"{path}: {why_unread(error)}", {path: stamp_of(path)}
            ) from None
        files = {path: stamp}
        parsed = object_of(text.encode())
        kind = str(parsed.get("type", "")) if parsed else ""
        if kind not in _NEEDED:
            shown = f"its type is {kind[:40]!r}" if kind else "it is no JSON object with a type"
            raise CredentialMissing(
                "its credentials file is of no known type",
                f"{path}: {shown}; there are service_account and authorized_user, and the metadata server",
                files,
            )
        lacks = [name for name in _NEEDED[kind] if not isinstance(parsed.get(name), str) or not parsed[name]]
        if lacks:
            raise CredentialMissing("its credentials file is incomplete", f"{path} lacks {', '.join(lacks)}", files)
        token_uri = parsed.get("token_uri")
        uri = token_uri if isinstance(token_uri, str) and token_uri else TOKEN_URI
        form = await self._grant(kind, parsed, uri, path, files)
        return await self._exchange(uri, form, path, files)

    async def _grant(
        self, kind: str, fields: Mapping[str, Any], uri: str, path: str, files: Mapping[str, Stamp]
    ) -> Mapping[str, str]:
        """Returns what is exchanged for an access token."""
        if kind == "authorized_user":
            form = {name: fields[name] for name in ("client_id", "client_secret", "refresh_token")}
            return {"grant_type": "refresh_token", **form}
        try:  # in a thread: a private key takes milliseconds to check and to sign with
            signed = await asyncio.to_thread(
                assertion,
                *(fields["client_email"], fields["private_key"], str(fields.get("private_key_id") or "")),
                *(uri, SCOPE, self._wall()),
            )
        except ImportError:
            raise CredentialMissing(
                "a service account needs a package that is not installed", f"{path}: install it: {EXTRA}", files
            ) from None
        except (ValueError, TypeError):
            raise CredentialMissing(
                "its credentials file is damaged", f"{path}: private_key is no RSA key in PEM", files
            ) from None
        return {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": signed}

    async def _exchange(self, uri: str, form: Mapping[str, str], path: str, files: Mapping[str, Stamp]) -> Minted:
        try:
            status, body = await self._client.request("POST", uri, _FORM, urlencode(form).encode())
        except Unreached as error:
            raise CredentialMissing("its credential cannot be fetched", f"{uri}: {error}", files) from None
        if status != 200:
            parsed = object_of(body)
            secrets = [form[name] for name in _SECRET if name in form]
            why = words_of(status, parsed.get("error"), parsed.get("error_description"), hidden=secrets)
            raise CredentialMissing("its credential is not accepted", f"{uri} refuses that of {path}: {why}", files)
        return self._minted(body, uri, files)

    async def _from_metadata(self, looked: str, files: Mapping[str, Stamp]) -> Minted:
        """Asks the metadata server; `looked` is where nothing was found before."""
        host = self._environ.get("GCE_METADATA_HOST") or self._environ.get("GCE_METADATA_ROOT") or METADATA_HOST
        url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
        try:
            status, body = await self._client.request("GET", url, {"metadata-flavor": "Google"}, is_near=True)
        except Unreached as error:
            raise CredentialMissing(
                "no Google credential was found", f"{looked}the metadata server at {host}: {error}", files
            ) from None
        if status != 200:
            what = "the machine has no service account" if status == 404 else words_of(status)
            raise CredentialMissing(
                "no Google credential was found", f"{looked}the metadata server at {host}: {what}", files
            )
        return self._minted(body, f"the metadata server at {host}", files)

    def _minted(self, body: bytes, origin: str, files: Mapping[str, Stamp]) -> Minted:
        parsed = object_of(body)
        token, lasts_s = parsed.get("access_token"), parsed.get("expires_in")
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise CredentialMissing("its credential cannot be fetched", f"{origin} gives no access_token", files)
        is_time = isinstance(lasts_s, int | float) and not isinstance(lasts_s, bool)
        return Minted(BearerToken(token), lasts_s if is_time else 3600.0, files)


def user_file(environ: Mapping[str, str]) -> str:
    """Returns where `gcloud auth application-default login` writes to."""
    folder = environ.get("CLOUDSDK_CONFIG") or f"{environ.get('HOME') or '~'}/.config/gcloud"
    return f"{folder}/application_default_credentials.json"
