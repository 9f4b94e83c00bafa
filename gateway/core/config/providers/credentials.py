"""The credentials of a provider: with several, each is an account and becomes a provider of its own.

The first keeps the provider's name, the others are numbered: `openai`, `openai#2`, `openai#3`. No message may hold a part of a
credential. Invariant: a group has one member at least, and its first is named as the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from gateway.core.config.schema import ProviderEntry
from gateway.core.config.source.problems import Document, Path
from gateway.core.snapshot.snapshot.provider import Provider

_SECRET_NAME = re.compile(
    "auth|key|token|secret|passw|pwd|credential|cookie|session|signature|jwt|bearer|subscription", re.IGNORECASE
)
_PLAIN_HEADERS = frozenset(
    {
        "accept",
        "accept-language",
        "anthropic-beta",
        "anthropic-version",
        "cache-control",
        "content-type",
        "http-referer",
        "openai-beta",
        "origin",
        "referer",
        "user-agent",
        "x-openrouter-categories",
        "x-openrouter-title",
        "x-title",
    }
)
"""Headers that name the application or a version, which answers may hold."""
Groups = Mapping[str, tuple[Provider, ...]]
"""The providers of the config by their names there, each with its credentials in order."""


def check_credentials(document: Document, path: Path, entry: ProviderEntry) -> None:
    """Notes contradictions between the credentials of the provider at this path."""
    if entry.api_key and entry.api_keys:
        document.complain((*path, "api_keys"), "and api_key exclude each other: list them all in api_keys")
    first: dict[str, int] = {}
    for index, secret in enumerate(entry.api_keys):
        if secret and first.setdefault(secret, index) != index:
            document.complain((*path, "api_keys", index), f"is the same credential as api_keys[{first[secret]}]")


def check_presence(document: Document, path: Path, entry: ProviderEntry, has_keys: bool) -> None:
    """Notes a credential that is configured but empty, where no caller's credential could replace it.

    Without `keys` the caller's own credential is passed through. With them callers send secrets of the gateway, which no
    provider knows, so every call to this provider would fail.
    """
    if not has_keys or entry.emulate_without_key or secrets_of(entry):
        return
    for field in ("api_key", "api_keys"):
        here = (*path, field)
        written = document.at(here)
        if written is None or (any(written) if isinstance(written, list) else written):
            continue  # nothing is written there, or something that was found wrong already
        places: list[Path] = [(*here, n) for n in range(len(written))] if isinstance(written, list) else [here]
        variables = [origin for origin in map(document.origin_of, places) if origin]
        remedy = f"set {', '.join(variables)}" if variables else "write it down, or leave the field out"
        document.complain(
            here, f"is empty, and callers' secrets are the gateway's own (keys), which no provider knows: {remedy}"
        )


def secrets_of(entry: ProviderEntry) -> list[str]:
    """Returns the credentials in order without empty ones; an empty list means the caller's own."""
    return [secret for secret in (entry.api_key, *entry.api_keys) if secret]


def other_secrets_of(document: Document, path: Path, entry: ProviderEntry) -> tuple[str, ...]:
    """Returns the other secrets that a provider gets: values of headers, and the proxy's password.

    A header is secret when its name says so, or when its value comes from a variable, unless its name is known to be
    harmless.
    """
    fetched = {name for name in entry.headers if document.origin_of((*path, "headers", name))}
    secret = [name for name in entry.headers if _is_secret(name, name in fetched)]
    found = [part for name in secret for part in _parts(name, entry.headers[name])]
    password = urlsplit(entry.proxy).password if entry.proxy else None
    return (*found, *([password, unquote(password)] if password else []))


def _is_secret(header: str, is_fetched: bool) -> bool:
    if header.lower() in _PLAIN_HEADERS:
        return False
    return is_fetched or _SECRET_NAME.search(header) is not None


def _parts(name: str, value: str) -> list[str]:
    """Returns the secret parts of a header: the token behind a scheme (`Bearer …`), the values of cookies."""
    if name.lower() == "cookie":
        return [pair.partition("=")[2].strip() for pair in value.split(";")]
    scheme, _, token = value.partition(" ")
    return [token.strip() if token and scheme.isalpha() else value]


def group_of(provider: Provider, secrets: Sequence[str]) -> tuple[Provider, ...]:
    """Returns the provider once per credential (without any, as it is); answers are searched for the secrets of all."""
    shared = tuple(dict.fromkeys((*provider.secrets, *secrets)))
    group = tuple(
        replace(
            provider,
            name=provider.name if number == 1 else f"{provider.name}#{number}",
            api_key=secret,
            secrets=shared,
        )
        for number, secret in enumerate(secrets, 1)
    )
    return group or (provider,)


def is_first(provider: str) -> bool:
    """Tells whether the provider is the first of its group: notices about a group are given once."""
    return "#" not in provider  # which the config's own names cannot have


def account_of(provider: Provider) -> str:
    """Returns the account that pays for calls to the provider; empty: the caller's own."""
    return "" if provider.is_callers else provider.name
