"""The credentials and accounts of providers, and who sees the credentials of callers; in this order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from gateway.core.config.admission import kind_of_host
from gateway.core.config.schema import ConfigFile, ProviderEntry
from gateway.core.config.source import Document, Path
from gateway.core.snapshot import Model, Provider, Target
from gateway.core.types import EMULATOR

# --- credentials: with several, each is an account and becomes a provider of its own ---

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
    """Returns the provider once per credential (without any, as it is); answers are searched for the secrets of all.

    The first keeps the provider's name, the others are numbered: `openai`, `openai#2`, `openai#3`. No message may hold a
    part of a credential. Invariant: a group has one member at least, and its first is named as the group.
    """
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
    """Returns whether the provider is the first of its group: notices about a group are given once."""
    return "#" not in provider  # which the config's own names cannot have


def account_of(provider: Provider) -> str:
    """Returns the account that pays for calls to the provider; empty: the caller's own."""
    return "" if provider.is_callers else provider.name


# --- callers' own credentials stay with one vendor, whatever targets a call falls back to ---


_PORTS = {"http": 80, "https": 443}


def check_accepted(document: Document, config: ConfigFile, path: Path, entry: ProviderEntry) -> None:
    """Notes names in `accepts_callers_of` that do not exist."""
    for index, name in enumerate(entry.accepts_callers_of):
        if name not in config.providers:
            document.no_such((*path, "accepts_callers_of", index), "provider", name, config.providers)


def bind_credentials(model: Model, groups: Groups) -> Model:
    """Returns the model with a reduced form for calls with the caller's own credential, where that may not go everywhere.

    The first target without an `api_key` determines the vendor of the credentials. Providers are of one vendor if they are
    accounts of one provider, have the same scheme, host and port, have hosts of the same known company (two regions of
    one), or are servers of the operator's own house. The emulator may see every credential, because it sends nothing on. A
    declared `kind` of a hosted provider does not count, because any server may be made to behave like another's.
    """
    providers = {one.name: one for group in groups.values() for one in group}
    keyless = {
        target.name: providers[target.provider]
        for target in (*model.plan, *model.context_plan)
        if providers[target.provider].is_callers and not providers[target.provider].base_url.startswith(EMULATOR)
    }
    first = next(iter(keyless.values()), None)
    strangers = {name: one for name, one in keyless.items() if first and not _may_see(one, first, groups)}
    if first is None or not strangers:
        return model
    withheld = frozenset(name for name, one in strangers.items() if one.is_self_hosted)
    skipped = {name: one for name, one in strangers.items() if name not in withheld}
    return replace(
        model,
        model_for_caller_credentials=replace(
            model,
            targets=_without(model.targets, skipped),
            plan=_without(model.plan, skipped),
            context_plan=_without(model.context_plan, skipped),
            without_caller_credential=withheld,
            skipped=_sentence(skipped, first) if skipped else "",
            credentials_of=first.group,
        ),
    )


def _without(targets: Sequence[Target], skipped: Mapping[str, Provider]) -> tuple[Target, ...]:
    return tuple(target for target in targets if target.name not in skipped)


def _may_see(provider: Provider, first: Provider, groups: Groups) -> bool:
    """Returns whether the provider may see credentials of the first provider's vendor."""
    vendor = _vendor_of(first)
    return _vendor_of(provider) == vendor or any(
        _vendor_of(groups[name][0]) == vendor for name in provider.accepts_callers_of
    )


def _vendor_of(provider: Provider) -> tuple[str, str, int]:
    """Returns the vendor's identity, which is equal for its providers: scheme, company or host, and port."""
    if provider.is_self_hosted:
        return "", "its own house", 0
    url = urlsplit(provider.base_url)
    host = (url.hostname or "").rstrip(".")
    port = url.port or _PORTS.get(url.scheme, 0)
    known = kind_of_host(host)
    return url.scheme, host if known == "other" else f"={known}", port


def _sentence(skipped: Mapping[str, Provider], first: Provider) -> str:
    """Returns the sentence at the end of errors where further targets were withheld from the caller's credential."""
    names = dict.fromkeys(provider.group for provider in skipped.values())
    remedies = " and ".join(f"providers.{name}.accepts_callers_of: [{first.group}]" for name in names)
    return (
        f" Not tried: {', '.join(skipped)}, for the caller's own credential is taken to be one of {first.group}, and is shown "
        f"to no other vendor; {remedies} in the gateway's config allows it."
    )
