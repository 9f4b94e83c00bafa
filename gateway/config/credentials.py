"""Several credentials of one provider: each is an account of its own, and stands beside the others as a provider does.

The first keeps the provider's name, the others are numbered: `openai`, `openai#2`, `openai#3`. No message here may hold any
of a credential. Invariant: a group has one member at least, and its first is named as the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gateway.config.problems import Document, Path
from gateway.config.schema import ProviderEntry
from gateway.policy.snapshot import Provider

Groups = Mapping[str, tuple[Provider, ...]]
"""The providers of the config by their names there, each with its credentials in order."""


def check_credentials(document: Document, path: Path, entry: ProviderEntry) -> None:
    """Note what is wrong between the credentials of the provider at this path."""
    if entry.api_key and entry.api_keys:
        document.complain((*path, "api_keys"), "and api_key exclude each other: list them all in api_keys")
    first: dict[str, int] = {}
    for index, secret in enumerate(entry.api_keys):
        if secret and first.setdefault(secret, index) != index:
            document.complain((*path, "api_keys", index), f"is the same credential as api_keys[{first[secret]}]")


def check_presence(document: Document, path: Path, entry: ProviderEntry, has_keys: bool) -> None:
    """Note a credential that is written down but empty, where nothing could take its place.

    Without `keys` the caller's own credential is passed through. With them callers send secrets of the gateway, which no
    provider knows: every call would fail, or be answered by whatever else is there.
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
    """The credentials in order, those that a variable left empty aside; none: the caller's own."""
    return [secret for secret in (entry.api_key, *entry.api_keys) if secret]


def group_of(provider: Provider, secrets: Iterable[str]) -> tuple[Provider, ...]:
    """This provider once for each credential; without any, as it is."""
    group = tuple(
        replace(provider, name=provider.name if number == 1 else f"{provider.name}#{number}", api_key=secret)
        for number, secret in enumerate(secrets, 1)
    )
    return group or (provider,)


def is_first(provider: str) -> bool:
    """Whether the provider of this name stands for its group: what concerns all of a group need be said only once."""
    return "#" not in provider  # which the config's own names cannot have


def account_of(provider: Provider) -> str:
    """Whose account pays for what is sent there; empty: the caller's own."""
    return provider.name if provider.api_key else ""
