"""What is accepted but worth a word at start: sentences for a person, none of them with a secret in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from urllib.parse import urlsplit

from gateway.config.fields import EMULATOR, is_loopback
from gateway.config.problems import Document, Path, path_text, printable
from gateway.config.schema import ConfigFile
from gateway.policy.snapshot import Key, Model, Provider

_READABLE_BY_OTHERS = 0o044


def find_notices(
    document: Document,
    config: ConfigFile,
    providers: Mapping[str, Provider],
    models: Mapping[str, Model],
    keys: Mapping[bytes, Key],
) -> tuple[str, ...]:
    """All notices about a sound config."""
    notices = [*_provider_notices(providers), *_credential_notices(providers, models)]
    literal = [path_text(path) for path in _secret_paths(config) if _is_literal(document, path)]
    if literal and _is_readable_by_others(document.file):
        notices.append(
            f"{document.file} can be read by other users and holds a secret ({', '.join(literal)}): "
            "make it private (chmod 600) or take the secret from the environment"
        )
    idle = [*_not_enforced(models, keys)]
    if idle:
        notices.append(f"budgets and weights are accepted but not enforced yet by this version: {', '.join(idle)}")
    unused = [name for name, model in models.items() if model.context_fallbacks]
    if unused:
        notices.append(f"context_fallbacks are accepted but not used yet by this version: {', '.join(unused)}")
    return tuple(printable(notice) for notice in notices)


def _provider_notices(providers: Mapping[str, Provider]) -> Iterator[str]:
    for name, provider in providers.items():
        url = urlsplit(provider.base_url)
        if provider.base_url.startswith(EMULATOR):
            yield f"provider {name} is the emulator inside this process: its answers are made up"
        elif url.scheme == "http" and provider.api_key and not is_loopback(url.hostname or ""):
            yield f"provider {name}: its api_key travels unencrypted to {url.hostname}: use https"


def _credential_notices(providers: Mapping[str, Provider], models: Mapping[str, Model]) -> Iterator[str]:
    """Falling back must not show one provider's secret to another unseen; the emulator shows it to nobody."""
    keyless = {n for n, p in providers.items() if p.api_key is None and not p.base_url.startswith(EMULATOR)}
    for name, model in models.items():
        shown_to = dict.fromkeys(target.provider for target in model.plan if target.provider in keyless)
        if len(shown_to) > 1:
            yield f"model {name}: the caller's credential is passed to every one of: {', '.join(shown_to)}"


def _secret_paths(config: ConfigFile) -> Iterator[Path]:
    yield ("admin", "key")
    for name in config.providers:
        yield ("providers", name, "api_key")
        yield ("providers", name, "proxy")
    for index in range(len(config.keys)):
        yield ("keys", index, "key")


def _is_literal(document: Document, path: Path) -> bool:
    value = document.at(path)
    if not isinstance(value, str) or not value or path in document.origins:
        return False
    return not value.startswith("sha256:") and (path[-1] != "proxy" or "@" in value)


def _is_readable_by_others(file: str) -> bool:
    try:
        return bool(FilePath(file).stat().st_mode & _READABLE_BY_OTHERS)
    except OSError:  # gone since it was read
        return False


def _not_enforced(models: Mapping[str, Model], keys: Mapping[bytes, Key]) -> Iterator[str]:
    for name, model in models.items():
        if any(target.weight != 1.0 for target in model.targets):
            yield f"model {name}"
    for key in keys.values():
        if key.budget_usd_per_day is not None:
            yield f"key {key.name}"
