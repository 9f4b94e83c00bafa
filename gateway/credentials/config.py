"""Providers that are called with a credential of a cloud: which one, and what of it can be seen to be missing.

A credential may come later than the gateway, as mounted files do, so what is not there is a notice. An error is what no file
that comes will mend: fields of another source, a region that nobody names, a package that is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.core.config.fields import ApiKey, Text
from gateway.core.config.product_sections import ConfigReading, SectionSpec
from gateway.core.config.schema import Entry, ProviderEntry, check
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.snapshot import PolicySnapshot, Provider
from gateway.core.types import BEDROCK_HOST, EMULATOR
from gateway.credentials.auth import CloudAuth, Service, auth_of

_CLOUDS: Final = ("google", "aws")
_STRANGE: Final[Mapping[tuple[str, str], str]] = {
    ("vertex", "aws"): "Vertex AI is Google's: use `auth: google`",
    ("gemini", "aws"): "the Gemini API is Google's: use an `api_key`",
    ("bedrock", "google"): "Bedrock is Amazon's: use `auth: aws`",
    ("anthropic", "google"): "Claude on Google's cloud is `dialect: vertex`",
    ("azure", "google"): "Azure has an `api_key`",
    ("azure", "aws"): "Azure has an `api_key`",
}
"""Why a dialect takes no credential of a cloud, and what to write, by dialect and cloud."""
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "file": ("google file",),
    "profile": ("aws profile",),
    "access_key": ("aws keys",),
    "secret_key": ("aws keys",),
    "session_token": ("aws keys",),
    "token": ("aws bearer",),
}
"""The sources that a field is for, by field."""
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "google file": ("file",),
    "aws keys": ("access_key", "secret_key"),
}
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "aws env": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "aws web_identity": ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
}
"""The variables that a source cannot do without."""
_SIGNED: Final = frozenset(("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"))
_SERVICE_ACCOUNT: Final = re.compile(r'"type"\s*:\s*"service_account"')
_GOOGLE_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


class AuthEntry(Entry):
    """The field `auth` of a provider: the credential of a cloud."""

    google: Literal["default", "file", "metadata"] | None = None
    aws: Literal["default", "env", "profile", "keys", "bearer", "web_identity", "container", "imds"] | None = None
    file: Text | None = None
    profile: Text | None = None
    region: Text | None = None
    access_key: ApiKey = Field(default=None, repr=False)
    secret_key: ApiKey = Field(default=None, repr=False)
    session_token: ApiKey = Field(default=None, repr=False)
    token: ApiKey = Field(default=None, repr=False)

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Accepts the cloud's name alone."""
        return {data: "default"} if isinstance(data, str) and data in ("google", "aws") else data


class CredentialsSection(SectionSpec):
    """`auth` of providers."""

    reads_credentials = True
    provider_secrets = (("auth", "secret_key"), ("auth", "session_token"), ("auth", "token"))

    def read_credential(self, reading: ConfigReading, name: str, entry: ProviderEntry) -> CloudAuth | None:
        return cloud_auth(reading.document, name, entry, reading.environ)

    def credential_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        return cloud_notices(reading.providers, reading.environ)


def cloud_auth(document: Document, name: str, entry: ProviderEntry, environ: Mapping[str, str]) -> CloudAuth | None:
    """Returns the cloud's credential of a provider; None: it has none. Notes problems."""
    path: Path = ("providers", name, "auth")
    if entry.auth is None:
        return None
    if isinstance(entry.auth, str) and entry.auth not in _CLOUDS:
        shown = document.show(path, entry.auth)
        document.complain(path, f"{shown} is not one of {', '.join(_CLOUDS)}{_suggestion(document, path, entry.auth)}")
        return None
    auth = check(AuthEntry, document, path)
    if auth is None:
        return None
    if entry.api_key or entry.api_keys:
        document.complain(path, "and api_key exclude each other: a provider has one or the other")
    if (auth.google is None) == (auth.aws is None):
        known = {*AuthEntry.model_fields} - {*_CLOUDS}
        if auth.google is None and isinstance(entry.auth, dict) and not entry.auth.keys() <= known:
            return None  # what is written there was found wrong already
        document.complain(path, "needs one of google and aws: write for example `auth: google` or {aws: profile}")
        return None
    cloud, source = ("google", auth.google) if auth.google is not None else ("aws", auth.aws)
    kind = f"{cloud} {source}"
    strange = _STRANGE.get((entry.dialect, cloud))
    if entry.dialect == "anthropic" and cloud == "aws" and entry.base_url is None:
        strange = "Claude on Amazon's is `dialect: bedrock`, or has `base_url: https://bedrock-mantle.REGION.api.aws/anthropic`"
    if strange is not None and document.at(("providers", name, "dialect")) == entry.dialect:
        document.complain(path, strange)
        return None
    for field, kinds in _FIELDS.items():
        if getattr(auth, field) and kind not in kinds:
            document.complain((*path, field), f"is for {' and '.join(_written(one) for one in kinds)} only")
    for header in entry.headers if cloud == "aws" else ():
        if header.lower() in _SIGNED:
            document.complain(
                ("providers", name, "headers"), f"{quoted(header)} is a part of each signature: leave it out"
            )
    for field in _NEEDED.get(kind, ()):
        if not getattr(auth, field):
            document.complain((*path, field), f"is missing: {_written(kind)} needs it")
    made = CloudAuth(
        cloud="google" if auth.google is not None else "aws",
        source=str(source),
        file=_beside(document, auth.file) if auth.file else None,
        profile=auth.profile,
        region=_region(document, path, auth, entry, environ),
        service=_service(entry),
        access_key=auth.access_key,
        secret_key=auth.secret_key,
        session_token=auth.session_token,
        token=auth.token,
    )
    _check_package(document, path, made, environ)
    return made


def cloud_notices(providers: Mapping[str, Provider], environ: Mapping[str, str]) -> Iterator[str]:
    """Yields what can be seen to be missing, and what to do about it."""
    for name, provider in providers.items():
        auth = auth_of(provider)
        if auth is None or provider.base_url.startswith(EMULATOR):
            continue
        kind = str(auth)
        file = _google_file(auth, environ)
        if file is not None and not _is_file(file):
            where = f"providers.{name}.auth.file" if auth.source == "file" else _GOOGLE_FILE
            yield f"provider {name}: there is no file {file} ({where}): its calls fail until it is there"
        lacks = [variable for variable in _VARIABLES.get(kind, ()) if not environ.get(variable)]
        if kind == "aws bearer" and not auth.token and not environ.get("AWS_BEARER_TOKEN_BEDROCK"):
            lacks = ["AWS_BEARER_TOKEN_BEDROCK"]
        if lacks:
            yield f"provider {name}: {_written(kind)} needs {', '.join(lacks)}: set it and restart, or name another source"
        if kind == "aws profile":
            files = _shared_files(environ)
            if not any(map(_is_file, files)):
                yield f"provider {name}: there is neither {files[0]} nor {files[1]}: `aws configure` writes them"


def _region(document: Document, path: Path, auth: AuthEntry, entry: ProviderEntry, environ: Mapping[str, str]) -> str:
    """Returns the region that signatures are for: as written, else that of the address, else the environment's."""
    if auth.aws is None:
        if auth.region:
            document.complain((*path, "region"), "is for aws only: Google's is a part of base_url")
        return ""
    host = BEDROCK_HOST.search(urlsplit(entry.base_url or "").hostname or "")
    there, where = (host[1], "the host of base_url is in") if host else (entry.region or "", "the provider's region is")
    if auth.region and there and auth.region != there:
        document.complain(
            (*path, "region"),
            f"is {document.show((*path, 'region'), auth.region)}, and {where} {quoted(there)}, where no signature for another "
            "one counts: leave it out",
        )
    region = auth.region or there or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if not region and auth.aws != "bearer" and not (entry.dialect == "bedrock" and entry.base_url is None):
        document.complain(
            (*path, "region"),
            "is missing: neither the host of base_url nor AWS_REGION names one, and signatures need it",
        )
    return region


def _service(entry: ProviderEntry) -> Service:
    host = urlsplit(entry.base_url or "").hostname or ""
    return "bedrock-mantle" if "bedrock-mantle" in host else "bedrock"


def _check_package(document: Document, path: Path, auth: CloudAuth, environ: Mapping[str, str]) -> None:
    """Notes a service account that cannot be used, because what signs for it is not installed."""
    file = _google_file(auth, environ)
    if file is None or find_spec("cryptography") is not None or not _is_file(file):
        return
    try:
        with FilePath(file).open("rb") as opened:  # whatever is mounted there
            text = opened.read(65_536).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    if _SERVICE_ACCOUNT.search(text):
        document.complain(
            path, "a service account's file needs the Python package cryptography: pip install '.[vertex]'"
        )


def _google_file(auth: CloudAuth, environ: Mapping[str, str]) -> str | None:
    """Returns the file that a Google credential is in; None: it is in none, or nothing names it."""
    if auth.cloud != "google" or auth.source == "metadata":
        return None
    return auth.file or (environ.get(_GOOGLE_FILE) or None if auth.source == "default" else None)


def _shared_files(environ: Mapping[str, str]) -> tuple[str, str]:
    home = f"{environ.get('HOME') or '~'}/.aws"
    return (
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials",
        environ.get("AWS_CONFIG_FILE") or f"{home}/config",
    )


def _suggestion(document: Document, path: Path, written: str) -> str:
    known = "" if document.origin_of(path) else did_you_mean(written, _CLOUDS)
    return known if "did" in known else ""


def _written(kind: str) -> str:
    """Returns a source as the config has it."""
    cloud, _, source = kind.partition(" ")
    return f"{{{cloud}: {source}}}"


def _beside(document: Document, file: str) -> str:
    return str(FilePath(document.file).parent / file)


def _is_file(path: str) -> bool:
    try:
        return FilePath(path).is_file()
    except (OSError, ValueError):
        return False
